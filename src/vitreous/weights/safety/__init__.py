"""Readers that check untrusted files before they build anything from them."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message reads "<file>: <what is wrong>: <what to try>"."""
