"""Zips of NumPy arrays, sound and hostile."""

import io
import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from weight_files import Call, pickled, refused, same, tensor, write_npz, write_zip, zipped

from vitreous.weights.read import read
from vitreous.weights.safety import pickle_scan as pickle_scan
from vitreous.weights.safety.npz import ALWAYS_ALLOWED


@pytest.mark.parametrize("name", ["f2", "f4", "f8", ">f4", "i1", "i2", "i4", "i8", "u1", "u2", "b1"])
def test_every_numpy_number_survives(tmp_path, name):
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(name)
    np.savez(tmp_path / "w.npz", w=array, fortran=np.asfortranarray(array), scalar=array[1, 2], empty=array[:0])
    found = read(tmp_path / "w.npz").tensors
    assert found["w"].tolist() == found["fortran"].tolist() == array.tolist()
    assert found["scalar"].shape == ()
    assert found["empty"].shape == (0, 3)
    assert found["w"].dtype == torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).dtype


def test_bfloat16_in_an_npz_is_two_raw_bytes(tmp_path):
    numbers = torch.tensor([[1.5, -2.0, 3.0]], dtype=torch.bfloat16)
    np.savez(tmp_path / "w.npz", **{"img/head/bias": numbers.view(torch.int16).numpy().view("V2")})
    same(read(tmp_path / "w.npz").tensors, {"img/head/bias": numbers})


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_npy_version_is_read(tmp_path, version):
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive, archive.open("w.npy", "w") as member:
        np.lib.format.write_array(member, np.arange(3.0), version)
    assert read(tmp_path / "w.npz").tensors["w"].tolist() == [0, 1, 2]


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def with_shape(shape, dtype="<f4", numbers=bytes(12)):
    buffer = io.BytesIO()
    header = {"shape": shape, "fortran_order": False, "descr": dtype}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + numbers


@pytest.mark.parametrize("write", [write_npz, write_zip])
def test_an_encrypted_member_is_refused(tmp_path, write, unbuilt):
    write(tmp_path / "w")
    content = bytearray((tmp_path / "w").read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "w").write_bytes(content)
    refused(tmp_path / "w", "encrypted: unpack it")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["../w.npy", "/w.npy", "a/../../w.npy", "a\\w.npy", "w.npy"])
def test_names_that_repeat_or_leave_the_archive_are_refused(tmp_path, name, unbuilt):
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", npy(np.ones(3)))
        archive.writestr(name, npy(np.ones(3)))
    refused(tmp_path / "w.npz", name)
    with pytest.warns(UserWarning, match="Duplicate name"):
        refused(zipped(tmp_path / "w.pth", {"w": tensor()}, extra=[("archive/data.pkl", pickled({}))]), "twice")


@pytest.mark.parametrize(
    ("member", "word"),
    [
        (npy(np.array([{"a": 1}], dtype=object), allow_pickle=True), "object"),
        (npy(np.array([Call(os.system, "false")], dtype=object), allow_pickle=True), "object"),
        (npy(np.ones(2, np.complex64)), "complex64"),
        (npy(np.array(["a"])), "<U1"),
        (npy(np.ones(2, [("a", "f4"), ("b", "f4")])), "'a'"),
        (npy(np.ones(2, [("a", "i1"), ("b", "i1")])), "'a'"),
        (npy(np.ones(2, "V3")), "V3"),
        (npy(np.array(["2020-01-01"], "M8[D]")), "datetime64"),
        (with_shape((4,)), "holds 12 bytes"),
        (with_shape((2,)), "holds 12 bytes"),
        (with_shape((2**40,)), "holds 12 bytes"),
        (with_shape((2**62, 4)), "holds 12 bytes"),
        (with_shape((-1, -3)), "holds 12 bytes"),
        (with_shape((0, 2**62), numbers=b"x"), "holds 1 bytes"),
        (with_shape((3,), "O", bytes(24)), "object"),
        (npy(np.ones(3))[:-1], "holds 23 bytes"),
        (npy(np.ones(3))[:20], "damaged"),
        (b"", "damaged"),
        (b"\x93NUMPY\x09\x00" + npy(np.ones(3))[8:], "version"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(50), "damaged"),
        (npy(np.ones(3)).replace(b"'<f8'", b"exit("), "damaged"),
    ],
)
def test_an_array_that_contradicts_its_header_is_refused(tmp_path, member, word):
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", member)
    refused(tmp_path / "w.npz", word)


def test_a_zip_bomb_is_refused_before_it_expands(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", npy(np.zeros(ALWAYS_ALLOWED // 4, np.float32)))
    tracemalloc.start()
    refused(tmp_path / "w.npz", "unpack to")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21


def test_a_member_that_expands_beyond_its_stated_size_is_cut_off(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", with_shape((3000,), numbers=bytes(ALWAYS_ALLOWED)))
    content = bytearray((tmp_path / "w.npz").read_bytes())
    stated = struct.pack("<I", 128 + 12_000)
    content[22:26] = stated
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = stated
    (tmp_path / "w.npz").write_bytes(content)
    tracemalloc.start()
    refused(tmp_path / "w.npz", "damaged")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21


def test_a_small_model_full_of_zeros_is_no_bomb(tmp_path):
    np.savez_compressed(tmp_path / "w.npz", w=np.zeros(100_000))
    assert read(tmp_path / "w.npz").tensors["w"].shape == (100_000,)
