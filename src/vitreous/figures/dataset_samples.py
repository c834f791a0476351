"""Draw samples of a dataset for `datasets --show`: some images of each class, label or number, or with their masks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from PIL.Image import Image

from vitreous.data.image_dataset import ImageDataset, count_names, count_nouns
from vitreous.data.masks import draw_mask, read_with_mask
from vitreous.figures.style import footer_of_figures
from vitreous.figures.tiles import draw_samples

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
    """List the dataset's images to draw samples of: of each class or label, of each number by size, or with masks."""
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
