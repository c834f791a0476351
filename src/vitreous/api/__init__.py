"""Public functions that put several floors together."""
