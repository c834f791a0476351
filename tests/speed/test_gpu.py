"""Fewer trips to memory and 8-bit products: the plain model's logits, within what each way promises."""

import pytest
import torch

from conftest import noise
from vitreous.data.preprocess import Preprocess
from vitreous.models.hooks import activate
from vitreous.models.vit import ViT, ViTConfig
from vitreous.speed import cpu as packed
from vitreous.speed import fp8 as eight
from vitreous.speed import gpu as lean
from vitreous.speed.fold import folded
from vitreous.speed.optimize import optimize
from vitreous.weights.card import Card

SMALL = {"image_size": 16, "patch_size": 4, "width": 48, "depth": 3, "heads": 3, "classes": 7}
FAMILIES = {
    "plain": {},
    "registers, layer scale": {"registers": 2, "layer_scale": 0.1},
    "query and key norms": {"qk_norm": True},
    "distilled": {"distillation_token": True, "distillation_head": True},
}


def made(**changes):
    torch.manual_seed(1)
    model = noise(ViT(ViTConfig(**{**SMALL, **changes}))).eval()
    return model, torch.randn(4, 3, 16, 16)


def distance(ours, theirs):
    return ((ours.float() - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_lean_gives_the_models_logits(family):
    model, x = made(**FAMILIES[family])
    network = folded(model)
    assert lean.fits(network)
    assert distance(lean.lean(network, x, inside=False), model(x)) < 1e-5
    # GELU's tanh form lies up to 5e-4 beside: more than rounding in fp32, less in bf16
    assert 1e-6 < distance(lean.lean(network, x, inside=True), model(x)) < 2e-3


@pytest.mark.slow
@torch.no_grad()
def test_with_attention_for_few_tokens_the_logits_are_the_models():
    """The kernel itself is in test_kernels.py; here its plain version, and who it is for."""
    for family, fits in (("plain", True), ("distilled", True), ("query and key norms", False)):
        model, x = made(**FAMILIES[family], activation="gelu_tanh")
        network = folded(model)
        assert lean.fits_few(network) is fits
        if fits:
            assert distance(lean.lean(network, x, few=True), model(x)) < 1e-5
            compiled = torch.compile(lambda x, network=network: lean.lean(network, x, few=True), fullgraph=True)
            assert distance(compiled(x), model(x)) < 1e-5
    assert not lean.fits_few(folded(made(heads=6)[0]))  # heads of 8 channels


@pytest.mark.parametrize("inside", [True, False])
@torch.no_grad()
def test_a_network_of_gelus_tanh_form_keeps_it(inside):
    model, x = made(activation="gelu_tanh")
    assert distance(lean.lean(folded(model), x, inside=inside), model(x)) < 1e-5


class Bystander:
    """Looks at whatever runs in this thread, and changes nothing."""

    records = True

    def on_value(self, module, name, value):
        return value

    def changes_attention(self, module):
        return False

    def on_attention(self, module, q, k, mask):
        pass


@pytest.mark.skipif(not packed.available(), reason="this torch has no oneDNN")
@torch.no_grad()
def test_who_looks_at_another_model_does_not_change_what_is_computed():
    model, x = made(**FAMILIES["distilled"])  # its heads read two tokens
    network = folded(model)
    run = packed.packed(network, len(x))
    with activate(Bystander()):
        assert distance(run(x), model(x)) < 1e-5
        assert distance(lean.lean(network, x, inside=False), model(x)) < 1e-5


@torch.no_grad()
def test_images_are_left_as_they_were():
    model, x = made()
    before = x.clone()
    network = folded(model)
    assert torch.equal(lean.lean(network, x), lean.lean(network, x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("changes", [{"swiglu": True}, {"pool": "mean"}, {"activation": "quick_gelu"}])
def test_other_networks_do_not_fit(changes):
    model, _ = made(**changes)
    assert not lean.fits(folded(model))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_fp8_is_near(family, monkeypatch):
    model, x = made(**FAMILIES[family])
    shares = []
    for narrow in (0, 100, 1000):  # all products in fp8, those behind GELU, none
        monkeypatch.setattr(eight, "NARROW", narrow)
        network = eight.Eight(folded(model).bfloat16())
        kinds = [type(layer) is eight.Product8 for layers in network.layers for layer in layers]
        assert kinds == [narrow == 0, narrow == 0, narrow < 1000] * 2
        shares.append(distance(network(x.bfloat16()), model(x)))
    assert all(0.15 > share > 1e-3 for share in shares[:2])  # numbers of 4 binary digits, where they are used
    assert shares[2] < shares[0]


@torch.no_grad()
def test_fp8_cuts_what_is_too_large_for_it(monkeypatch):
    monkeypatch.setattr(eight, "NARROW", 0)
    model, x = made()
    model.blocks[0].mlp.fc1.bias.fill_(1000.0)
    logits = eight.Eight(folded(model).bfloat16())(x.bfloat16())
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(("capability", "product", "says"), [
    ((9, 0), True, None),
    ((8, 9), True, None),
    ((8, 6), True, "this one has 8.6: try bf16"),
    ((9, 0), False, "has no product of fp8 numbers: try bf16"),
])  # fmt: skip
def test_fp8_asks_the_gpu_and_torch(capability, product, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    if not product:
        monkeypatch.delattr(torch, "_scaled_mm")
    message = eight.supports(torch.device("cuda"))
    assert message is None if says is None else says in message


@pytest.mark.slow
def test_fp8_is_refused_where_it_cannot_run():
    model, _ = made()
    model.card = Card("small", Preprocess(size=(16, 16), resize=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3))
    with pytest.raises(ValueError, match="fp8 needs an NVIDIA GPU, this is cpu"):
        optimize(model, "fp8")
    with pytest.raises(ValueError, match="made for widths below 3136"):
        eight.Eight(ViT(ViTConfig(**{**SMALL, "width": 3200, "heads": 50, "depth": 1})))
    with pytest.raises(ValueError, match="widths that 16 divides, got 40: try bf16"):
        eight.Eight(ViT(ViTConfig(**{**SMALL, "width": 40, "heads": 5, "depth": 1})))
