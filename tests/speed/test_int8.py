"""int8 layers against float ones, and the packed product: exact, one for each weight, freed with it."""

import copy
import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conftest import noise
from vitreous.models.last_block import logits_only
from vitreous.models.vit import Attention, ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed import int8
from vitreous.speed.int8 import PACKED, Int8Linear, packed_available, packed_product, padded, to_int8


@pytest.fixture(params=["packed", "not packed"])
def each_product(request, monkeypatch):
    if request.param == "not packed":
        monkeypatch.setattr(int8, "packed_available", lambda: False)
    elif not packed_available():
        pytest.skip("this CPU or this torch has no exact packed int8 product")
    monkeypatch.setattr(int8, "LARGE", 1)


@torch.no_grad()
def test_integers_are_multiplied_exactly(each_product):
    layer = nn.Linear(16, 8)
    layer.weight.copy_(torch.randint(-127, 128, (8, 16)))
    layer.weight[:, 0] = 127  # so that the scale of each output is 1
    x = torch.randint(0, 256, (5, 16)).float()
    x[:, :2] = torch.tensor([0.0, 255.0])  # so that a step of each token is 1
    assert torch.allclose(Int8Linear(layer)(x), layer(x), rtol=1e-5)


@torch.no_grad()
def test_only_large_products_use_a_packed_weight(monkeypatch):
    taken = []
    monkeypatch.setattr(int8, "packed_available", lambda: True)
    monkeypatch.setattr(int8, "packed_product", lambda x, weight, scale: taken.append(len(x)) or x[:, :8] * scale)
    monkeypatch.setattr(int8, "LARGE", 3 * 16 * 8)
    layer = Int8Linear(nn.Linear(16, 8))
    for rows in (2, 3, 4):
        layer(torch.randn(rows, 16))
    assert taken == [3, 4]


@torch.no_grad()
def test_the_zero_point_helps_numbers_of_one_sign(each_product):
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32), torch.rand(50, 64) + 3.0
    error = (Int8Linear(layer)(x) - layer(x)).abs().max() / layer(x).abs().max()
    assert error < 0.02  # without a zero point four fifths of the range would be unused


@torch.no_grad()
def test_constant_tokens_and_layers_without_bias_work(each_product):
    layer = nn.Linear(16, 8, bias=False)
    out = Int8Linear(layer)(torch.full((2, 3, 16), 0.5))
    assert out.shape == (2, 3, 8)
    assert torch.allclose(out, layer(torch.full((2, 3, 16), 0.5)), atol=0.05)
    assert torch.isfinite(Int8Linear(layer)(torch.zeros(20, 16))).all()


@torch.no_grad()
def test_all_linear_layers_of_the_blocks_are_int8_except_the_last_qkv(each_product):
    model = noise(ViT(ViTConfig(image_size=16, patch_size=4, width=64, depth=3, heads=4, classes=5))).eval()
    x = torch.randn(2, 3, 16, 16)
    theirs = model(x)
    to_int8(model)
    kinds = [type(module).__name__ for module in model.blocks.modules()]
    assert (kinds.count("Int8Linear"), kinds.count("Linear")) == (11, 1)
    ours = logits_only(model, x)
    assert 1e-5 < (ours - theirs).abs().max() / theirs.abs().max() < 0.1


@pytest.mark.parametrize("qk_norm", [False, True])
@torch.no_grad()
def test_attention_is_bf16_if_the_cpu_multiplies_bf16(qk_norm, monkeypatch):
    config = ViTConfig(image_size=16, patch_size=4, width=64, depth=3, heads=4, classes=5, qk_norm=qk_norm)
    model, x = noise(ViT(config)).eval(), torch.randn(2, 17, 64)
    plain = [block.attn(x) for block in model.blocks]
    for has, kinds in ((False, ["Attention"] * 3), (True, ["Bf16Attention", "Bf16Attention", "Attention"])):
        monkeypatch.setattr(int8, "multiplies_bf16", lambda device, has=has: has)
        monkeypatch.setattr(int8, "fits", lambda layer: False)  # keep the other layers
        to_int8(model)
        assert [type(block.attn).__name__ for block in model.blocks] == kinds
    for block, theirs, exact in zip(model.blocks, plain, (False, False, True), strict=True):
        error = (block.attn(x) - theirs).abs().max() / theirs.abs().max()
        assert error == 0 if exact else 1e-5 < error < 0.02
    mask = torch.ones(17, 17, dtype=torch.bool).tril()
    theirs = Attention.forward(model.blocks[0].attn, x, mask)
    assert torch.equal(model.blocks[0].attn(x, mask), theirs)
    monkeypatch.setattr(int8, "MAX_TOKENS", 16)
    assert torch.equal(model.blocks[0].attn(x), plain[0])


@torch.no_grad()
def test_padding_rows_are_not_returned(monkeypatch):
    layer, x = nn.Linear(16, 8), torch.randn(3, 16)
    plain = Int8Linear(layer)(x)
    monkeypatch.setattr(int8, "padded", lambda rows, count: padded(rows, 32))  # as on a GPU
    assert torch.equal(Int8Linear(layer)(x), plain)


def test_layers_whose_sides_a_gpu_kernel_does_not_take_stay():
    on_gpu = SimpleNamespace(is_cuda=True)
    sides = [(16, 8), (12, 8), (16, 12)]
    assert [int8.fits(SimpleNamespace(weight=on_gpu, in_features=i, out_features=o)) for i, o in sides] == [
        True,
        False,
        False,
    ]
    assert int8.fits(nn.Linear(12, 9))


def test_unsupported_devices_get_a_reason(monkeypatch):
    assert int8.supports(torch.device("cpu")) is None
    assert "this is mps: try bf16" in int8.supports(torch.device("mps"))
    monkeypatch.delattr(torch, "_int_mm")
    assert "no int8 product: try bf16" in int8.supports(torch.device("cpu"))


needs_packed = pytest.mark.skipif(
    not packed_available(), reason="this CPU or this torch has no exact packed int8 product"
)


def numbers(rows: int, inner: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randint(0, 256, (rows, inner), dtype=torch.uint8)
    return x, torch.randint(-127, 128, (inner, columns), dtype=torch.int8), torch.rand(columns) + 0.5


@pytest.mark.slow
@needs_packed
@pytest.mark.parametrize("sides", [(1, 1, 1), (3, 17, 5), (197, 768, 2304), (16, 4096, 8)])
def test_packed_sums_are_exact(sides):
    x, weight, scale = numbers(*sides)
    exact = (x.double() @ weight.double()) * scale.double()
    assert ((packed_product(x, weight, scale) - exact).abs() <= 2e-7 * exact.abs()).all()


@pytest.mark.slow
@needs_packed
def test_every_weight_has_its_own_packed_copy_which_is_freed_with_it():
    held = len(PACKED)
    x, first, scale = numbers(4, 32, 16)
    second = first.flip(1).contiguous()
    for _ in range(2):
        assert torch.equal(packed_product(x, second, scale.flip(0)).flip(1), packed_product(x, first, scale))
    assert len(PACKED) == held + 2
    del first, second
    gc.collect()
    assert len(PACKED) == held


@needs_packed
def test_a_changed_weight_is_packed_again():
    x, weight, scale = numbers(4, 32, 16)
    before = packed_product(x, weight, scale)
    weight.copy_(weight.flip(1))
    assert torch.equal(packed_product(x, weight, scale), packed_product(x, weight.clone(), scale))
    assert not torch.equal(packed_product(x, weight, scale), before)
    with torch.inference_mode():  # tensors have no version there
        assert torch.equal(packed_product(x, weight.clone(), scale), packed_product(x, weight, scale))


@pytest.mark.slow
@needs_packed
@torch.no_grad()
def test_a_copied_and_a_compiled_layer_give_the_same(monkeypatch):
    monkeypatch.setattr(int8, "LARGE", 1)
    layer, x = Int8Linear(nn.Linear(32, 16)), torch.randn(5, 32)
    plain = layer(x)
    assert layer.weight in PACKED
    assert torch.equal(copy.deepcopy(layer)(x), plain)
    assert torch.allclose(torch.compile(layer, fullgraph=True)(x), plain, atol=1e-6)


@needs_packed
@pytest.mark.parametrize("flaw", ["no such operation", "no folder", "sixteen bits"])
def test_a_cpu_or_torch_without_exact_products_is_detected(flaw, monkeypatch):
    def broken(x, weight, scale):
        if flaw == "no such operation":
            raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_prepack'")
        if flaw == "no folder":
            raise FileNotFoundError(2, "No such file or directory", "/cache")
        return torch.full((len(x), len(scale)), 2.0**15 - 1)

    monkeypatch.setattr(int8, "packed_product", broken)
    assert not packed_available.__wrapped__()
