"""Weights files made for tests: sound ones of every format, and pickles and archives written by hand."""

import collections
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitreous.weights.read import read
from vitreous.weights.safety import CheckpointError
from vitreous.weights.safety import pickle_scan as pickle_scan

OrderedDict, rebuild = collections.OrderedDict, torch._utils._rebuild_tensor_v2


WEIGHTS = {"cls_token": torch.arange(6.0).reshape(1, 1, 6), "head.bias": torch.tensor([1.0, -2.0])}


def same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name].double(), value.double()), name


def refused(path, *words, call=read):
    """The one plain line that a refusal is; it names the file, and says what is wrong and what to try."""
    with pytest.raises(CheckpointError) as caught:
        call(path)
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message
    assert "weights_only" not in message
    assert message.count(": ") >= 2
    for word in words:
        assert word in message
    return message


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments, state=None):
        self.recipe = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.recipe


class Storage:
    """Pickles as torch pickles a tensor's storage."""

    def __init__(self, key="0", count=4, kind=torch.FloatStorage, rest=()):
        self.identity = ("storage", kind, key, "cpu", count, *rest)


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.identity if isinstance(value, Storage) else None


def pickled(value, protocol=2):
    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(value)
    return buffer.getvalue()


def tensor(storage=None, offset=0, size=(4,), stride=(1,), hooks=None):
    hooks = OrderedDict() if hooks is None else hooks
    return Call(rebuild, storage or Storage(), offset, size, stride, False, hooks)


def zipped(path, content, storages=None, compression=zipfile.ZIP_STORED, extra=()):
    """A torch archive around a pickle of our own making."""
    content = content if isinstance(content, bytes) else pickled(content)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", "little")
        for key, numbers in ({"0": bytes(16)} if storages is None else storages).items():
            archive.writestr(f"archive/data/{key}", numbers)
        archive.writestr("archive/version", "3\n")
        for name, data in extra:
            archive.writestr(name, data)
    return path


def old(path, value, keys=("0",), numbers=bytes(16)):
    """torch.save before version 1.6."""
    parts = [pickle_scan.OLD_MAGIC, 1001, {"little_endian": True}, value, list(keys)]
    storages = b"".join(struct.pack("<q", len(numbers) // 4) + numbers for _ in keys)
    path.write_bytes(b"".join(pickled(part) for part in parts) + storages)
    return path


def old_tensor(count=4, size=(4,), key="0", rest=(None,)):
    return tensor(Storage(key, count, rest=rest), size=size)


def write_safetensors(path):
    save_file(WEIGHTS, path)


def write_zip(path):
    torch.save(WEIGHTS, path)


def write_old(path):
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=False)


def write_npz(path):
    with path.open("wb") as file:
        np.savez(file, **{name: value.numpy() for name, value in WEIGHTS.items()})


def write_compressed_npz(path):
    with path.open("wb") as file:
        np.savez_compressed(file, **{name: value.numpy() for name, value in WEIGHTS.items()})


WRITERS = [write_safetensors, write_zip, write_old, write_npz, write_compressed_npz]
