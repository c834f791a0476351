"""Read a zip of NumPy arrays as named tensors; check the size of each array before allocating memory for it.

Google publishes ViT weights as `.npz`. NumPy's own reader trusts the sizes in the archive; this reader does not. It
never unpickles, and it reads bfloat16 as big_vision stores it: two raw bytes (`|V2`) for each number.
"""

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.lib import format as npy

from vitreous.weights.safety import CheckpointError

MAX_EXPANSION = 20  # float weights never compress this far: an archive that expands more was made to fill memory
ALWAYS_ALLOWED = 64 * 2**20  # bytes: a tiny model full of zeros does compress further
NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
BFLOAT16 = "V2"


def read_npz(path: Path) -> dict[str, torch.Tensor]:
    """Read every array of an `.npz` file: name without `.npy` → tensor."""
    with zipfile.ZipFile(path) as archive:
        members = checked_members(archive)
        total, on_disk = sum(member.file_size for member in members.values()), path.stat().st_size
        if total > max(MAX_EXPANSION * on_disk, ALWAYS_ALLOWED):
            raise CheckpointError(f"{on_disk:,} bytes unpack to {total:,}, as weights never do: do not trust it")
        headers = {name: _header(archive, member) for name, member in members.items()}
        tensors = {name: _tensor(archive, members[name], header) for name, header in headers.items()}
    return {name.removesuffix(".npy"): tensor for name, tensor in tensors.items()}


def checked_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip of arrays by name; reject a name used twice or outside the folder, and encryption."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = PurePosixPath(member.filename)
        if member.filename in members:
            raise CheckpointError(f"{member.filename} is in the archive twice: save it again")
        if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
            raise CheckpointError(f"expected plain names in the archive, got {member.filename}: do not trust it")
        if member.flag_bits & 1:
            raise CheckpointError(f"{member.filename} is encrypted: unpack it with its password and save it again")
        members[member.filename] = member
    return members


@dataclass(frozen=True)
class _Header:
    """Shape and type of an array in an npz file, as its header states them."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype
    start: int  # offset of the first number


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    """Read the header of an array in an npz file, and check it against the bytes that the zip holds for it."""
    name = member.filename
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise CheckpointError(f"expected .npy version 1 to 3 in {name}, got {version}: save it again")
        # Version 3 differs from 2 only in the encoding of field names, and arrays with fields are rejected below.
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = read_header(stream)
        start = stream.tell()
    if dtype.str[1:] not in (*NUMBERS, BFLOAT16) or dtype.fields or dtype.subdtype:
        raise CheckpointError(f"expected plain numbers in {name}, got {dtype}: save it as float32")
    held = member.file_size - start
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != held:
        raise CheckpointError(f"{name} says {shape} of {dtype} but holds {held:,} bytes: fetch it again")
    return _Header(shape, fortran_order, dtype, start)


def _tensor(archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: _Header) -> torch.Tensor:
    """Read a member of an npz file as a tensor."""
    with archive.open(member) as stream:
        raw = stream.read(member.file_size)[header.start :]  # at most the stated size; zipfile compares the checksum
    is_bfloat16 = header.dtype.kind == "V"
    numbers = np.frombuffer(raw, "<i2" if is_bfloat16 else header.dtype)
    numbers = numbers.reshape(header.shape, order="F" if header.fortran_order else "C")
    tensor = torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("=")))  # a copy that may be written to
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor
