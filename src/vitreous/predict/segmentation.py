"""Segmentation: a model's mask at the image's own size, the shares of its classes, a folder of masks as indexed PNGs.

    masks/classes.json    the names of the values, and their colours
    masks/cat.png         the mask of cat.jpg: a palette image of its size, whose values are indices of classes

Shapes:  k classes · h w pixels that the model sees · H W pixels of the image
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.images import ImageLike, image_name
from vitreous.data.masks import IGNORE, UNKNOWN, mask_colours, palette_image
from vitreous.data.preprocess import Preprocess
from vitreous.runtime.files import check_writable_folder, write_atomic, write_json

CLASS_FILE = "classes.json"
STRIP = 1 << 24
"""Logits that are in memory at once while a mask is enlarged."""


def full_mask(logits: Tensor, preprocess: Preprocess, width: int, height: int) -> NDArray[np.uint8]:
    """Return a model's segmentation of an image of this size, the class of each pixel, from its logits for its view.

    Logits `[k h w]` are resized bilinearly to the part of the image that the model sees: uint8 `[H W]`, 255 beyond it.

    >>> left_and_right = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # [2 1 2]
    >>> crop = Preprocess(size=(1, 2), resize=1, mean=(0.5,), std=(0.5,))
    >>> full_mask(left_and_right, crop, 8, 2)[0].tolist()
    [255, 255, 0, 0, 1, 1, 255, 255]
    """
    if len(logits) > UNKNOWN:
        raise ValueError(f"a mask holds up to {UNKNOWN} classes, and this model has {len(logits)}: choose another")
    left, top, right, bottom = preprocess.crop_box(width, height)
    x_from, y_from, x_to, y_to = preprocess.view_box(width, height)
    rows, above, below, row_share = _neighbours(height, (top, bottom), (y_from, y_to))
    columns, before, after, column_share = _neighbours(width, (left, right), (x_from, x_to))
    mask = np.full((height, width), IGNORE, np.uint8)
    step = max(1, STRIP // max(1, len(logits) * len(before)))
    for begin in range(0, len(above), step):
        some = slice(begin, begin + step)
        strip = torch.lerp(logits[:, above[some]], logits[:, below[some]], row_share[some, None])  # [k r w]
        strip = torch.lerp(strip[..., before], strip[..., after], column_share)  # [k r W]
        mask[rows.start + begin : rows.start + begin + strip.shape[1], columns] = strip.argmax(dim=0).byte().numpy()
    return mask


def _neighbours(length: int, seen: tuple[float, float], view: tuple[int, int]) -> tuple[slice, Tensor, Tensor, Tensor]:
    """Find for segmentation a side's pixels that the model sees: both neighbours in its view, and the second's share.

    The part `seen` of the image's side is the part `view` of the model's.
    """
    centres = torch.arange(length, dtype=torch.float64) + 0.5
    inside = ((centres >= seen[0]) & (centres < seen[1])).nonzero().flatten()
    if not len(inside):  # the model sees less than a pixel
        inside = torch.tensor([min(length - 1, int(seen[0]))])
    scale = (view[1] - view[0]) / (seen[1] - seen[0])
    exact = view[0] + (centres[inside] - seen[0]) * scale - 0.5
    exact = exact.clamp(view[0], view[1] - 1)
    first = exact.floor().long()
    pixels = slice(int(inside[0]), int(inside[-1]) + 1)
    return pixels, first, (first + 1).clamp(max=view[1] - 1), (exact - first).float()


def class_shares(mask: NDArray[np.uint8], classes: int) -> dict[int, float]:
    """Return each class's share of the pixels in a segmentation, labelled or predicted, the largest first.

    Classes without any are left out.

    >>> class_shares(np.array([[1, 1, 0, 255]], np.uint8), 3)
    {1: 0.5, 0: 0.25}
    """
    counts = np.bincount(mask.ravel(), minlength=classes)[:classes]
    return {int(i): float(counts[i] / mask.size) for i in np.argsort(-counts, kind="stable") if counts[i]}


# --- files ------------------------------------------------------------------------------------------------------------


def mask_path(folder: Path, image: str) -> Path:
    """Return the path of an image's mask in a folder of segmentations: the image's stem, as a PNG file.

    >>> mask_path(Path("masks"), "photos/cat.jpg").as_posix()
    'masks/cat.png'
    """
    return folder / f"{PurePath(image).stem}.png"


def begin_masks(folder: Path, images: Sequence[ImageLike], class_names: Sequence[str]) -> None:
    """Begin a folder of segmentations: write the names of the classes, before the masks themselves.

    A `ValueError` says if a mask would replace an image, or anything else that is not an older mask of these classes.
    """
    check_writable_folder(folder, "-o")
    names = [image_name(image) for image in images]
    taken: dict[Path, str] = {}
    for name in names:
        other = taken.setdefault(mask_path(folder, name), name)
        if other != name:
            raise ValueError(f"{other} and {name} have the same stem, so one mask: write them to different folders")
    about = {str(i): name for i, name in enumerate(class_names)} | {"ignore": IGNORE}
    known = about | {"colours": mask_colours(len(class_names))[: len(class_names)]}
    ours = _read(folder / CLASS_FILE) == known
    if existing := [path for path in (folder / CLASS_FILE, *taken) if path.exists()]:
        if not ours:
            raise ValueError(
                f"{existing[0]} is there already, and no mask of these classes: choose another folder with -o"
            )
        sources = {Path(name).resolve() for name in names}
        if both := [path for path in existing if path.resolve() in sources]:
            raise ValueError(f"{both[0]} is one of the images, and its mask would replace it: choose another folder")
    write_json(folder / CLASS_FILE, known)


def _read(path: Path) -> object:
    """Read the class names that an earlier segmentation wrote to its folder of masks; None if there are none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_mask(folder: Path, image: str, mask: NDArray[np.uint8], classes: int) -> Path:
    """Write an image's segmentation as an indexed PNG."""
    save = partial(palette_image(mask, classes).save, format="PNG", optimize=False)
    return write_atomic(mask_path(folder, image), save)
