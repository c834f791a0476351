"""What computes: the plain model for a few images; packed weights and parallel batches for many on a CPU."""

import pytest
import torch

from conftest import noise
from vitreous.data.preprocess import Preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT, ViTConfig
from vitreous.predict.compute import MANY, PlainCompute, choose_compute, lanes_of
from vitreous.runtime.device import max_lanes
from vitreous.speed import cpu, optimize
from vitreous.weights.card import Card

SMALL = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 2, "heads": 2, "classes": 7}
PREPROCESS = Preprocess(size=(16, 16), resize=(16, 16), mean=(0.5,) * 3, std=(0.25,) * 3)


def asked(model, output, images, **changes):
    return choose_compute(model, output, images=images, **{"batch_size": 4, "device": "cpu"} | changes)


def carded(model):
    model.card = Card("small", PREPROCESS)
    return (noise(model) if isinstance(model, ViT) else model).eval()  # variances must stay above zero


NETWORKS = {
    "a ViT": (lambda: ViT(ViTConfig(**SMALL)), "logits"),
    "its features": (lambda: ViT(ViTConfig(**SMALL)), "features"),
    "one that reads all tokens": (lambda: ViT(ViTConfig(**SMALL, pool="mean")), "logits"),
    "a ResNet": (lambda: ResNet(ResNetConfig(18, 5)), "logits"),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_many_images_get_several_batches_at_once_and_the_same_answers(network):
    build, output = NETWORKS[network]
    torch.manual_seed(0)
    model = carded(build())
    assert asked(model, output, MANY - 1) is None
    compute = asked(model, output, MANY)
    assert lanes_of(compute) == max_lanes()
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    plain = PlainCompute(model, output)(pixels)
    assert (compute(pixels) - plain).abs().max() <= 1e-5 * max(1.0, plain.abs().max().item())


@pytest.mark.skipif(not cpu.available(), reason="this torch has no oneDNN")
def test_weights_are_packed_if_the_network_allows_it():
    model = carded(ViT(ViTConfig(**SMALL)))
    assert asked(model, "logits", MANY).backend == "packed"
    assert not hasattr(asked(model, "features", MANY), "backend")
    assert not hasattr(asked(model, "logits", MANY, precision="fp16"), "backend")


def test_what_was_chosen_is_noted_and_differs_by_rounding_alone():
    torch.manual_seed(0)
    model = carded(ViT(ViTConfig(**SMALL)))
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    assert choose_compute(model, device="cpu") is None
    notes = []
    merged = choose_compute(model, merge=2, device="cpu", note=notes.append)
    assert notes == ["merging 2 tokens in each block: answers differ from the whole model's"]
    assert merged(pixels).shape == (6, 7)
    with pytest.raises(ValueError, match="got fp16: use bf16"):
        choose_compute(model, fast=True, precision="fp16", device="cpu")


@pytest.mark.skipif(not cpu.available(), reason="this torch has no oneDNN")
def test_features_with_fast_get_the_fast_backends_and_equal_plain_within_rounding(monkeypatch, tmp_path):
    monkeypatch.setattr("vitreous.predict.compute.cache_folder", lambda: tmp_path)
    monkeypatch.setattr(optimize, "default_backends", lambda device, precision: ("packed",))
    model, notes = carded(ViT(ViTConfig(**SMALL))), []
    fast = choose_compute(model, "features", fast=True, device="cpu", note=notes.append)
    assert (fast.backend, notes[-1]) == ("packed", "fast: packed")
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    plain = PlainCompute(model, "features")(pixels)
    assert plain.shape == (6, 32)
    assert (fast(pixels) - plain).abs().max() <= 1e-5 * max(1.0, plain.abs().max().item())


def test_merging_needs_tokens_and_a_count():
    with pytest.raises(ValueError, match="leave --merge out for a ResNet"):
        choose_compute(carded(ResNet(ResNetConfig(18, 5))), merge=4, device="cpu")
    for fast in (False, True):
        with pytest.raises(ValueError, match="tokens to merge in each block: 0 or more, got -1"):
            choose_compute(carded(ViT(ViTConfig(**SMALL))), merge=-1, fast=fast, device="cpu")
