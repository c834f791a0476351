"""Draw samples of a dataset for `datasets --show`: some images of each class, label or number, or with their masks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL.Image import Image

from vitreous.data.image_dataset import ImageDataset, count_names, count_nouns
from vitreous.data.masks import draw_mask, read_with_mask
from vitreous.figures.checks import Bytes, image_of, labels_of
from vitreous.figures.style import INK, SMALL, TALLEST, WIDTH, elide, footer_of_figures, new_figure, text_width

ROWS, EACH = 12, 8
"""How many classes are drawn at most, and how many images of each."""


def draw_dataset(dataset: ImageDataset, name: str) -> tuple[Figure, str]:
    """Draw a figure with samples of each class of a dataset; of many classes, some. Also return how many.

    The classes drawn are spread over all. `name` is what the user calls the dataset, for the error if it is empty.
    """
    members = _members(dataset)
    labels = sorted(members)
    if not labels:
        raise ValueError(f"{name} holds no images")
    chosen = [labels[i * len(labels) // min(ROWS, len(labels))] for i in range(min(ROWS, len(labels)))]
    rows = []
    for label in chosen:
        own = members[label]
        some = [own[i * len(own) // min(EACH, len(own))] for i in range(min(EACH, len(own)))]
        rows.append([np.asarray(_sample(dataset, i)) for i in some])
    names = [dataset.class_names[label] for label in chosen]
    if dataset.task == "segment":
        many, names = count_names(dataset), ["with masks"]
    else:
        many = count_nouns(dataset.task, len(labels))
        many = f"{len(chosen)} of {many}" if len(chosen) < len(labels) else many
    with footer_of_figures(f"{many}, {len(dataset):,} images of the test split"):
        return draw_samples(rows, names, title=dataset.name), many


def _members(dataset: ImageDataset) -> dict[int, Sequence[int]]:
    """List what a figure may show as a dataset's samples: images by class or label, by a number's size, with masks."""
    if dataset.targets is None:
        found: dict[int, list[int]] = {}
        for i, label in enumerate(dataset.labels):
            found.setdefault(label, []).append(i)
        return dict(found)
    columns = enumerate(dataset.targets.T)
    if dataset.task == "regress":
        return {label: column.argsort(kind="stable").tolist() for label, column in columns}
    return {label: column.nonzero()[0].tolist() for label, column in columns if column.any()}


def _sample(dataset: ImageDataset, i: int) -> Image:
    """Read a sample of a dataset to draw, under its mask if it has one."""
    image, mask = read_with_mask(dataset, i)
    return image if mask is None else draw_mask(image, np.asarray(mask), len(dataset.class_names))


def draw_samples(rows: Sequence[Sequence[ArrayLike]], names: Sequence[str], *, title: str = "") -> Figure:
    """Draw a dataset's samples as square tiles, a row for each class: uint8 `[height width 3]` each.

    The name of the class stands beside its row, and images are cut to squares.

    >>> figure = draw_samples([[np.zeros((8, 8, 3), np.uint8)] * 3, [np.zeros((8, 9, 3), np.uint8)]], ["cat", "dog"])
    >>> len(figure.axes[0].images)
    4
    """
    names = labels_of("names", names, len(rows))
    columns = max(len(row) for row in rows)
    beside = min(max(text_width(name, SMALL) for name in names), 1.8) + 0.12
    pitch = min((WIDTH - beside) / columns, 0.85, TALLEST / len(rows))
    side = 0.94 * pitch
    body = beside + columns * pitch - (pitch - side), len(rows) * pitch - (pitch - side)
    with new_figure(*body, title) as card:
        axes = card.axes_at(0, 0, *body)  # counts in inches
        for down, (row, name) in enumerate(zip(rows, names, strict=True)):
            top = down * pitch
            axes.text(0, top + side / 2, elide(name, beside - 0.12, SMALL), size=SMALL, color=INK, va="center")
            for across, image in enumerate(row):
                square, left = _square(image_of(image)), beside + across * pitch
                smooth = "antialiased" if len(square) > 64 else "nearest"  # pixels of a digit stay visible
                axes.imshow(square, extent=(left, left + side, top + side, top), interpolation=smooth, aspect="auto")
        axes.set(xlim=(0, body[0]), ylim=(body[1], 0))
        axes.set_axis_off()
    return card


def _square(image: Bytes) -> Bytes:
    """Cut an image to a square tile of the drawn samples: the largest at its centre."""
    height, width, _ = image.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]
