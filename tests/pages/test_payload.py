import gzip
import time
from base64 import b85decode

import numpy as np
import torch
from payloads import opened

from vitreous.pages.payload import Payload


def test_arrays_come_back_as_they_went():
    payload = Payload({"hello": "wörld"})
    values = torch.randn(3, 5)
    payload.add_bytes("file", b"abc")  # three bytes: what follows has to be aligned anew
    payload.add("values", values)
    header, array, block = opened(payload)
    assert header["hello"] == "wörld"
    np.testing.assert_array_equal(array("values"), values.numpy())
    assert block[: header["files"]["file"]["length"]] == b"abc"


def test_the_block_and_every_float_array_are_aligned():
    payload = Payload({"odd": "x" * 13})
    payload.add("bytes", np.zeros((1, 3), np.uint8))
    payload.add("floats", np.ones(2, np.float32))
    raw = payload.to_bytes()
    assert (4 + int.from_bytes(raw[:4], "little")) % 8 == 0
    assert payload.header["arrays"]["floats"]["offset"] % 4 == 0


def test_a_scaled_row_is_within_half_a_step_of_its_own_largest_value():
    rows = torch.rand(4, 7) * torch.tensor([[1.0], [1e-4], [50.0], [0.0]])
    payload = Payload()
    payload.add("rows", rows, scaled=1)
    _, array, _ = opened(payload)
    scale = array("rows.scale")
    found = array("rows") * scale[:, None]
    assert array("rows").dtype == np.uint8
    assert (np.abs(found - rows.numpy()) <= rows.numpy().max(axis=1, keepdims=True) / 255 / 2 + 1e-12).all()


def test_values_with_a_sign_keep_it():
    payload = Payload()
    payload.add("signed", torch.tensor([[-1.0, 0.5, 1.0]]), scaled=1)
    _, array, _ = opened(payload)
    assert array("signed").tolist() == [[-127, 64, 127]]


def test_the_text_is_the_compressed_bytes_and_the_same_on_another_day(monkeypatch):
    payload = Payload()
    payload.add("values", torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    text = payload.to_text()
    assert "<" not in text  # it stands in a script element as it is
    assert gzip.decompress(b85decode(text.replace(",", "<"))) == payload.to_bytes()
    monkeypatch.setattr(time, "time", lambda: 86_400.0)  # gzip would write it down
    assert payload.to_text() == text
