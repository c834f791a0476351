"""Read a weights file (safetensors, pickle, npz, sharded) as named tensors, safely; number formats, NaN in it.

`read` takes a path and returns the tensors and the wrappers it removed. The first bytes of a file decide its format,
not its suffix. No code in a file is executed, and every size in it is compared with the bytes that are present before
memory is allocated.

A torch pickle passes two checks: `PickleScan` goes through its instructions and raises for anything but the allowed
classes and sizes; then `torch.load(weights_only=True)` builds the tensors.

Tensors of safetensors files and of zipped pickles stay in the file until they are used (memory-mapped, copy on write):
do not overwrite a file whose tensors are in use.
"""

import io
import json
import math
import mmap
import pickle
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open

from vitreous.runtime.memory import is_out_of_memory
from vitreous.weights.safety import CheckpointError
from vitreous.weights.safety.npz import ALWAYS_ALLOWED, MAX_EXPANSION, checked_members, read_npz
from vitreous.weights.safety.pickle_scan import OLD_MAGIC, PLACEHOLDERS, PickleScan
from vitreous.weights.unwrap import RawCheckpoint, unwrap

SAFE_GLOBALS_LOCK = threading.Lock()  # torch keeps its list of safe globals for the whole process
MAX_INDEX_BYTES = 100 * 2**20  # bytes of an index.json


def read(path: Path) -> RawCheckpoint:
    """Read one weights file: safetensors, a torch pickle (zipped or old), or an `.npz` of NumPy arrays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"epoch": 7, "state_dict": {"module.head.bias": torch.ones(2)}}, f"{folder}/tiny.pth")
    ...     checkpoint = read(Path(folder, "tiny.pth"))
    >>> checkpoint.tensors, checkpoint.wrappers
    ({'head.bias': tensor([1., 1.])}, ('state_dict', 'module.'))
    """
    with _naming(path):
        return _finish(_load(path), path.stat().st_size)


def read_sharded(index: Path, shards: Sequence[Path]) -> RawCheckpoint:
    """Read a checkpoint of several files; the `weight_map` of `index` states which tensor is in which file."""
    with _naming(index):
        weight_map = _read_index(index)
        files = {shard.name: shard for shard in shards}
        if missing := sorted(set(weight_map.values()) - set(files)):
            raise CheckpointError(f"expected the shards {', '.join(missing)}, got none: fetch them too")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(weight_map.values())):
        with _naming(files[name]):
            loaded = _load(files[name])
            if not isinstance(loaded, Mapping):
                raise CheckpointError(f"expected named tensors, got {type(loaded).__name__}: fetch it again")
            if twice := sorted(map(str, set(loaded) & set(tensors))):
                raise CheckpointError(f"{twice[0]} is in another shard too: fetch the shards of one model")
            listed_here = (tensor for tensor, shard in weight_map.items() if shard == name)
            if lost := [tensor for tensor in listed_here if not isinstance(loaded.get(tensor), torch.Tensor)]:
                raise CheckpointError(f"lacks {lost[0]}, which {index.name} lists: fetch it again")
            tensors |= loaded
    with _naming(index):
        ordered = {name: tensors[name] for name in weight_map} | tensors  # those too that it does not list
        return _finish(ordered, sum(files[name].stat().st_size for name in set(weight_map.values())))


def nonfinite(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Count NaN and infinite values in the tensors read from a weights file; tensors without any are not listed.

    >>> nonfinite({"weight": torch.tensor([1.0, float("nan"), float("inf")]), "bias": torch.zeros(2)})
    {'weight': 2}
    """
    counts = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            numbers = tensor.float() if tensor.itemsize == 1 else tensor  # older torch cannot compare float8
            if not math.isfinite(numbers.sum()):  # one pass; a sum of large numbers may be infinite too
                counts[name] = tensor.numel() - int(torch.isfinite(numbers).sum())
    return {name: count for name, count in counts.items() if count}


def data_types(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the number formats in which tensors were read from a weights file, such as `float16, float32`."""
    return ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in tensors.values()}))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn any error of reading a weights file into one line that begins with the file's name."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path.name}: {_one_line(str(error))}") from error
    except PermissionError as error:
        raise CheckpointError(f"{path.name}: may not be opened: check its permissions") from error
    except Exception as error:
        if is_out_of_memory(error):
            held = path.stat().st_size / 2**30
            raise CheckpointError(
                f"{path.name}: its {held:,.1f} GiB do not fit into memory: end other programs, or use a larger machine"
            ) from error
        reason = _one_line(f"{type(error).__name__}: {error}")
        raise CheckpointError(f"{path.name}: cut short or damaged ({reason}): fetch it again") from error


def _one_line(text: str) -> str:
    """Make a message about a weights file fit for a terminal: names in it may be long or hold control characters."""
    text = text if len(text) <= 400 else f"{text[:200]} … {text[-199:]}"
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _finish(loaded: object, file_bytes: int) -> RawCheckpoint:
    """Finish reading a weights file: unwrap its tensors; raise if tied weights use its bytes too many times."""
    found = unwrap(loaded)
    total = sum(tensor.numel() * tensor.itemsize for tensor in found.tensors.values())
    if total > max(MAX_EXPANSION * file_bytes, ALWAYS_ALLOWED):
        raise CheckpointError(f"tensors of {total:,} bytes in {file_bytes:,} bytes of file: do not trust it")
    return found


# Files that hold no weights: first bytes in lower case → message.
OTHER_FILES = {
    b"version https://git-lfs": "is a Git LFS pointer, not the weights: run `git lfs pull` in its repository",
    b"<!doctype": "is a web page, not weights: open the link in a browser and copy the download address",
    b"<html": "is a web page, not weights: open the link in a browser and copy the download address",
    b"<?xml": "is an XML answer of a web server, not weights: look inside for its error message",
    b"{": "is JSON, not weights: if it lists shards, pass them together with it",
    b"\x93numpy": "is one NumPy array without a name: save named arrays with numpy.savez",
    b"\x89hdf": "is an HDF5 file (Keras): load it there and save the arrays with numpy.savez",
    b"\x1f\x8b": "is compressed with gzip: unpack it first",
}


def _load(path: Path) -> object:
    """Return the content of a weights file, still wrapped."""
    if path.is_dir():
        raise CheckpointError("is a folder: pass the weights file inside it")
    if not path.is_file():
        raise CheckpointError("no such file: check the path")
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise CheckpointError("is empty: fetch it again")
    # Eight bytes of length, then JSON. Tested first: a length may look like any other format's first bytes.
    if head[8:9] == b"{" and not head[:8].decode("latin1").isprintable():
        with safe_open(path, framework="pt") as tensors:  # checks lengths and offsets against the file
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    if head.startswith(b"PK\x03\x04"):
        return _load_zip(path)
    if head.startswith(b"\x80"):
        return _load_old_pickle(path)
    if head[257:262] == b"ustar":
        raise CheckpointError("is a tar archive: unpack it first")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for beginning, complaint in OTHER_FILES.items():
        if text.startswith(beginning):
            raise CheckpointError(complaint)
    raise CheckpointError(f"expected safetensors, a torch pickle or an npz, got {head[:8]!r}…: fetch it again")


def _load_zip(path: Path) -> object:
    """Load a zip: NumPy arrays, TorchScript or a pickle of torch."""
    with zipfile.ZipFile(path) as archive:
        members = checked_members(archive)
        root = next(iter(members), "").split("/")[0]
        if f"{root}/constants.pkl" in members or any(name.startswith(f"{root}/code/") for name in members):
            raise CheckpointError("is a TorchScript program: torch.jit.load it and save its state_dict()")
        if any(name.endswith(("/archive_format", "serialized_exported_program.json")) for name in members):
            raise CheckpointError("is a program of torch.export: torch.export.load it and save its state_dict()")
        if members and all(name.endswith(".npy") for name in members):
            return read_npz(path)
        if f"{root}/data.pkl" not in members:
            raise CheckpointError(f"is a zip archive of {', '.join([*members][:3])} …: unpack it first")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise CheckpointError("has compressed tensors, which torch never writes: save it with torch.save")
        if sum(member.file_size for member in members.values()) > path.stat().st_size:
            raise CheckpointError("has tensors that overlap in the file: do not trust it")
        scanner = PickleScan()
        scanner.scan(io.BytesIO(archive.read(f"{root}/data.pkl")))
    for key, size in scanner.storages.items():
        member = members.get(f"{root}/data/{key}")
        if member is None or member.file_size != size:
            held = f"{member.file_size:,}" if member else "none"
            raise CheckpointError(f"expected {size:,} bytes for storage {key}, got {held}: fetch it again")
    return _load_pickle(path, memory_mapped=not path.name.endswith(".safetensors"))  # torch.load goes by that suffix


def _load_old_pickle(path: Path) -> object:
    """Load a file that torch.save wrote before version 1.6: five pickles, then each storage's length and bytes."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        if PickleScan().scan(stream) != OLD_MAGIC:
            raise CheckpointError("is a pickle that torch.save did not write: save model.state_dict() with it")
        for _ in ("protocol", "machine"):
            PickleScan().scan(stream)
        scanner = PickleScan()
        scanner.scan(stream)
        keys = PickleScan().scan(stream)
        held = len(stream) - stream.tell()
    if not isinstance(keys, list) or set(keys) != set(scanner.storages):
        raise CheckpointError("lists tensors whose numbers are not in the file: fetch it again")
    claimed = sum(8 + size for size in scanner.storages.values())
    if claimed != held:
        raise CheckpointError(f"expected {claimed:,} bytes of numbers, got {held:,}: fetch it again")
    return _load_pickle(path, memory_mapped=False)


def _load_pickle(path: Path, memory_mapped: bool) -> object:
    """Load a scanned pickle with torch's weights-only reader."""
    with SAFE_GLOBALS_LOCK, torch.serialization.safe_globals([*PLACEHOLDERS]), path.open("rb") as file:
        source = path if memory_mapped else file
        try:
            return torch.load(source, map_location="cpu", weights_only=True, mmap=memory_mapped)
        except pickle.UnpicklingError as error:  # its text would recommend weights_only=False
            raise CheckpointError("torch rejects its pickle as unsafe: save the state_dict() alone") from error


def _read_index(index: Path) -> dict[str, str]:
    """Return the weight map of an `index.json`: tensor → shard."""
    if not index.is_file():
        raise CheckpointError("no such file: check the path")
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise CheckpointError(f"expected an index under {MAX_INDEX_BYTES:,} bytes: fetch it again")
    content = json.loads(index.read_bytes())
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError('expected a JSON object with a "weight_map": pass the index.json of the shards')
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard in ("", ".", "..") or "/" in shard or "\\" in shard:
            raise CheckpointError(f"expected a plain file name for {name}, got {shard!r}: do not trust it")
    return weight_map
