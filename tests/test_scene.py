"""What lies under a heat map is what the model sees, and no other part of the picture."""

import numpy as np
import pytest
from PIL import Image

from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.vit import ViT, ViTConfig
from vitreous.samples import samples
from vitreous.scene import Scene
from vitreous.weights.card import Card

WAYS = {  # size, resize, cover → how large the backdrop is
    "whole": ((32, 32), 32, False, (256, 256)),
    "cropped": ((32, 32), 40, False, (192, 192)),
    "squashed": ((32, 48), (32, 48), False, (160, 240)),
    "covered": ((48, 24), (48, 24), True, (240, 120)),
    "large": ((144, 144), 144, False, (144, 144)),
    "unscaled": ((32, 32), None, False, (32, 32)),
}


def scene(size, resize, cover, picture):
    model = ViT(ViTConfig(image_size=size, patch_size=8, width=16, depth=1, heads=2, classes=3))
    preprocess = Preprocess(size=size, resize=resize, mean=HALF, std=HALF, cover=cover)
    model.card = Card(name="small", preprocess=preprocess)
    return Scene(model, picture)


@pytest.mark.parametrize("way", WAYS)
def test_the_backdrop_is_the_same_part_in_more_pixels(way):
    size, resize, cover, shown = WAYS[way]
    found = scene(size, resize, cover, samples()["chelsea"])
    assert found.backdrop.shape == (*shown, 3)
    reduced = Image.fromarray(found.backdrop).resize(size[::-1], Image.Resampling.BICUBIC)
    difference = np.abs(np.asarray(reduced).astype(int) - found.pixels.astype(int))
    assert difference.mean() < 3  # of 255; half a model's pixel may go to the other side of the crop


def test_a_small_picture_is_shown_pixel_by_pixel():
    found = scene((32, 32), 32, False, samples()["chelsea"].resize((50, 40)))
    assert found.backdrop is found.pixels
