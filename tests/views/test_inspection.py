"""What lies under a heat map is what the model sees, and no other part of the image."""

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.data.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.data.sample_photos import samples
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.explanation import Explanation
from vitreous.views.inspection import Inspection
from vitreous.views.trust import comparable, similarity_to_random_weights
from vitreous.weights.card import Card

FITS = {  # size, resize, cover → how large the backdrop is
    "whole": ((32, 32), 32, False, (256, 256)),
    "cropped": ((32, 32), 40, False, (192, 192)),
    "squashed": ((32, 48), (32, 48), False, (160, 240)),
    "covered": ((48, 24), (48, 24), True, (240, 120)),
    "large": ((144, 144), 144, False, (144, 144)),
    "unscaled": ((32, 32), None, False, (32, 32)),
}


def inspection(size, resize, cover, image):
    model = ViT(ViTConfig(image_size=size, patch_size=8, width=16, depth=1, heads=2, classes=3))
    preprocess = Preprocess(size=size, resize=resize, mean=HALF, std=HALF, cover=cover)
    model.card = Card(name="small", preprocess=preprocess)
    return Inspection(model, image)


@pytest.mark.parametrize("fit", FITS)
def test_the_backdrop_is_the_same_part_in_more_pixels(fit):
    size, resize, cover, shown = FITS[fit]
    found = inspection(size, resize, cover, samples()["chelsea"])
    assert found.backdrop.shape == (*shown, 3)
    reduced = Image.fromarray(found.backdrop).resize(size[::-1], Image.Resampling.BICUBIC)
    difference = np.abs(np.asarray(reduced).astype(int) - found.pixels.astype(int))
    assert difference.mean() < 3  # of 255; half a model's pixel may go to the other side of the crop


def test_figures_and_the_view_of_patches_show_the_pixels_that_patches_read():
    config = ViTConfig(image_size=(38, 45), patch_size=(6, 16), partial_patches=True, width=16, depth=1, heads=2)
    model = ViT(config)
    model.card = Card("partial", Preprocess(size=(38, 45), resize=(38, 45), mean=HALF, std=HALF))
    found = Inspection(model, samples()["chelsea"])
    assert found.backdrop.shape == (190, 225, 3)
    assert found.backdrop_of_patches.shape == (180, 160, 3)
    np.testing.assert_array_equal(found.backdrop_of_patches, found.backdrop[:180, :160])
    (tiles,) = Explanation(found).results("patches").values()
    np.testing.assert_array_equal(tiles.images[0], found.pixels[:36, :32])
    overlay = Explanation(found).figure("attention-rows").axes[0]
    assert overlay.images[0].get_array().shape[:2] == (180, 160)
    assert len(Explanation(found).figure("patches").axes) == 2
    assert Explanation(found).payload().header["model"]["covered"] == [36, 32]


def test_a_small_image_is_shown_pixel_by_pixel():
    found = inspection((32, 32), 32, False, samples()["chelsea"].resize((50, 40)))
    assert found.backdrop is found.pixels


@pytest.fixture
def resized(monkeypatch):
    """From how large an image to how large a one, for each time a `Preprocess` looked at one."""
    times, view = [], Preprocess.view

    def counted(self, image):
        times.append((image.size, self.size))
        return view(self, image)

    monkeypatch.setattr(Preprocess, "view", counted)
    return times


def test_a_whole_page_resizes_the_image_once_for_the_model_and_once_to_be_shown(resized):
    """Resizing 64 million pixels takes half a second: done for each class and map, it takes most of the page's time."""
    found = inspection((32, 32), 40, False, samples()["chelsea"])
    noise(found.model)
    Explanation(found).payload()
    similarity_to_random_weights(comparable(found), found)
    whole = [each for each in resized if each[0] == found.image.size]
    assert whole == [(found.image.size, (32, 32)), (found.image.size, (192, 192))]


@pytest.mark.parametrize("colours", [3, 1])
@pytest.mark.parametrize("image", ["RGB", "L", "RGBA"])
def test_what_the_model_gets_is_bit_for_bit_what_its_preprocessing_gives(colours, image):
    model = ViT(ViTConfig(image_size=32, patch_size=8, width=16, depth=1, heads=2, classes=3, channels=colours))
    mean, std = IMAGENET_MEAN[:colours], IMAGENET_STD[:colours]
    model.card = Card(name="small", preprocess=Preprocess(size=(32, 32), resize=40, mean=mean, std=std))
    photo = samples()["chelsea"].convert(image)
    if image == "RGBA":
        photo.putalpha(Image.linear_gradient("L").resize(photo.size))
    found = Inspection(model, photo)
    assert found.seen.mode == "RGB"
    assert torch.equal(found.x, model.card.preprocess(photo)[None])
    assert Inspection(model.double(), photo).x.dtype == torch.float64


def test_without_an_image_an_inspection_says_that_it_needs_one():
    model = inspection((32, 32), 40, False, None)
    with pytest.raises(ValueError, match="needs an image"):
        _ = model.x
