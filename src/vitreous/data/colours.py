"""Convert an image of any Pillow mode to 8-bit RGB: 16 and 32 bits scaled, transparency on white."""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

BAND = 1 << 22  # pixels of 16 or 32 bits that are converted to 8 bits at a time


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB, transparency on white."""
    wide = image.mode == "F" or image.mode.startswith("I")
    if wide or not image.has_transparency_data:
        return (_to_eight_bits(image) if wide else image).convert("RGB")
    layer = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")  # Pillow converts La to LA alone
    page = Image.new("RGB", image.size, "white")
    page.paste(layer, mask=layer)
    return page


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale grey values of 16 or 32 bits, or floats, to 0..255 (Pillow's own conversion clips them).

    Some rows at a time: all at once would take ten times the image's memory.
    """
    rows = max(1, BAND // image.width)
    bands = [(top, min(top + rows, image.height)) for top in range(0, image.height, rows)]
    low, high = _range(image, bands)
    clear = image.info.get("transparency")  # a PNG may name one grey value that is transparent
    grey_image = Image.new("L", image.size)
    for top, bottom in bands:
        values = np.asarray(image.crop((0, top, image.width, bottom)))
        if image.mode == "F" and not np.isfinite(values).all():  # NaN and infinity become black
            values = np.where(np.isfinite(values), values, np.float32(low))
        grey = np.rint(_scaled(values, image.mode, low, high)).astype(np.uint8)
        if isinstance(clear, int):
            grey = np.where(values == clear, np.uint8(255), grey)
        grey_image.paste(Image.fromarray(grey), (0, top))
    return grey_image


def _range(image: Image.Image, bands: list[tuple[int, int]]) -> tuple[float, float]:
    """Find the smallest and largest finite value of an image of 16 or 32 bits; 0 and 0 where there is none."""
    low, high = np.inf, -np.inf
    for top, bottom in bands:
        values = np.asarray(image.crop((0, top, image.width, bottom)))
        if image.mode == "F" and not np.isfinite(values.sum(dtype=np.float64)):
            values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def _scaled(values: npt.NDArray[Any], mode: str, low: float, high: float) -> npt.NDArray[Any]:
    """Scale the values of a 16- or 32-bit image to 0..255 by its mode and range."""
    if mode.startswith("I;16"):
        return values / np.float32(257)  # 65535 is 257 × 255
    if mode == "I" and low >= 0 and high <= 65535:
        # 32 bits say nothing about the range: take the smaller of 8 and 16 bits that holds all values
        return values / np.float32(1 if high <= 255 else 257)
    if mode == "F" and low >= 0 and high <= 255:
        return values * np.float32(255 if high <= 1 else 1)
    # no range is known: darkest to black, brightest to white
    return (values.astype(np.float64) - low) * (255 / ((high - low) or 1))
