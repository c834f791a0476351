"""Pickles that would run code, fill memory or reach outside their numbers: rejected before anything is built."""

import argparse
import collections
import io
import os
import pathlib
import pickle
import struct
import subprocess
import sys

import pytest
import torch
from weight_files import WEIGHTS, Call, OrderedDict, Storage, old, old_tensor, pickled, rebuild, refused, tensor, zipped

from vitreous.weights.read import read
from vitreous.weights.safety import pickle_scan as pickle_scan
from vitreous.weights.safety.npz import ALWAYS_ALLOWED


def test_no_global_allow_list_is_left_behind(tmp_path):
    torch.save({"model": WEIGHTS, "args": argparse.Namespace(a=1)}, tmp_path / "w.pth")
    read(tmp_path / "w.pth")
    assert not set(torch.serialization.get_safe_globals()) & set(pickle_scan.PLACEHOLDERS)


class Bound:
    """An object whose own method would run when it is rebuilt."""

    def __init__(self, command):
        self.command = command

    def __setstate__(self, state):
        os.system(state["command"])


def evil(name, marker):
    command = f"{sys.executable} -c \"open(r'{marker}', 'w')\"" if os.name == "nt" else f"touch '{marker}'"
    nested = io.BytesIO()
    torch.save(Call(os.system, command), nested)
    return {
        "system": lambda: Call(os.system, command),
        "eval": lambda: Call(eval, f"open({str(marker)!r}, 'w').close()"),
        "exec": lambda: Call(exec, f"open({str(marker)!r}, 'w').close()"),
        "open": lambda: Call(open, str(marker), "w"),
        "call": lambda: Call(subprocess.call, ["touch", str(marker)]),
        "touch": lambda: Call(pathlib.Path.touch, pathlib.PurePosixPath(marker)),
        "__setstate__": lambda: Bound(command),
        "_load_from_bytes": lambda: Call(torch.storage._load_from_bytes, nested.getvalue()),
        "torch.load": lambda: Call(torch.serialization.load, Call(io.BytesIO, nested.getvalue()), None, None),
        "getattr": lambda: Call(getattr, Call(__import__, "os"), "system"),
    }[name]()


WANTED = {
    "system": f"{os.name}.system",
    "eval": "builtins.eval",
    "exec": "builtins.exec",
    "open": "open",
    "call": "subprocess.call",
    "touch": "getattr",
    "__setstate__": "Bound",
    "_load_from_bytes": "torch.storage._load_from_bytes",
    "torch.load": "torch.serialization.load",
    "getattr": "builtins.getattr",
}


NESTINGS = {
    "alone": lambda payload: payload,
    "extra": lambda payload: {"w": tensor(), "extra": payload},
    "as a key": lambda payload: {payload: 1},
    "in hooks": lambda payload: {"w": tensor(hooks=OrderedDict(a=payload))},
    "in a size": lambda payload: {"w": tensor(size=(payload,))},
    "in options": lambda payload: {"w": tensor(), "args": argparse.Namespace(x=payload)},
    "in a factory": lambda payload: {"w": tensor(), "d": Call(collections.defaultdict, payload)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_code_in_a_pickle_is_refused_by_name_and_never_run(tmp_path, name, nesting, unbuilt):
    marker = tmp_path / "ran"
    hidden = NESTINGS[nesting](evil(name, marker))
    content = pickled(hidden)
    (tmp_path / "plain.pkl").write_bytes(content)
    for path in (
        zipped(tmp_path / "w.pth", content),
        old(tmp_path / "o.pth", hidden),
        tmp_path / "plain.pkl",
    ):
        refused(path, "asks for", WANTED[name], "nothing was loaded")
    assert not marker.exists()


@pytest.mark.parametrize("name", [name for name in WANTED if name not in ("getattr", "torch.load")])
def test_the_same_pickle_does_run_where_pickle_is_trusted(tmp_path, name):
    pickle.loads(pickled(evil(name, tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", [0, 1, 3, 4, 5])
def test_code_under_another_protocol_is_refused_too(tmp_path, protocol, unbuilt):
    content = pickled({"extra": evil("system", tmp_path / "ran")}, protocol)
    (tmp_path / "plain.pkl").write_bytes(content)
    refused(tmp_path / "plain.pkl")
    refused(zipped(tmp_path / "w.pth", content))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["system", "eval", "_load_from_bytes"])
def test_torch_checks_a_second_time(tmp_path, name, monkeypatch):
    path = zipped(tmp_path / "w.pth", {"w": tensor(), "extra": evil(name, tmp_path / "ran")})
    monkeypatch.setattr(pickle_scan.PickleScan, "scan", lambda self, stream: [])
    refused(path, "torch rejects")
    assert not (tmp_path / "ran").exists()


def test_neither_the_environment_nor_a_global_allow_list_lets_code_in(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = zipped(tmp_path / "w.pth", {"w": tensor(), "extra": evil("eval", tmp_path / "ran")})
    with torch.serialization.safe_globals([(eval, "builtins.eval")]):
        refused(path, "builtins.eval")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_inside_a_tensor_stays_bytes(tmp_path):
    inner = pickled(evil("system", tmp_path / "ran"))
    torch.save({"w": torch.frombuffer(bytearray(inner), dtype=torch.uint8)}, tmp_path / "w.pth")
    assert bytes(read(tmp_path / "w.pth").tensors["w"].tolist()) == inner
    assert not (tmp_path / "ran").exists()


def test_a_whole_pickled_module_is_refused_by_its_class(tmp_path, unbuilt):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pth")
    refused(tmp_path / "w.pth", "torch.nn.modules.linear.Linear", "state_dict()")


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_another_pickle_protocol_is_refused_by_its_number(tmp_path, protocol, unbuilt):
    torch.save(WEIGHTS, tmp_path / "w.pth", pickle_protocol=protocol)
    refused(tmp_path / "w.pth", f"expected pickle protocol 2, got {protocol}")


def test_a_pickle_that_torch_did_not_write_is_refused(tmp_path, unbuilt):
    (tmp_path / "w.pkl").write_bytes(pickled({"a": 1}))
    refused(tmp_path / "w.pkl", "torch.save did not write")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (lambda: torch.ones(2, dtype=torch.complex64), "ComplexFloatStorage"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "_rebuild_qtensor"),
        (lambda: torch.eye(2).to_sparse(), "_rebuild_sparse_tensor"),
        (lambda: torch.empty(10**12, device="meta"), "_rebuild_meta_tensor_no_storage"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "flags"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_special_tensors_are_refused_by_name(tmp_path, value, word, unbuilt):
    torch.save({"w": value()}, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", word)


TERABYTES = 2**42


HOSTILE_TENSORS = {
    "expanded": tensor(size=(TERABYTES,), stride=(0,)),
    "expanded a little": tensor(size=(5,), stride=(0,)),
    "too long": tensor(size=(5,)),
    "behind its end": tensor(offset=1),
    "strided out": tensor(size=(2, 2), stride=(3, 1)),
    "overflowing": tensor(size=(2**31, 2**33), stride=(2**33, 1)),
    "negative size": tensor(size=(-1,)),
    "negative stride": tensor(size=(2,), stride=(-1,)),
    "negative offset": tensor(offset=-1),
    "no numbers": tensor(size=(1.5,)),
    "uneven": tensor(size=(1, 1), stride=(1,)),
    "too many dimensions": tensor(size=(1,) * 100, stride=(1,) * 100),
    "enormous numbers": tensor(size=(2**1000,) * 20, stride=(1,) * 20),
    "storage larger than its record": tensor(Storage(count=TERABYTES)),
    "storage smaller than its record": tensor(Storage(count=1), size=(1,)),
    "negative storage": tensor(Storage(count=-4)),
    "storage without a record": tensor(Storage("9")),
    "storage of a path": tensor(Storage("../version")),
    "unknown storage": tensor(Storage(kind=torch.Size)),
    "two sizes of one storage": [tensor(), tensor(Storage(kind=torch.DoubleStorage), size=(1,))],
    "view of a storage": tensor(Storage(rest=(("1", 0, TERABYTES),))),
    "hooks": tensor(hooks=OrderedDict(a=1)),
    "hooks that are no dict": tensor(hooks=5),
    "flags": Call(rebuild, Storage(), 0, (4,), (1,), False, OrderedDict(), {"neg": True}),
    "type as flags": Call(rebuild, Storage(), 0, (16,), (1,), False, OrderedDict(), torch.uint8),
    "wider type": Call(torch._utils._rebuild_tensor_v3, Storage(), 0, (4,), (1,), False, OrderedDict(), torch.float64),
    "state of a tensor": Call(
        rebuild, Storage(), 0, (4,), (1,), False, OrderedDict(), state=(Storage(), 0, (TERABYTES,), (1,))
    ),
    "parameter of nothing": Call(torch._utils._rebuild_parameter, 5, False, OrderedDict()),
    "parameter with hooks": Call(torch._utils._rebuild_parameter, tensor(), False, OrderedDict(a=1)),
    "tensor of nothing": Call(rebuild, 5, 0, (4,), (1,), False, OrderedDict()),
    "made storage": Call(torch.UntypedStorage, TERABYTES),
    "made array of bytes": Call(bytearray, TERABYTES),
    "doubled bytes": Call(__import__("_codecs").encode, "00" * 50, "hex"),
    "state of a class": Call(argparse.Namespace, state=(None, {"__class__": 1})),
    "state of a dict": Call(OrderedDict, state={"items": 1}),
    "called dict factory of a storage": Call(collections.defaultdict, Call(torch.FloatStorage, TERABYTES)),
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_a_tensor_that_is_not_inside_its_numbers_is_refused_before_it_is_built(tmp_path, name, unbuilt):
    refused(zipped(tmp_path / "w.pth", {"w": HOSTILE_TENSORS[name]}))
    refused(old(tmp_path / "o.pth", {"w": HOSTILE_TENSORS[name]}))


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        (old_tensor(TERABYTES), ("0",)),
        (old_tensor(5), ("0",)),
        (old_tensor(4, size=(TERABYTES,)), ("0",)),
        (old_tensor(rest=(("1", 0, TERABYTES),)), ("0",)),
        ([old_tensor(TERABYTES), Storage("1", 8 - TERABYTES, rest=(None,))], ("0", "1")),
        (old_tensor(), ()),
        (old_tensor(), ("1",)),
        (old_tensor(), ("0", "1")),
        ([old_tensor(), old_tensor(key="1")], ("0",)),
    ],
)
def test_an_old_pickle_that_claims_more_than_its_file_is_refused(tmp_path, value, keys, unbuilt):
    refused(old(tmp_path / "w.pth", {"w": value}, keys))


def test_an_old_pickle_whose_numbers_have_another_length_is_refused(tmp_path):
    path = old(tmp_path / "w.pth", {"w": old_tensor()})
    content = bytearray(path.read_bytes())
    content[-24:-16] = struct.pack("<q", 3)
    path.write_bytes(content)
    refused(path)


def test_many_names_for_one_large_tensor_are_refused(tmp_path):
    base = torch.zeros(ALWAYS_ALLOWED // 40)
    torch.save({f"w{n}": base for n in range(8)}, tmp_path / "few.pth")
    assert len(read(tmp_path / "few.pth").tensors) == 8
    torch.save({f"w{n}": base for n in range(41)}, tmp_path / "many.pth")
    refused(tmp_path / "many.pth", "do not trust it")


@pytest.mark.parametrize("copy", [collections.Counter, OrderedDict, set, argparse.Namespace])
def test_a_long_list_that_is_copied_over_and_over_is_refused(tmp_path, copy, unbuilt):
    long = {f"k{n}": n for n in range(1000)} if copy is not set else list(range(1000))
    if copy is argparse.Namespace:
        calls = [Call(copy, state=long) for _ in range(1000)]
    else:
        calls = [Call(copy, long) for _ in range(1000)]
    refused(zipped(tmp_path / "w.pth", {"w": tensor(), "x": calls}), "over and over")


@pytest.mark.slow
def test_deep_nesting_is_read(tmp_path):
    deep = b"]" * 20_000 + b"a" * 19_999
    path = zipped(tmp_path / "w.pth", b"\x80\x02}(X\x01\x00\x00\x00x" + deep + b"u.")
    refused(path, "no weights under x")
