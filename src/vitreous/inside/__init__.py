"""Looking inside: tensors in, tensors out. `capture` gets the internals, each other module works out one idea."""
