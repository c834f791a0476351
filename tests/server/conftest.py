"""The model and the image that tests of the explorer's server share."""

import io

import numpy as np
import pytest
from PIL import Image

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card


@pytest.fixture(scope="module")
def model():
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=24, depth=2, heads=4, classes=5)))
    model.card = Card("small", Preprocess(size=(32, 32), resize=32, mean=HALF, std=HALF), tuple("abcde"))
    return model


@pytest.fixture(scope="module")
def image():
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()
