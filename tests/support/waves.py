"""An image of any size that no resize leaves as it was, and the preprocessing that tests change."""

import numpy as np
from PIL import Image

from vitreous.data.preprocess import HALF, Preprocess


def image(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """A wave with some noise: smooth as photographs are, and different everywhere."""
    rows, columns = np.mgrid[:height, :width] / 17
    waves = np.stack([np.sin(rows + columns), np.cos(rows * 2 - columns), np.sin(columns * 3)], axis=-1)
    noise = np.random.default_rng(height * 1000 + width).normal(0, 12, waves.shape)
    return Image.fromarray((waves * 100 + 128 + noise).clip(0, 255).astype(np.uint8)).convert(mode)


def plain(**options: object) -> Preprocess:
    return Preprocess(**({"size": (32, 32), "resize": 36, "mean": HALF, "std": HALF} | options))
