"""The fused forward passes give the plain model's logits and features; the GPU's runs in plain torch here."""

import pytest
import torch
from fused_models import FAMILIES, distance, made
from torch import nn

from vitreous.models.hooks import Hook, Turn, activate
from vitreous.speed.fused_forward import fits, fits_own_attention, fused_forward, pack, packed_forward
from vitreous.speed.onednn import PackedLinear, onednn_available
from vitreous.speed.weight_folding import fold

needs_onednn = pytest.mark.skipif(not onednn_available(), reason="this torch has no oneDNN")


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_fused_forward_gives_the_models_logits_and_features(family):
    model, x = made(**FAMILIES[family])
    network = fold(model)
    assert fits(network)
    assert distance(fused_forward(network, x, fused_gelu=False), model(x)) < 1e-5
    features = fused_forward(network, x, output="features", fused_gelu=False)
    assert distance(features, model.features(x)) < 1e-5
    # GELU's tanh form differs by up to 5e-4: more than rounding in fp32, less in bf16
    assert 1e-6 < distance(fused_forward(network, x, fused_gelu=True), model(x)) < 2e-3


@pytest.mark.slow
@torch.no_grad()
def test_with_our_attention_kernel_the_logits_are_the_models():
    """The kernel itself is in test_triton_kernels.py; here its plain version, and which networks it supports."""
    for family, supported in (("plain", True), ("distilled", True), ("query and key norms", False)):
        model, x = made(**FAMILIES[family], activation="gelu_tanh")
        network = fold(model)
        assert fits_own_attention(network) is supported
        if supported:
            assert distance(fused_forward(network, x, own_attention=True), model(x)) < 1e-5
            compiled = torch.compile(  # traced whole; what a C++ compiler makes of it is in test_optimize.py
                lambda x, network=network: fused_forward(network, x, own_attention=True),
                fullgraph=True,
                backend="aot_eager",
            )
            assert distance(compiled(x), model(x)) < 1e-5
    assert not fits_own_attention(fold(made(heads=6)[0]))  # heads of 8 channels


@pytest.mark.parametrize("fused_gelu", [True, False])
@torch.no_grad()
def test_a_network_with_gelus_tanh_form_keeps_it(fused_gelu):
    model, x = made(activation="gelu_tanh")
    assert distance(fused_forward(fold(model), x, fused_gelu=fused_gelu), model(x)) < 1e-5


class Bystander(Hook):
    """A hook that changes nothing."""

    turn = Turn.RECORD


@needs_onednn
@torch.no_grad()
def test_active_hooks_do_not_change_the_result():
    model, x = made(**FAMILIES["distilled"])  # its heads read two tokens
    network = fold(model)
    compute = packed_forward(network, len(x))
    with activate(Bystander()):
        assert distance(compute(x), model(x)) < 1e-5
        assert distance(fused_forward(network, x, fused_gelu=False), model(x)) < 1e-5


@torch.no_grad()
def test_images_are_not_changed():
    model, x = made()
    before = x.clone()
    network = fold(model)
    assert torch.equal(fused_forward(network, x), fused_forward(network, x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("changes", [{"swiglu": True}, {"pool": "mean"}, {"activation": "quick_gelu"}])
def test_other_networks_are_not_supported(changes):
    model, _ = made(**changes)
    assert not fits(fold(model))


@needs_onednn
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@torch.no_grad()
def test_packed_weights_give_the_models_logits_and_features(family, activation):
    model, x = made(**FAMILIES[family], activation=activation)
    network = fold(model)
    assert distance(packed_forward(network, len(x))(x), model(x)) < 1e-5
    assert distance(packed_forward(network, len(x), "features")(x), model.features(x)) < 1e-5


@needs_onednn
@torch.no_grad()
def test_a_packed_layer_adds_a_residual_and_applies_gelu():
    layer, x, residual = nn.Linear(16, 8), torch.randn(5, 16), torch.randn(5, 8)
    packed = PackedLinear(layer, 5)
    torch.testing.assert_close(packed(x), layer(x))
    torch.testing.assert_close(packed.add(x, residual), residual + layer(x))
    for kind in ("none", "tanh"):
        torch.testing.assert_close(packed(x, "gelu", kind), nn.functional.gelu(layer(x), approximate=kind))


@needs_onednn
@torch.no_grad()
def test_a_packed_copy_gives_the_models_logits_of_embedded_tokens():
    model, x = made()
    assert distance(pack(model, batch_size=2)(model.embed(x)), model(x)) < 1e-5


def test_only_models_that_the_packed_pass_runs_are_copied(monkeypatch):
    assert pack(made(pool="mean")[0], 1) is None
    assert pack(made()[0].bfloat16(), 1) is None
    monkeypatch.setattr("vitreous.speed.fused_forward.LARGEST_COPY", 10)
    assert pack(made()[0], 1) is None
