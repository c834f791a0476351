"""Whole numbers: what a product of int8 numbers gives, beside one of floats."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conftest import noise
from vitreous.models.last_block import logits_only
from vitreous.models.vit import Attention, ViT, ViTConfig
from vitreous.speed import int8 as integers
from vitreous.speed import int8_cpu as whole
from vitreous.speed.int8 import Integer, filled, to_integers


@pytest.fixture(params=["laid out once", "laid out at each call"])
def each_product(request, monkeypatch):
    if request.param == "laid out at each call":
        monkeypatch.setattr(integers, "available", lambda: False)
    elif not whole.available():
        pytest.skip("this CPU or this torch has no exact product of int8 numbers with a weight laid out before")
    monkeypatch.setattr(integers, "LARGE", 1)


@torch.no_grad()
def test_whole_numbers_come_out_exact(each_product):
    layer = nn.Linear(16, 8)
    layer.weight.copy_(torch.randint(-127, 128, (8, 16)))
    layer.weight[:, 0] = 127  # so that the scale of each output is 1
    x = torch.randint(0, 256, (5, 16)).float()
    x[:, :2] = torch.tensor([0.0, 255.0])  # so that a step of each token is 1
    assert torch.allclose(Integer(layer)(x), layer(x), rtol=1e-5)


@torch.no_grad()
def test_only_large_products_have_their_weight_laid_out_before(monkeypatch):
    taken = []
    monkeypatch.setattr(integers, "available", lambda: True)
    monkeypatch.setattr(integers, "whole_product", lambda x, weight, scale: taken.append(len(x)) or x[:, :8] * scale)
    monkeypatch.setattr(integers, "LARGE", 3 * 16 * 8)
    layer = Integer(nn.Linear(16, 8))
    for rows in (2, 3, 4):
        layer(torch.randn(rows, 16))
    assert taken == [3, 4]


@torch.no_grad()
def test_an_offset_serves_numbers_of_one_sign(each_product):
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32), torch.rand(50, 64) + 3.0
    error = (Integer(layer)(x) - layer(x)).abs().max() / layer(x).abs().max()
    assert error < 0.02  # without an offset four fifths of the range would lie idle


@torch.no_grad()
def test_a_token_that_is_all_the_same_and_no_bias_are_no_trouble(each_product):
    layer = nn.Linear(16, 8, bias=False)
    out = Integer(layer)(torch.full((2, 3, 16), 0.5))
    assert out.shape == (2, 3, 8)
    assert torch.allclose(out, layer(torch.full((2, 3, 16), 0.5)), atol=0.05)
    assert torch.isfinite(Integer(layer)(torch.zeros(20, 16))).all()


@torch.no_grad()
def test_all_products_of_the_blocks_are_of_whole_numbers_but_the_one_that_is_read_in_part(each_product):
    model = noise(ViT(ViTConfig(image_size=16, patch_size=4, width=64, depth=3, heads=4, classes=5))).eval()
    x = torch.randn(2, 3, 16, 16)
    theirs = model(x)
    to_integers(model)
    kinds = [type(module).__name__ for module in model.blocks.modules()]
    assert (kinds.count("Integer"), kinds.count("Linear")) == (11, 1)
    ours = logits_only(model, x)
    assert 1e-5 < (ours - theirs).abs().max() / theirs.abs().max() < 0.1


@pytest.mark.parametrize("qk_norm", [False, True])
@torch.no_grad()
def test_attention_multiplies_tokens_in_bf16_where_the_cpu_does(qk_norm, monkeypatch):
    config = ViTConfig(image_size=16, patch_size=4, width=64, depth=3, heads=4, classes=5, qk_norm=qk_norm)
    model, x = noise(ViT(config)).eval(), torch.randn(2, 17, 64)
    plain = [block.attn(x) for block in model.blocks]
    for has, kinds in ((False, ["Attention"] * 3), (True, ["Attention16", "Attention16", "Attention"])):
        monkeypatch.setattr(integers, "multiplies_bf16", lambda device, has=has: has)
        monkeypatch.setattr(integers, "fits", lambda layer: False)  # its other products as they were
        to_integers(model)
        assert [type(block.attn).__name__ for block in model.blocks] == kinds
    for block, theirs, exact in zip(model.blocks, plain, (False, False, True), strict=True):
        error = (block.attn(x) - theirs).abs().max() / theirs.abs().max()
        assert error == 0 if exact else 1e-5 < error < 0.02
    mask = torch.ones(17, 17, dtype=torch.bool).tril()
    theirs = Attention.forward(model.blocks[0].attn, x, mask)
    assert torch.equal(model.blocks[0].attn(x, mask), theirs)
    monkeypatch.setattr(integers, "MOST_TOKENS", 16)
    assert torch.equal(model.blocks[0].attn(x), plain[0])


@torch.no_grad()
def test_rows_that_fill_a_product_up_do_not_come_out(monkeypatch):
    layer, x = nn.Linear(16, 8), torch.randn(3, 16)
    plain = Integer(layer)(x)
    monkeypatch.setattr(integers, "filled", lambda rows, fewest: filled(rows, 32))  # as on a GPU
    assert torch.equal(Integer(layer)(x), plain)


def test_a_gpus_kernel_is_given_sides_that_it_takes():
    on_gpu = SimpleNamespace(is_cuda=True)
    sides = [(16, 8), (12, 8), (16, 12)]
    assert [integers.fits(SimpleNamespace(weight=on_gpu, in_features=i, out_features=o)) for i, o in sides] == [
        True,
        False,
        False,
    ]
    assert integers.fits(nn.Linear(12, 9))


def test_where_int8_cannot_run_it_says_so(monkeypatch):
    assert integers.supports(torch.device("cpu")) is None
    assert "this is mps: try bf16" in integers.supports(torch.device("mps"))
    monkeypatch.delattr(torch, "_int_mm")
    assert "no product of int8 numbers: try bf16" in integers.supports(torch.device("cpu"))
