"""Hostile and damaged checkpoints, each written to a folder of its own: `cases(folder)` yields (name, path).

A pickle that ran would leave the file `canary` behind. All files are small; the sizes that they claim are not.
"""

import copy
import functools
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from conftest import noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.convert import convert

Case = tuple[str, Path]
SOUND = ("vitreous", "timm", "huggingface")
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**31, 2**63, 10**30, 1e308, float("nan"), "x", "", [], {}, [[]], [0, 0], [-1, 4], [1e9, 1e9],
    {"a": {}}, ["x"] * 3, "../../etc/passwd",
)  # fmt: skip


class Runs:
    """What pickles as a call."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


def write_sound(folder: Path) -> dict[str, Path]:
    """A small model as a folder of each kind."""
    model = noise(ViT(ViTConfig(image_size=16, patch_size=8, width=32, depth=1, heads=2, classes=3)))
    return {kind: convert(model, folder / kind, to=kind) and folder / kind for kind in SOUND}


def pickles(folder: Path, canary: Path) -> Iterator[Case]:
    """Code in every container that could hold some."""
    touch = f"touch {canary}"
    calls = {
        "system": Runs(os.system, touch),
        "eval": Runs(eval, f"open({str(canary)!r}, 'w').close()"),
        "exec": Runs(exec, f"open({str(canary)!r}, 'w').close()"),
        "open": Runs(open, str(canary), "w"),
        "partial": Runs(functools.partial(os.system, touch)),
        "getattr": Runs(getattr, shutil.copy, "__globals__"),
        "loads": Runs(pickle.loads, pickle.dumps(Runs(os.system, touch))),
        "torch-load": Runs(torch.load, "other.pth"),
    }
    for name, call in calls.items():
        nested = {"state_dict": {"head.bias": torch.ones(2), "args": [{"deep": call}]}}
        nestings = {"bare": call, "nested": nested}
        for nesting, value in nestings.items():
            plain = folder / f"{name}-{nesting}-plain.pth"
            plain.write_bytes(pickle.dumps(value, protocol=2))
            yield f"pickle {name} {nesting} plain", plain
            for zipped in (True, False):
                path = folder / f"{name}-{nesting}-{'zip' if zipped else 'old'}.pth"
                torch.save(value, path, _use_new_zipfile_serialization=zipped)
                other = path.with_suffix(".safetensors")
                shutil.copy(path, other)
                yield f"pickle {name} {nesting} {'zip' if zipped else 'old'}", path
                yield f"pickle {name} {nesting} called safetensors", other
        path = folder / f"{name}.npz"
        np.savez(path, **{"head/bias": np.array([call], dtype=object)})
        yield f"pickle {name} npz of objects", path


def bombs(folder: Path) -> Iterator[Case]:
    for name, members, size in (("one.npz", 1, 1 << 31), ("many.npz", 60, 1 << 26)):
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(members):
                with archive.open(f"w{number}.npy", "w") as file:
                    np.lib.format.write_array_header_1_0(
                        file, {"descr": "<f4", "fortran_order": False, "shape": (size // 4,)}
                    )
                    for _ in range(min(size, 1 << 28) >> 20):
                        file.write(bytes(1 << 20))
        yield f"bomb {name}", folder / name
    with zipfile.ZipFile(folder / "members.npz", "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number}.npy", b"")
    yield "bomb of members", folder / "members.npz"
    with zipfile.ZipFile(folder / "squeezed.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00." + bytes(100_000_000))
    yield "bomb squeezed.pth", folder / "squeezed.pth"
    with zipfile.ZipFile(folder / "claims.npz", "w") as archive, archive.open("w.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)})
    yield "bomb claims.npz", folder / "claims.npz"
    deep = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    (folder / "deep.pth").write_bytes(deep)
    yield "pickle deep", folder / "deep.pth"


def _header(path: Path, header: Any, data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def damaged(folder: Path, sound: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Safetensors cut short and with bits flipped, half of them in the header."""
    draw, content = random.Random(seed), (sound / "model.safetensors").read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for number in range(count):
        case = folder / f"damaged-{number}"
        shutil.copytree(sound, case)  # with its config: all but the damage is in order
        path = case / "model.safetensors"
        if number % 3 == 0:
            path.write_bytes(content[: draw.randrange(header if number % 2 else len(content))])
            yield "safetensors cut short", case
            continue
        flipped = bytearray(content)
        for _ in range(draw.choice((1, 1, 3))):
            flipped[draw.randrange(header if number % 2 else len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        yield "safetensors with bits flipped", case


def lies(folder: Path) -> Iterator[Case]:
    """Safetensors headers that say what is not so."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    twice = (
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    )
    headers: dict[str, tuple[Any, bytes, int | None]] = {
        "length of 2^63": ({"a": entry}, bytes(4), 2**63),
        "length of 2^64-1": ({"a": entry}, bytes(4), 2**64 - 1),
        "length of 0": ({"a": entry}, bytes(4), 0),
        "overlap": ({"a": entry, "b": entry | {"data_offsets": [2, 6]}}, bytes(6), None),
        "hole": ({"a": entry, "b": entry | {"data_offsets": [8, 12]}}, bytes(12), None),
        "beyond the end": ({"a": entry | {"data_offsets": [0, 2**40]}}, bytes(4), None),
        "negative": ({"a": entry | {"data_offsets": [-4, 0]}}, bytes(4), None),
        "backwards": ({"a": entry | {"data_offsets": [4, 0]}}, bytes(4), None),
        "the same key twice": (twice, bytes(4), None),
        "unknown type": ({"a": entry | {"dtype": "Q8"}}, bytes(4), None),
        "type of another width": ({"a": entry | {"dtype": "F64"}}, bytes(4), None),
        "shape of other size": ({"a": entry | {"shape": [3]}}, bytes(4), None),
        "huge shape": ({"a": entry | {"shape": [2**32, 2**32, 4]}}, bytes(4), None),
        "shape that wraps round to 4 bytes": ({"a": entry | {"shape": [2**62 + 1, 4]}}, bytes(4), None),
        "shape of strings": ({"a": entry | {"shape": ["1"]}}, bytes(4), None),
        "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4), None),
        "nesting": (b'{"a":' * 20_000, b"", None),
        "list": (b"[]", b"", None),
        "empty": ({}, b"", None),
        "names without end": ({"a" * 1_000_000: entry}, bytes(4), None),
    }
    for number, (name, (header, data, length)) in enumerate(headers.items()):
        yield f"header: {name}", _header(folder / f"lie-{number}.safetensors", header, data, length)


def wrong_tensors(folder: Path, sound: Path) -> Iterator[Case]:
    """Every tensor in turn of another shape, of another type, absent, not a number; config.json stays as it was."""
    tensors = load_file(sound / "model.safetensors")
    for number, key in enumerate(sorted(tensors)):
        value = tensors[key]
        others = {
            "flat": value.flatten()[:-1].contiguous(),
            "transposed": value.mT.contiguous() if value.dim() > 1 else value[None],
            "empty": value[:0].contiguous(),
            "scalar": torch.tensor(1.0),
            "longer": torch.cat([value, value]),
            "whole": value.long(),
            "bool": value.bool(),
            "double": value.double(),
            "nan": torch.full_like(value, float("nan")),
            "inf": torch.full_like(value, float("inf")),
            "absent": None,
        }
        for name, other in others.items():
            case = folder / f"tensor-{number}-{name}"
            shutil.copytree(sound, case)
            changed = {each: held for each, held in tensors.items() if each != key}
            save_file(changed if other is None else changed | {key: other}, case / "model.safetensors")
            yield f"tensor {name}", case


def indexes(folder: Path, sound: Path) -> Iterator[Case]:
    """Shards that are missing, elsewhere, links, or the index itself."""
    tensors = load_file(sound / "model.safetensors")
    outside = folder / "outside.safetensors"
    save_file(tensors, outside)
    shards: dict[str, Any] = {
        "missing": "model-00001-of-00001.safetensors",
        "parent": "../outside.safetensors",
        "absolute": str(outside.absolute()),
        "itself": "model.safetensors.index.json",
        "backslash": "..\\outside.safetensors",
        "drive": "C:outside.safetensors",
        "null": "a\0.safetensors",
        "dots": "..",
        "number": 5,
        "list": ["a"],
        "nothing": None,
        "folder": "inner.safetensors",
        "link": "link.safetensors",
        "loop": "loop.safetensors",
        "device": "device.safetensors",
        "pipe": "pipe.safetensors",
    }
    for name, shard in shards.items():
        case = folder / f"index-{name}"
        case.mkdir()
        shutil.copy(sound / "config.json", case)
        (case / "inner.safetensors").mkdir()
        (case / "link.safetensors").symlink_to(outside.absolute())
        (case / "loop.safetensors").symlink_to("loop.safetensors")
        (case / "device.safetensors").symlink_to("/dev/zero")
        if hasattr(os, "mkfifo"):
            os.mkfifo(case / "pipe.safetensors")
        (case / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, shard)}))
        yield f"index {name}", case
    for name, text in {"nested": "[" * 100_000, "cut": '{"weight_map": {', "binary": "\udcff", "empty": ""}.items():
        case = folder / f"index-text-{name}"
        case.mkdir()
        (case / "model.safetensors.index.json").write_text(text, errors="surrogateescape")
        yield f"index text {name}", case
    for kind, target in (("link", outside.absolute()), ("device", Path("/dev/zero"))):
        for file in ("model.safetensors", "config.json"):
            case = folder / f"{kind}-{file}"
            shutil.copytree(sound, case)
            (case / file).unlink()
            (case / file).symlink_to(target)
            yield f"{file} is a {kind} out of the folder", case


def config_lies(folder: Path, sound: Path, every: int = 1) -> Iterator[Case]:
    """Replace every value of every JSON file next to the weights by each of `VALUES`, and damage the files themselves.

    `every` takes one of so many.
    """
    number = 0
    for file in sorted(sound.glob("*.json")):
        content = json.loads(file.read_text())
        for path in _paths(content):
            for value in VALUES:
                changed = copy.deepcopy(content)
                container = functools.reduce(lambda outer, key: outer[key], path[:-1], changed)
                container[path[-1]] = value
                number += 1
                if number % every == 0:
                    yield f"{sound.name}/{file.name}", _with_file(folder, sound, file.name, json.dumps(changed), number)
        for text in ("", "[]", "null", "5", "{" * 50_000, '{"a":' * 50_000, "\udcff\udcfe", '{"vitreous": []}', "{}"):
            number += 1
            yield f"{sound.name}/{file.name}", _with_file(folder, sound, file.name, text, number)


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from _paths(inner, (*before, key))


def _with_file(folder: Path, sound: Path, name: str, text: str, number: int) -> Path:
    case = folder / f"{sound.name}-lie-{number}"
    case.mkdir()
    for file in sound.iterdir():
        if file.name != name:
            os.link(file, case / file.name)
    (case / name).write_text(text, errors="surrogateescape")
    return case


def cases(folder: Path, canary: Path, *, flips: int = 600, every: int = 1) -> Iterator[Case]:
    """All of them, one after the other; each may be removed once it was tried."""
    sound = write_sound(folder)
    yield from pickles(folder, canary)
    yield from bombs(folder)
    yield from damaged(folder, sound["timm"], flips)
    yield from lies(folder)
    yield from wrong_tensors(folder, sound["vitreous"])
    yield from indexes(folder, sound["timm"])
    for kind in SOUND:
        yield from config_lies(folder, sound[kind], every)
