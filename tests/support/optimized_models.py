"""Small models with a card, which `optimize` takes, and how near its answers are to theirs."""

from conftest import noise
from vitreous.data.preprocess import Preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card

MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
SMALL = {"image_size": 16, "patch_size": 4, "width": 64, "depth": 2, "heads": 4, "classes": 7}


def small(**changes):
    model = noise(ViT(ViTConfig(**{**SMALL, **changes})))
    model.card = Card("small", Preprocess(size=(16, 16), resize=(16, 16), mean=MEAN, std=STD))
    return model


def close(ours, theirs, share=1e-4):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= share * max(1.0, theirs.abs().max().item())
