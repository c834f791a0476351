"""Choose the image and label columns of a table, as tables on the Hugging Face Hub name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.data.image_dataset import list_some

IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "png", "webp")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls")


@dataclass(frozen=True)
class TableColumns:
    """The image and label columns of a table."""

    image: str
    label: str
    class_names: tuple[str, ...] | None
    """None if the table does not name its classes."""


def choose_columns(features: Mapping[str, Any], title: str) -> TableColumns:
    """Choose by the types that the Hub's `features` give, then by the usual names.

    >>> choose_columns({"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}, "zoo")
    TableColumns(image='img', label='label', class_names=('cat', 'dog'))
    """
    kinds = {name: _kind(value) for name, value in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    others = [name for name, kind in kinds.items() if kind == "Value" and name in LABEL_COLUMNS]
    image = _best(images, IMAGE_COLUMNS)
    label = _best(classes, LABEL_COLUMNS) or _best(others, LABEL_COLUMNS)
    if image is None:
        wanted = f"expected one with the bytes of encoded images, such as {' or '.join(IMAGE_COLUMNS[:2])}"
        raise ValueError(f"{title} has no single column of images: {wanted}; it has {_listed(features)}")
    if label is None:
        wanted = f"expected one such as {' or '.join(LABEL_COLUMNS[:3])}"
        raise ValueError(f"{title} has no single column of classes: {wanted}; it has {_listed(features)}")
    names = features[label].get("names")
    return TableColumns(image, label, tuple(str(name) for name in names) if names else None)


def number_labels(
    values: Sequence[Any], class_names: tuple[str, ...] | None, title: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return class names, and for each value of a label column an index into them.

    If the table does not name its classes, integers are their own names and words are sorted.

    >>> number_labels(["dog", "cat", "dog"], None, "zoo")
    (('cat', 'dog'), (1, 0, 1))
    >>> number_labels([2, 0], None, "zoo")
    (('0', '1', '2'), (2, 0))
    """
    if any(value is None for value in values) or (values and -1 in values):  # -1: the Hub's "no label"
        missing = sum(value is None or value == -1 for value in values)
        raise ValueError(f"{missing} of {len(values)} images of {title} have no class: choose a split that has them")
    if values and all(isinstance(value, str) for value in values):
        names = class_names or tuple(sorted(set(values)))
        index = {name: i for i, name in enumerate(names)}
        if unknown := sorted(set(values) - set(index)):
            raise ValueError(f"{title} has classes that its description does not name: {list_some(unknown)}")
        return names, tuple(index[value] for value in values)
    if not all(isinstance(value, int) for value in values):
        kind = next(type(value).__name__ for value in values if not isinstance(value, int))
        raise ValueError(f"classes of {title} have to be whole numbers or words, got {kind}")
    numbers = tuple(int(value) for value in values)
    names = class_names or tuple(str(i) for i in range(max(numbers, default=-1) + 1))
    if numbers and not (min(numbers) >= 0 and max(numbers) < len(names)):
        raise ValueError(
            f"{title} has class {max(numbers)}, but its description names {len(names)} classes: correct one of them"
        )
    return names, numbers


def _kind(feature: Any) -> str | None:
    """Return a column's type; a column of bytes counts as images."""
    if not isinstance(feature, Mapping):
        return None
    value = feature if "_type" in feature else feature.get("bytes", feature)
    is_value = isinstance(value, Mapping) and value.get("_type") == "Value"
    if is_value and str(value.get("dtype")).endswith("binary"):
        return "Image"
    return feature.get("_type")


def _best(found: list[str], usual: Sequence[str]) -> str | None:
    if len(found) == 1:
        return found[0]
    return next((name for name in usual if name in found), None)


def _listed(features: Mapping[str, Any]) -> str:
    return ", ".join(features) or "none"
