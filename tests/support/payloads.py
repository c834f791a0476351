"""A payload read back as the page reads it."""

import json

import numpy as np


def opened(payload):
    """What payload.js does."""
    raw = payload.to_bytes()
    length = int.from_bytes(raw[:4], "little")
    header, block = json.loads(raw[4 : 4 + length]), raw[4 + length :]

    def array(name):
        entry = header["arrays"][name]
        count = int(np.prod(entry["shape"]))
        return np.frombuffer(block, entry["type"], count, entry["offset"]).reshape(entry["shape"])

    return header, array, block
