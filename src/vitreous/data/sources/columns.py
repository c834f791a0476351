"""Which column of a table holds the images and which their classes, as tables on the Hugging Face Hub have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.data.image_dataset import some

IMAGE_COLUMNS = ("image", "img", "image", "jpg", "png", "webp")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls")


@dataclass(frozen=True)
class Columns:
    """The two columns that matter."""

    image: str
    label: str
    class_names: tuple[str, ...] | None
    """None where the table does not say."""


def choose_columns(features: Mapping[str, Any], where: str) -> Columns:
    """Choose by the types that the Hub's `features` give, then by the usual names.

    >>> choose_columns({"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}, "zoo")
    Columns(image='img', label='label', class_names=('cat', 'dog'))
    """
    kinds = {name: _kind(value) for name, value in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    others = [name for name, kind in kinds.items() if kind == "Value" and name in LABEL_COLUMNS]
    image = _best(images, IMAGE_COLUMNS)
    label = _best(classes, LABEL_COLUMNS) or _best(others, LABEL_COLUMNS)
    if image is None:
        wanted = f"expected one with the bytes of encoded images, such as {' or '.join(IMAGE_COLUMNS[:2])}"
        raise ValueError(f"{where} has no single column of images: {wanted}; it has {_listed(features)}")
    if label is None:
        wanted = f"expected one such as {' or '.join(LABEL_COLUMNS[:3])}"
        raise ValueError(f"{where} has no single column of classes: {wanted}; it has {_listed(features)}")
    names = features[label].get("names")
    return Columns(image, label, tuple(str(name) for name in names) if names else None)


def number_labels(
    values: Sequence[Any], class_names: tuple[str, ...] | None, where: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Class names, and an index into them for each of a column's values.

    Where the table does not name its classes, whole numbers are called by themselves and words are sorted.

    >>> number_labels(["dog", "cat", "dog"], None, "zoo")
    (('cat', 'dog'), (1, 0, 1))
    >>> number_labels([2, 0], None, "zoo")
    (('0', '1', '2'), (2, 0))
    """
    if any(value is None for value in values) or (values and -1 in values):  # -1: the Hub's "not told"
        missing = sum(value is None or value == -1 for value in values)
        raise ValueError(f"{missing} of {len(values)} images of {where} have no class: choose a split that has them")
    if values and all(isinstance(value, str) for value in values):
        names = class_names or tuple(sorted(set(values)))
        place = {name: i for i, name in enumerate(names)}
        if strangers := sorted(set(values) - set(place)):
            raise ValueError(f"{where} has classes that its description does not name: {some(strangers)}")
        return names, tuple(place[value] for value in values)
    if not all(isinstance(value, int) for value in values):
        kind = next(type(value).__name__ for value in values if not isinstance(value, int))
        raise ValueError(f"classes of {where} have to be whole numbers or words, got {kind}")
    numbers = tuple(int(value) for value in values)
    names = class_names or tuple(str(i) for i in range(max(numbers, default=-1) + 1))
    if numbers and not (min(numbers) >= 0 and max(numbers) < len(names)):
        raise ValueError(
            f"{where} has class {max(numbers)}, but its description names {len(names)} classes: mend one of them"
        )
    return names, numbers


def _kind(feature: Any) -> str | None:
    """A column's type; bytes that nobody calls an image are one as well."""
    if not isinstance(feature, Mapping):
        return None
    message = feature.get("bytes", feature) if "_type" not in feature else feature
    if (
        isinstance(message, Mapping)
        and message.get("_type") == "Value"
        and str(message.get("dtype")).endswith("binary")
    ):
        return "Image"
    return feature.get("_type")


def _best(found: list[str], usual: Sequence[str]) -> str | None:
    if len(found) == 1:
        return found[0]
    return next((name for name in usual if name in found), None)


def _listed(features: Mapping[str, Any]) -> str:
    return ", ".join(features) or "none"
