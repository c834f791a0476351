"""Checkpoint formats, one file a family."""
