"""Internals of a ViT, tensors in, tensors out: `capture` records them, `intervene` changes them, the rest analyse."""
