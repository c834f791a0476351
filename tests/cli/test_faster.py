"""What a command computes with: nothing special for a few images; for many on a CPU, what needs no asking."""

import pytest
import torch
from rich.console import Console

from conftest import noise
from vitreous.cli.faster import MANY, faster
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import logits_only
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT, ViTConfig
from vitreous.predict.classify import run
from vitreous.predict.embed import embedding
from vitreous.predict.pipeline import lanes_of
from vitreous.runtime.device import max_lanes
from vitreous.speed import cpu as packed
from vitreous.weights.card import Card

SMALL = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 2, "heads": 2, "classes": 7}
PREPROCESS = Preprocess(size=(16, 16), resize=(16, 16), mean=(0.5,) * 3, std=(0.25,) * 3)


def asked(model, compute, images, **changes):
    sizes = {"fast": False, "precision": "fp32", "batch_size": 4, "device": "cpu"} | changes
    return faster(model, compute, images=images, console=Console(quiet=True), **sizes)


def carded(model):
    model.card = Card("small", PREPROCESS)
    return (noise(model) if isinstance(model, ViT) else model).eval()  # variances must stay above zero


NETWORKS = {
    "a ViT": (lambda: ViT(ViTConfig(**SMALL)), logits_only),
    "its features": (lambda: ViT(ViTConfig(**SMALL)), embedding),
    "one that reads all tokens": (lambda: ViT(ViTConfig(**SMALL, pool="mean")), logits_only),
    "a ResNet": (lambda: ResNet(ResNetConfig(18, 5)), logits_only),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_many_images_get_several_batches_at_once_and_the_same_answers(network):
    build, compute = NETWORKS[network]
    torch.manual_seed(0)
    model = carded(build())
    assert asked(model, compute, MANY - 1) is None
    using = asked(model, compute, MANY)
    assert lanes_of(using) == max_lanes()
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    plain = run(model, pixels, compute)
    assert (using(pixels) - plain).abs().max() <= 1e-5 * max(1.0, plain.abs().max().item())


@pytest.mark.skipif(not packed.available(), reason="this torch has no oneDNN")
def test_weights_are_laid_out_where_the_network_allows_it():
    model = carded(ViT(ViTConfig(**SMALL)))
    assert asked(model, logits_only, MANY).way == "packed"
    assert not hasattr(asked(model, embedding, MANY), "way")
    assert not hasattr(asked(model, logits_only, MANY, precision="fp16"), "way")
