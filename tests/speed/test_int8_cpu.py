"""Products of whole numbers with a weight laid out once: exact, for each weight its own, and gone with it."""

import copy
import gc

import pytest
import torch
from torch import nn

from vitreous.speed import int8 as integers
from vitreous.speed import int8_cpu as whole
from vitreous.speed.int8 import Integer
from vitreous.speed.int8_cpu import LAID_OUT, available, whole_product

if not available():
    pytest.skip("this CPU or this torch has no exact product of int8 numbers", allow_module_level=True)


def numbers(rows: int, inner: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randint(0, 256, (rows, inner), dtype=torch.uint8)
    return x, torch.randint(-127, 128, (inner, columns), dtype=torch.int8), torch.rand(columns) + 0.5


@pytest.mark.parametrize("sides", [(1, 1, 1), (3, 17, 5), (197, 768, 2304), (16, 4096, 8)])
def test_sums_are_exact(sides):
    x, weight, scale = numbers(*sides)
    exact = (x.double() @ weight.double()) * scale.double()
    assert ((whole_product(x, weight, scale) - exact).abs() <= 2e-7 * exact.abs()).all()


@pytest.mark.slow
def test_every_weight_has_its_own_and_takes_it_along():
    held = len(LAID_OUT)
    x, first, scale = numbers(4, 32, 16)
    second = first.flip(1).contiguous()
    for _ in range(2):
        assert torch.equal(whole_product(x, second, scale.flip(0)).flip(1), whole_product(x, first, scale))
    assert len(LAID_OUT) == held + 2
    del first, second
    gc.collect()
    assert len(LAID_OUT) == held


def test_a_weight_that_was_written_to_is_laid_out_anew():
    x, weight, scale = numbers(4, 32, 16)
    before = whole_product(x, weight, scale)
    weight.copy_(weight.flip(1))
    assert torch.equal(whole_product(x, weight, scale), whole_product(x, weight.clone(), scale))
    assert not torch.equal(whole_product(x, weight, scale), before)
    with torch.inference_mode():  # where nobody counts
        assert torch.equal(whole_product(x, weight.clone(), scale), whole_product(x, weight, scale))


@pytest.mark.slow
@torch.no_grad()
def test_a_copied_layer_works_and_compiled_it_gives_the_same(monkeypatch):
    monkeypatch.setattr(integers, "LARGE", 1)
    layer, x = Integer(nn.Linear(32, 16)), torch.randn(5, 32)
    plain = layer(x)
    assert layer.weight in LAID_OUT
    assert torch.equal(copy.deepcopy(layer)(x), plain)
    assert torch.allclose(torch.compile(layer, fullgraph=True)(x), plain, atol=1e-6)


@pytest.mark.parametrize("flaw", ["no such operation", "no folder", "sixteen bits"])
def test_a_cpu_or_a_torch_that_cannot_is_found_out(flaw, monkeypatch):
    def broken(x, weight, scale):
        if flaw == "no such operation":
            raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_prepack'")
        if flaw == "no folder":
            raise FileNotFoundError(2, "No such file or directory", "/cache")
        return torch.full((len(x), len(scale)), 2.0**15 - 1)

    monkeypatch.setattr(whole, "whole_product", broken)
    assert not whole.available.__wrapped__()
