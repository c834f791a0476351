"""Masks of images: the classes that a mask file's values or colours mean (`MaskValues`); masks cropped, and drawn.

A file `classes.json` beside the masks names their values, or their colours, and those to ignore:

    {"1": "animal", "2": "background", "ignore": 3}
    {"#000000": "background", "#ff0000": "animal", "ignore": ["#ffffff"]}
    ["background", "animal"]

A list names the values 0, 1 and so on. Two values of one name are one class. 255 is ignored unless it is named. The
file that `vitreous classify` writes beside masks also lists the colours of its classes, which are not read.

Shapes:  h height   w width of the image
"""

from __future__ import annotations

import json
import re
from colorsys import hls_to_rgb
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ImageChops
from PIL.Image import Image, Resampling, blend, fromarray

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, read_image, read_stored
from vitreous.data.preprocess import Preprocess

IGNORE = 255
"""The value of a mask's pixels that do not count: unlabelled ones, and those outside the image."""
UNKNOWN = 254
"""The value of pixels that have no name, before they raise an error; a mask has at most 254 classes."""
CLASS_FILES = ("classes.json", "names.json")
EXAMPLE = '{"0": "background", "1": "animal", "ignore": 3}'

COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#f0e442", "#999999")
"""Colours of the first classes, which people with colour blindness can tell apart (Okabe & Ito, 2008)."""


def class_colours(count: int) -> NDArray[np.uint8]:
    """Choose the palette of masks, an RGB value for each class: `[k 3]`.

    Beyond eight they are hues a golden angle apart, in four tones.

    >>> class_colours(2).tolist(), len(np.unique(class_colours(254), axis=0))
    ([[230, 159, 0], [86, 180, 233]], 254)
    """
    colours = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in COLOURS[:count]]
    for number in range(len(COLOURS), count):
        lightness, saturation = ((0.5, 0.7), (0.33, 0.5), (0.7, 0.75), (0.42, 0.9))[number % 4]
        colours.append([round(255 * part) for part in hls_to_rgb(number * 0.618034 % 1, lightness, saturation)])
    return np.array(colours, np.uint8).reshape(count, 3)


@dataclass(frozen=True)
class MaskValues:
    """What the values of mask files mean.

    >>> trimap = MaskValues(("animal", "background"), {1: 0, 2: 1, 3: IGNORE})
    >>> trimap.spell()
    '1 animal, 2 background, 3 ignored'
    """

    class_names: tuple[str, ...]
    index: dict[int, int]
    """A mask file's value, or colour as red · 65536 + green · 256 + blue → index into `class_names`, or 255."""
    colours: bool = False
    """Masks are read as colours rather than values."""
    file: str = CLASS_FILES[0]
    """The file of the names, for messages."""

    def read(self, path: Path) -> Image:
        """Read a mask file as an L image of class indices; an `ImageError` names a value that has no class."""
        values = read_colours(path) if self.colours else read_values(path)
        classes = _lookup(tuple(self.index.items()), 1 << (24 if self.colours else 16))[values]
        if (unknown := classes == UNKNOWN).any():
            value = int(values[unknown][0])
            what = f"the {'colour' if self.colours else 'value'} {spell_value(value, self.colours)} has no class"
            raise ImageError(str(path), f"{what}: {self.file} has {self.spell()}; add it, or correct the mask")
        return fromarray(classes)

    def spell(self) -> str:
        """List the values and their classes for a message."""
        names = dict(enumerate(self.class_names)) | {IGNORE: "ignored"}
        return ", ".join(f"{spell_value(value, self.colours)} {names[i]}" for value, i in self.index.items())


def spell_value(value: int, colours: bool) -> str:
    """Write a value of a mask file for a message, a colour in hexadecimal digits.

    >>> spell_value(7, False), spell_value(255 * 65536, True)
    ('7', '#ff0000')
    """
    return f"#{value:06x}" if colours else str(value)


@lru_cache(maxsize=8)
def _lookup(index: tuple[tuple[int, int], ...], size: int) -> NDArray[np.uint8]:
    """Return the table from a mask file's values to class indices: uint8 `[size]`."""
    table = np.full(size, UNKNOWN, np.uint8)
    for value, i in index:
        table[value] = i
    return table


def read_values(path: Path) -> NDArray[np.uint16]:
    """Read the values of a mask file, of a palette image the indices: `[h w]`."""
    image = read_stored(path)
    values = np.asarray(image)
    if values.ndim == 3:  # a grey image may be stored as colours
        colours = values[:, :, : 1 if image.mode in ("LA", "PA") else 3]
        if (colours != colours[:, :, :1]).any():
            advice = f'name the colours in {CLASS_FILES[0]}, such as {{"#000000": "background", "#ff0000": "animal"}}'
            raise ImageError(str(path), f"holds colours rather than class values: {advice}")
        values = colours[:, :, 0]
    if not np.issubdtype(values.dtype, np.integer) and values.dtype != np.bool_:
        raise ImageError(str(path), f"holds fractions ({image.mode}) rather than class values: save it as an 8-bit PNG")
    if values.min() < 0 or values.max() > 65535:
        raise ImageError(str(path), f"holds values from {values.min()} to {values.max()}: expected 0 to 65535")
    return values.astype(np.uint16)


def read_colours(path: Path) -> NDArray[np.int64]:
    """Read the colours of a mask file, each as one number: `[h w]`."""
    image = read_stored(path)
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise ImageError(str(path), f"is stored as {image.mode}, not as colours: save it as an 8-bit PNG")
    solid = image.convert("RGBA") if image.mode in ("P", "PA") else image  # a palette may hold transparent colours
    colours = np.asarray(solid.convert("RGB") if solid.mode != "RGBA" else solid).astype(np.int64)
    return colours[:, :, 0] << 16 | colours[:, :, 1] << 8 | colours[:, :, 2]


# --- names --------------------------------------------------------------------------------------------------


def read_classes(path: Path) -> MaskValues:
    """Read the names of mask values from a JSON file; a `ValueError` says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}): expected {EXAMPLE}") from error
    if isinstance(found, list):
        found = {str(i): name for i, name in enumerate(found)}
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no names of mask values: expected {EXAMPLE}")
    found.pop("colours", None)  # of masks that `classify` wrote: their values count
    ignored = found.pop("ignore", [])
    ignored = [str(value).lower() for value in (ignored if isinstance(ignored, list) else [ignored])]
    found = {word.lower(): name for word, name in found.items()}
    for name in found.values():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{path} has {name!r} for the name of a class: expected {EXAMPLE}")
    colours = any(word.startswith("#") for word in (*found, *ignored))
    pattern, limit = (r"#[0-9a-f]{6}", 1 << 24) if colours else (r"0|[1-9][0-9]{0,4}", 1 << 16)
    if bad := [word for word in (*found, *ignored) if not re.fullmatch(pattern, word) or _number(word) >= limit]:
        kind = "a colour such as #ff0000" if colours else "a mask value such as 1, or a colour such as #ff0000"
        raise ValueError(f"{path} names {bad[0]!r}, and expected is {kind}: {EXAMPLE}")
    if both := [word for word in found if word in ignored]:
        raise ValueError(f"{path} both names and ignores {both[0]}: choose one of them")
    values = dict(sorted((_number(word), name.strip()) for word, name in found.items()))
    names = tuple(dict.fromkeys(values.values()))
    if not 2 <= len(names) <= UNKNOWN:
        raise ValueError(f"{path} names {len(names)} classes: a segmentation has 2 to {UNKNOWN}")
    index = {value: names.index(name) for value, name in values.items()} | {_number(word): IGNORE for word in ignored}
    return MaskValues(names, index if colours else index | {IGNORE: index.get(IGNORE, IGNORE)}, colours, path.name)


def _number(word: str) -> int:
    """Return as a number one of the values of masks, such as `7`, or of their colours, such as `#ff0000`."""
    return int(word.removeprefix("#"), 16 if word.startswith("#") else 10)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary that names the values or colours of masks from the pairs in JSON; raise if one comes twice."""
    for i, (key, _) in enumerate(pairs):
        if any(key == other for other, _ in pairs[:i]):
            raise ValueError(f"{key!r} stands there twice")
    return dict(pairs)


def name_values(values: list[int], name: str) -> MaskValues:
    """Name the classes of masks after the values in their pixels, for lack of other names.

    >>> name_values([0, 2, 255], "zoo").class_names
    ('class 0', 'class 2')
    """
    kept = [value for value in sorted(values) if value != IGNORE]
    if len(kept) < 2:
        found = " and ".join(map(str, sorted(values)))
        advice = f'name both in {CLASS_FILES[0]}: {{"0": "background", "255": "object"}}'
        only = f"the masks of {name} hold nothing but {found}" + (", and 255 is ignored" if IGNORE in values else "")
        raise ValueError(f"{only}: {advice if IGNORE in values else 'a segmentation has at least two classes'}")
    if len(kept) > UNKNOWN:
        raise ValueError(
            f"the masks of {name} hold {len(kept):,} different values, too many for classes: are they grey images? "
            f"Name the values that are classes in {CLASS_FILES[0]}"
        )
    index = {value: i for i, value in enumerate(kept)}
    return MaskValues(tuple(f"class {value}" for value in kept), index | {IGNORE: IGNORE}, file="the dataset")


# --- images with masks --------------------------------------------------------------------------------------


def read_with_mask(data: ImageDataset, i: int) -> tuple[Image, Image | None]:
    """Read an image together with its mask, None in a dataset without masks; `ImageError` if they differ in size."""
    image = read_image(data.image(i))
    mask = None if data.mask is None else data.mask(i)
    if mask is not None and mask.size != image.size:
        raise ImageError(data.describe(i), sizes_differ(mask.size, image.size))
    return image, mask


def sizes_differ(mask: tuple[int, int], image: tuple[int, int]) -> str:
    """Write that a mask and its image have different sizes, width and height."""
    turned = mask == image[::-1]
    why = "the image may be turned by its EXIF orientation" if turned else "each pixel needs a class"
    return f"its mask is {mask[0]}×{mask[1]} pixels, the image {image[0]}×{image[1]}: {why}; save the mask at that size"


def view_mask(mask: Image, preprocess: Preprocess) -> Image:
    """Resize and crop a mask as `preprocess.view` does its image, by nearest neighbour; 255 beyond the edges.

    >>> from PIL import Image
    >>> preprocess = Preprocess(size=(1, 4), resize=None, mean=(0.5,), std=(0.5,))
    >>> list(view_mask(Image.new("L", (2, 1), 7), preprocess).tobytes())
    [255, 7, 7, 255]
    """
    steps = replace(preprocess, mean=(0.0,), std=(1.0,), interpolation="nearest")
    return ImageChops.invert(steps.view(ImageChops.invert(mask)))  # black, which `view` adds, is 255 in a negative


# --- masks drawn --------------------------------------------------------------------------------------------


def mask_colours(classes: int) -> list[str]:
    """Return the colours of a mask's 256 values: one for each class, black for the rest."""
    return ["#" + bytes(colour).hex() for colour in class_colours(classes)] + ["#000000"] * (256 - classes)


def palette_image(mask: NDArray[np.uint8], classes: int) -> Image:
    """Turn any mask, labelled or predicted, into an indexed image with a palette for the mask's classes."""
    image = fromarray(mask).copy()
    image.putpalette(b"".join(bytes.fromhex(colour.removeprefix("#")) for colour in mask_colours(classes)))
    return image


def draw_mask(image: Image, mask: NDArray[np.uint8], classes: int, opacity: float = 0.5) -> Image:
    """Draw a mask over its image, which may be smaller: tinted where the mask has a class, as it is elsewhere."""
    small = np.asarray(fromarray(mask).resize(image.size, Resampling.NEAREST))
    mixed = blend(image.convert("RGB"), palette_image(small, classes).convert("RGB"), opacity)
    mixed.paste(image, mask=fromarray(np.where(small == IGNORE, np.uint8(255), np.uint8(0))))
    return mixed
