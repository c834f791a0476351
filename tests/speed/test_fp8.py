"""fp8 layers, multiplied in fp32 here: near the plain model; what cannot run is refused with a reason."""

import pytest
import torch
from fused_models import FAMILIES, SMALL, distance, made

from vitreous.data.preprocess import Preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed import fp8
from vitreous.speed.optimize import optimize
from vitreous.speed.weight_folding import fold
from vitreous.weights.card import Card


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_fp8_logits_and_features_are_near(family, monkeypatch):
    model, x = made(**FAMILIES[family])
    shares = []
    for narrow in (0, 100, 1000):  # all products in fp8, those behind GELU, none
        monkeypatch.setattr(fp8, "NARROW", narrow)
        network = fp8.Fp8ViT(fold(model).bfloat16())
        kinds = [type(layer) is fp8.Fp8Linear for layers in network.layers for layer in layers]
        assert kinds == [narrow == 0, narrow == 0, narrow < 1000] * 2
        shares.append(distance(network(x.bfloat16()), model(x)))
        features = fp8.Fp8ViT(fold(model).bfloat16(), "features")(x.bfloat16())
        assert distance(features, model.features(x)) < 0.15
    assert all(0.15 > share > 1e-3 for share in shares[:2])  # fp8 has 4 binary digits
    assert shares[2] < shares[0]


@torch.no_grad()
def test_values_beyond_fp8s_range_are_clamped(monkeypatch):
    monkeypatch.setattr(fp8, "NARROW", 0)
    model, x = made()
    model.blocks[0].mlp.fc1.bias.fill_(1000.0)
    logits = fp8.Fp8ViT(fold(model).bfloat16())(x.bfloat16())
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(("capability", "product", "says"), [
    ((9, 0), True, None),
    ((8, 9), True, None),
    ((8, 6), True, "this one has 8.6: try bf16"),
    ((9, 0), False, "has no fp8 product: try bf16"),
])  # fmt: skip
def test_support_depends_on_the_gpu_and_torch(capability, product, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    if not product:
        monkeypatch.delattr(torch, "_scaled_mm")
    message = fp8.supports(torch.device("cuda"))
    assert message is None if says is None else says in message


@pytest.mark.slow
def test_unsupported_devices_and_widths_are_refused():
    model, _ = made()
    model.card = Card("small", Preprocess(size=(16, 16), resize=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3))
    with pytest.raises(ValueError, match="fp8 needs an NVIDIA GPU, this is cpu"):
        optimize(model, "fp8")
    with pytest.raises(ValueError, match="supports widths below 3136"):
        fp8.Fp8ViT(ViT(ViTConfig(**{**SMALL, "width": 3200, "heads": 50, "depth": 1})))
    with pytest.raises(ValueError, match="widths that 16 divides, got 40: try bf16"):
        fp8.Fp8ViT(ViT(ViTConfig(**{**SMALL, "width": 40, "heads": 5, "depth": 1})))
