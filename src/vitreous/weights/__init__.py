"""Checkpoints of every library in the field: found, read, recognised, loaded and written."""
