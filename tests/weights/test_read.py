"""Weights files of every kind, good and hostile; a hostile one that ran would leave a marker file behind."""

import argparse
import collections
import json
import os
import pathlib
import random
import struct
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from weight_files import (
    WEIGHTS,
    WRITERS,
    OrderedDict,
    Storage,
    old,
    old_tensor,
    refused,
    same,
    tensor,
    write_safetensors,
    write_zip,
    zipped,
)

from vitreous.weights import read as reading
from vitreous.weights.read import nonfinite, read, read_sharded
from vitreous.weights.safety import CheckpointError
from vitreous.weights.safety import pickle_scan as pickle_scan

# ---- Good files ----


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".bin", ".npz", ".ckpt", ".tar", ""])
def test_the_content_says_what_a_file_is_whatever_its_suffix(tmp_path, write, suffix):
    path = tmp_path / f"weights{suffix}"
    write(path)
    found = read(path)
    same(found.tensors, WEIGHTS)
    assert (found.wrappers, found.ignored) == ((), ())


NUMBER_TYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint16 uint8 bool"


@pytest.mark.parametrize("name", NUMBER_TYPES.split())
@pytest.mark.parametrize("save", [save_file, torch.save])
def test_every_number_type_survives(tmp_path, name, save):
    tensors = {
        "w": torch.tensor([[0.0, 1.0], [2.0, 3.0]]).to(getattr(torch, name)),
        "empty": torch.empty(0, 3),
    }
    save(tensors, tmp_path / "w")
    same(read(tmp_path / "w").tensors, tensors)


@pytest.mark.parametrize("write", WRITERS)
def test_tensors_may_be_written_to_and_the_file_stays_as_it_was(tmp_path, write):
    write(tmp_path / "w")
    before = (tmp_path / "w").read_bytes()
    read(tmp_path / "w").tensors["head.bias"].zero_()
    assert (tmp_path / "w").read_bytes() == before


def test_zipped_pickles_are_mapped_and_loaded_with_weights_only(tmp_path, monkeypatch):
    torch.save(WEIGHTS, tmp_path / "w.pth")
    seen, load = {}, torch.load
    monkeypatch.setattr(torch, "load", lambda *source, **options: seen.update(options) or load(*source, **options))
    read(tmp_path / "w.pth")
    assert seen == {"map_location": "cpu", "weights_only": True, "mmap": True}


def test_views_transposes_and_tied_weights_are_read(tmp_path):
    base = torch.arange(12.0)
    tensors = {"part": base[3:7], "turned": base.reshape(3, 4).T, "tied": base, "again": base}
    torch.save(tensors, tmp_path / "w.pth")
    same(read(tmp_path / "w.pth").tensors, tensors)


@pytest.mark.parametrize("zip_format", [True, False])
def test_a_training_checkpoint_is_unwrapped_whatever_it_holds_besides(tmp_path, zip_format):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    moments = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2, 3)}
    optimizer = {"state": {0: moments}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}]}
    options = argparse.Namespace(lr=0.1, out=pathlib.Path("runs/1"), sizes=(1, 2))
    checkpoint = {
        "model": OrderedDict((f"module.{name}", torch.nn.Parameter(p)) for name, p in model.state_dict().items()),
        "optimizer": optimizer,
        "args": options,
        "epoch": 7,
        "loss": np.float64(0.25),
        "counts": [np.int32(3), np.bool_(True), np.float32(0.5)],
        "groups": collections.defaultdict(list, {"a": 1}),
        "steps": collections.Counter({"x": 2}),
        "kinds": {1, 2},
        "random": np.random.RandomState(0).get_state(),
        "device": torch.device("cuda", 1),
        "shape": torch.Size([2, 3]),
        "precision": torch.bfloat16,
        "raw": b"bytes",
    }
    torch.save(checkpoint, tmp_path / "w.pth", _use_new_zipfile_serialization=zip_format)
    found = read(tmp_path / "w.pth")
    same(found.tensors, model.state_dict())
    assert all(type(value) is torch.Tensor and not value.requires_grad for value in found.tensors.values())
    assert (found.wrappers, found.ignored) == (("model", "module."), ("optimizer",))


def test_a_modules_own_state_dict_with_its_version_numbers_is_read(tmp_path):
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert state._metadata
    torch.save(state, tmp_path / "w.pth")
    same(read(tmp_path / "w.pth").tensors, state)


def test_our_hand_made_archives_are_ones_that_torch_reads(tmp_path):
    assert read(zipped(tmp_path / "w", {"w": tensor()})).tensors["w"].tolist() == [0] * 4
    assert read(old(tmp_path / "w", {"w": old_tensor()})).tensors["w"].tolist() == [0] * 4


def test_nonfinite_counts_what_is_not_a_number():
    nan, inf = float("nan"), float("inf")
    tensors = {
        "good": torch.ones(3),
        "bad": torch.tensor([nan, 1, inf, -inf]),
        "half": torch.tensor([nan, 1]).half(),
        "eight": torch.tensor([nan, 1]).to(torch.float8_e4m3fn),
        "whole": torch.tensor([1, 2]),
        "wide": torch.tensor([1e300], dtype=torch.float64),
    }
    assert nonfinite(tensors) == {"bad": 3, "half": 1, "eight": 1}


# ---- Shards ----


def sharded(folder, weight_map=None, **files):
    """An index and its shards; each shard holds the tensors it is given."""
    shards = []
    for name, tensors in files.items():
        save = torch.save if name.endswith("bin") else save_file
        save({key: torch.ones(2) for key in tensors}, folder / name)
        shards.append(folder / name)
    weight_map = weight_map or {key: name for name, tensors in files.items() for key in tensors}
    index = folder / "model.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map}))
    return index, shards


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_are_put_together_in_the_indexs_order(tmp_path, suffix):
    files = {f"1.{suffix}": ["module.a", "module.c"], f"2.{suffix}": ["module.b"]}
    weight_map = {"module.a": f"1.{suffix}", "module.b": f"2.{suffix}", "module.c": f"1.{suffix}"}
    index, shards = sharded(tmp_path, weight_map, **files)
    found = read_sharded(index, shards[::-1])
    assert list(found.tensors) == ["a", "b", "c"]
    assert found.wrappers == ("module.",)


def test_a_tensor_that_no_index_names_is_read_as_transformers_does(tmp_path):
    index, shards = sharded(tmp_path, {"a": "1"}, **{"1": ["stray", "a"]})
    found = read_sharded(index, shards)
    assert (list(found.tensors), found.ignored) == (["a", "stray"], ())


def test_a_missing_shard_is_named(tmp_path):
    index, shards = sharded(tmp_path, **{"1": ["a"], "2": ["b"]})
    refused(index, "expected the shards 2", call=lambda path: read_sharded(path, shards[:1]))


@pytest.mark.parametrize("promised", ["b", "number"])
def test_a_tensor_that_its_shard_lacks_is_named(tmp_path, promised):
    index, _ = sharded(tmp_path, {"a": "1.bin", promised: "1.bin"}, **{"1.bin": ["a"]})
    torch.save({"a": torch.ones(2), "number": 3}, tmp_path / "1.bin")
    message = refused(tmp_path / "1.bin", call=lambda path: read_sharded(index, [path]))
    assert f"lacks {promised}" in message


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    index, shards = sharded(tmp_path, {"a": "1", "b": "2"}, **{"1": ["a", "b"], "2": ["b"]})
    refused(tmp_path / "2", "b is in another shard too", call=lambda _: read_sharded(index, shards))


@pytest.mark.parametrize("name", ["../1", "/etc/passwd", "a/b", "a\\b", "..", ".", "", 3, None, ["1"]])
def test_a_shard_name_that_is_not_a_plain_file_name_is_refused(tmp_path, name):
    index, shards = sharded(tmp_path, {"a": "1", "b": name}, **{"1": ["a"]})
    refused(index, "plain file name for b", call=lambda path: read_sharded(path, shards))


@pytest.mark.parametrize("text", ["[]", "{}", "null", '{"weight_map": ["a"]}', '{"weight_map": {}}'])
def test_an_index_without_a_weight_map_is_refused(tmp_path, text):
    (tmp_path / "model.index.json").write_text(text)
    refused(tmp_path / "model.index.json", 'a "weight_map"', call=lambda path: read_sharded(path, []))


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff", b"<html>"])
def test_an_index_that_is_not_json_is_refused(tmp_path, text):
    (tmp_path / "model.index.json").write_bytes(text)
    refused(tmp_path / "model.index.json", "damaged", call=lambda path: read_sharded(path, []))


def test_an_index_of_absurd_size_is_refused_unread(tmp_path):
    with (tmp_path / "i.json").open("wb") as file:
        file.truncate(reading.MAX_INDEX_BYTES + 1)
    refused(tmp_path / "i.json", "expected an index under", call=lambda path: read_sharded(path, []))


def test_a_damaged_shard_is_named(tmp_path):
    index, shards = sharded(tmp_path, **{"1": ["a"], "2": ["b"]})
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    refused(shards[1], call=lambda _: read_sharded(index, shards))


def test_a_shard_that_holds_no_names_is_refused(tmp_path):
    index, shards = sharded(tmp_path, **{"1.bin": ["a"]})
    torch.save([torch.ones(2)], shards[0])
    refused(shards[0], "expected named tensors", call=lambda _: read_sharded(index, shards))


# ---- Files that are something else ----


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "git lfs pull"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
        (b"\xef\xbb\xbf \n<HTML><body>404</body></html>", "web page"),
        (b'<?xml version="1.0"?><Error>AccessDenied</Error>', "XML"),
        (b'{"weight_map": {"a": "b"}}', "lists shards"),
        (b'{"abcd":{"a": "b"}}', "lists shards"),
        (b"\x1f\x8b\x08\x00" + bytes(20), "gzip"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "HDF5"),
        (b"./w".ljust(257, b"\0") + b"ustar\0" + bytes(512), "tar archive"),
        (b"cos\nsystem\n(S'true'\ntR.", "expected safetensors"),
        (b"\0", "expected safetensors"),
        (bytes(4096), "expected safetensors"),
        (random.Random(0).randbytes(4096), "expected safetensors"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, content, word):
    (tmp_path / "w.pth").write_bytes(content)
    refused(tmp_path / "w.pth", word)


def test_one_array_without_a_name_is_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.ones(3))
    refused(tmp_path / "w.npy", "numpy.savez")


def test_a_folder_and_a_missing_file_and_a_pipe_are_refused(tmp_path):
    refused(tmp_path, "is a folder")
    refused(tmp_path / "absent.pth", "no such file")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refused(tmp_path / "pipe", "no such file")
    refused(tmp_path / "absent.json", "no such file", call=lambda path: read_sharded(path, []))


def test_a_file_that_may_not_be_opened_is_refused(tmp_path, monkeypatch):
    write_zip(tmp_path / "w.pth")

    def open_nothing(*_, **__):
        raise PermissionError(13, "Permission denied", "/somewhere/private")

    monkeypatch.setattr(pathlib.Path, "open", open_nothing)
    assert "private" not in refused(tmp_path / "w.pth", "permissions")


@pytest.mark.parametrize("member", ["archive/constants.pkl", "archive/code/__torch__.py"])
def test_torchscript_is_refused_with_advice(tmp_path, member, unbuilt):
    refused(zipped(tmp_path / "w.pt", {"w": tensor()}, extra=[(member, b"")]), "TorchScript", "state_dict()")


@pytest.mark.filterwarnings("ignore")
def test_a_real_program_of_torch_export_is_refused(tmp_path, unbuilt):
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "w.pt2")
    refused((tmp_path / "w.pt2").rename(tmp_path / "w.pt"), "is a program of torch.export", "state_dict()")


@pytest.mark.filterwarnings("ignore")
def test_a_real_torchscript_program_is_refused(tmp_path, unbuilt):
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "w.pt"))
    refused(tmp_path / "w.pt", "TorchScript")


def test_a_zip_of_other_things_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(tmp_path / "w.zip", "readme.txt", "unpack")


# ---- Files that would run something ----


# The name that a refusal must tell.


def test_whatever_a_library_says_becomes_one_short_line(tmp_path, monkeypatch):
    def complain(*_, **__):
        raise RuntimeError("first line\n  second line" + "!" * 1000)

    monkeypatch.setattr(reading, "safe_open", complain)
    write_safetensors(tmp_path / "w")
    assert len(refused(tmp_path / "w", "RuntimeError: first line second line!", "fetch it again")) < 500


@pytest.mark.parametrize("name", ["two\rlines", "\x1b[2Jcleared", "long" * 100_000])
def test_a_name_from_the_file_cannot_spoil_the_line(tmp_path, name):
    zipped(tmp_path / "w.pth", b"\x80\x02c" + name.encode() + b"\nsystem\n.")
    save_file({name: torch.ones(1, dtype=torch.complex64)}, tmp_path / "w.safetensors")
    for path, word in ((tmp_path / "w.pth", "asks for"), (tmp_path / "w.safetensors", "expected real numbers")):
        message = refused(path, word)
        assert message.isprintable()
        assert len(message) < 500


# ---- Pickles that would fill memory or reach outside their numbers ----


# ---- Archives that lie ----


def test_compressed_tensors_are_refused(tmp_path, unbuilt):
    refused(zipped(tmp_path / "w.pth", {"w": tensor()}, compression=zipfile.ZIP_DEFLATED), "compressed")


def test_records_that_share_their_bytes_are_refused(tmp_path, unbuilt):
    count = 2**16
    path = zipped(
        tmp_path / "w.pth",
        {n: tensor(Storage(n, count // 4), size=(count // 4,)) for n in "abc"},
        {"a": bytes(count), "b": b"", "c": b""},
    )
    content = bytearray(path.read_bytes())
    entries = [content.index(b"PK\x01\x02")]
    while (following := content.find(b"PK\x01\x02", entries[-1] + 4)) > 0:
        entries.append(following)
    first = entries[2]
    for entry in entries[3:5]:  # b and c: sizes, checksum and place of a
        content[entry + 16 : entry + 28] = content[first + 16 : first + 28]
    path.write_bytes(content)
    refused(path, "overlap")


def write_header(path, header, data=b"", length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        ({"a": ENTRY}, bytes(3), None),
        ({"a": ENTRY}, bytes(5), None),
        ({"a": ENTRY}, bytes(4), 10_000),
        ({"a": ENTRY}, bytes(4), 2**63),
        ({"a": ENTRY}, bytes(4), 10),
        ({"a": ENTRY, "b": ENTRY}, bytes(4), None),
        ({"a": ENTRY, "b": ENTRY | {"data_offsets": [2, 6]}}, bytes(6), None),
        ({"a": ENTRY | {"shape": [2**40]}}, bytes(4), None),
        ({"a": ENTRY | {"shape": [2**40, 2**40]}}, bytes(4), None),
        ({"a": ENTRY | {"shape": [-1]}}, bytes(4), None),
        ({"a": ENTRY | {"data_offsets": [4, 0]}}, bytes(4), None),
        ({"a": ENTRY | {"data_offsets": [0, 2**40]}}, bytes(4), None),
        ({"a": ENTRY | {"dtype": "Q8"}}, bytes(4), None),
        (b'{"a":' * 10_000, b"", None),
        (b"{" + b"\xff" * 40, b"", None),
    ],
)
def test_a_safetensors_header_that_does_not_fit_its_file_is_refused(tmp_path, header, data, length):
    write_header(tmp_path / "w.safetensors", header, data, length)
    refused(tmp_path / "w.safetensors", "damaged")


def test_a_safetensors_header_of_more_than_a_hundred_megabytes_is_refused(tmp_path):
    write_header(tmp_path / "w.safetensors", b"{", length=101_000_000)
    os.truncate(tmp_path / "w.safetensors", 102_000_000)  # sparse: takes no room
    refused(tmp_path / "w.safetensors", "damaged")


def test_complex_and_packed_and_absent_tensors_in_safetensors_are_refused_by_name(tmp_path):
    write_header(tmp_path / "w", {"a": ENTRY | {"dtype": "C64", "data_offsets": [0, 8]}}, bytes(8))
    refused(tmp_path / "w", "in a, got torch.complex64")
    write_header(tmp_path / "w", {"a": ENTRY | {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, bytes(1))
    refused(tmp_path / "w", "in a, got torch.float4")
    write_header(tmp_path / "w", {"__metadata__": {"format": "pt"}})
    refused(tmp_path / "w", "no weights")


@pytest.mark.parametrize("length", [0x7B, 0x227B, 0x80, 0x0280, 0x8B1F, 0x4B50])
def test_a_safetensors_length_that_looks_like_another_format_is_read(tmp_path, length):
    header = json.dumps({"w": ENTRY}).encode().ljust(length)
    write_header(tmp_path / "w", header, bytes(4))
    assert read(tmp_path / "w").tensors["w"].tolist() == [0]


# ---- Damage ----


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_cut_short_anywhere_is_refused(tmp_path, write):
    write(tmp_path / "w")
    content = (tmp_path / "w").read_bytes()
    for length in range(0, len(content), 17):
        (tmp_path / "w").write_bytes(content[:length])
        refused(tmp_path / "w")


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITERS)
def test_a_flipped_bit_is_refused_or_harmless(tmp_path, write):
    """Among the numbers a flip changes one (only an npz has checksums); elsewhere it is refused."""
    write(tmp_path / "w")
    content, draw, outcomes = (tmp_path / "w").read_bytes(), random.Random(0), set()
    for _ in range(120):
        flipped = bytearray(content)
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        (tmp_path / "w").write_bytes(flipped)
        try:
            found = read(tmp_path / "w").tensors
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017
            outcomes.add("refused")
        else:
            assert sum(value.numel() for value in found.values()) <= 16
            outcomes.add("read")
    assert outcomes == {"refused", "read"}
