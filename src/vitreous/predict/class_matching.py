"""Match class names: those of a dataset to a model's (`match_classes`), and what a user typed to one (`find_class`)."""

import difflib
import operator
import re
from collections import Counter
from collections.abc import Sequence
from typing import SupportsIndex

from vitreous.data.image_dataset import ImageDataset, list_some
from vitreous.weights.class_names import imagenet_names, imagenet_wordnet_ids
from vitreous.weights.load import Model

FEW_CLASSES = 20
"""Classes up to which an error names them all."""
SUGGESTED = 5


def find_class(target: SupportsIndex | str | None, model: Model) -> int | None:
    """Match what a user typed, an index or a name, to a model's class; a `ValueError` says which there are like it.

    An index is an int, or an integer of NumPy or torch, such as `argmax` gives.

    >>> from vitreous.weights.load import load
    >>> model = load("packaged:cifar10")
    >>> find_class("cat", model), find_class("3", model), find_class(None, model)
    (3, 3, None)
    """
    if target is None:
        return None
    if not isinstance(target, str):
        return _index(target)
    names = model.card.class_names or ()
    same = [i for i, name in enumerate(names) if name == target]
    if not same and target.isdecimal():
        return int(target)
    alike = same or [i for i, name in enumerate(names) if _plain(name) == _plain(target)]
    if len(alike) == 1:
        return alike[0]
    if alike and len({names[i] for i in alike}) == 1:
        raise ValueError(f"{_several(names, names[alike[0]])}: give an index")
    if close := suggest_classes(target, names):
        *others, last = close
        hint = f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"
    elif 0 < len(names) <= FEW_CLASSES:
        hint = f"its classes are {', '.join(names)}"
    else:
        named = "" if model.card.origin == "packaged" else f" --model {model.card.name}"
        hint = f"`vitreous doctor --classes{named}` lists them" if names else "its classes have no names: give an index"
    raise ValueError(f"the model has no class {target!r}: {hint}")


def _index(target: SupportsIndex) -> int:
    """Return the index by which `find_class` matches a class that is not named; raise for bools and floats."""
    truth = isinstance(target, bool) or str(getattr(target, "dtype", "")).endswith("bool")
    try:
        if not truth:
            return operator.index(target)
    except TypeError:
        pass
    raise ValueError(f"expected a class's name or its index, a whole number, got {target!r:.60}")


def _several(names: Sequence[str], name: str, as_plain: bool = False) -> str:
    """Say which of a model's classes have one name, in any spelling if `as_plain`.

    >>> _several(["crane", "dog", "crane"], "crane")
    "2 of the model's classes are called 'crane': 0 and 2"
    """
    found = [str(i) for i, own in enumerate(names) if own == name or (as_plain and _plain(own) == _plain(name))]
    return f"{len(found)} of the model's classes are called {name!r:.60}: {', '.join(found[:-1])} and {found[-1]}"


def suggest_classes(target: str, names: Sequence[str]) -> list[str]:
    """Suggest class names that match what a user typed: names that contain it, stand in it, or are spelled like it.

    >>> suggest_classes("cat", ["tabby cat", "catamaran", "dog"]), suggest_classes("chruch", ["church", "dome"])
    (['tabby cat', 'catamaran'], ['church'])
    """
    word = _plain(target)
    if not word:
        return []
    holding = [name for name in names if word in _plain(name) or f" {_plain(name)} " in f" {word} "]
    if holding:  # whole words first
        return sorted(holding, key=lambda name: word not in _plain(name).split())[:SUGGESTED]
    spelled: dict[str, list[str]] = {}
    for name in names:
        for part in dict.fromkeys([_plain(name), *_plain(name).split()]):
            spelled.setdefault(part, []).append(name)
    close = difflib.get_close_matches(word, spelled, n=3, cutoff=0.8)
    return list(dict.fromkeys(name for part in close for name in spelled[part]))[:SUGGESTED]


def match_dataset(data: ImageDataset, model: Model) -> list[int]:
    """Match a dataset's class names to the model's: return the model's index of each. See `match_classes`."""
    names, known, classes = data.class_names, model.card.class_names, model.config.classes
    as_indices = not data.built_in or (known is None and classes == len(names))
    return match_classes(names, known, classes, as_indices=as_indices)


def note_indices(data: ImageDataset, model: Model) -> str:
    """Say in a line that a dataset's class names are read as indices, if the model's own names differ.

    >>> from vitreous.weights.load import load
    >>> note_indices(ImageDataset("zoo", ("0", "3"), (0, 1), str), load("packaged:cifar10"))
    "class names '0', '3' are read as class indices: 'airplane', 'cat'"
    """
    known = model.card.class_names
    if known is None or not all(name.isdecimal() for name in data.class_names):
        return ""
    named = [known[i] for i in match_dataset(data, model)]
    if all(_plain(name) == _plain(own) for name, own in zip(data.class_names, named, strict=True)):
        return ""
    return f"class names {list_some(data.class_names)} are read as class indices: {list_some(named)}"


def told_apart(names: Sequence[str]) -> list[str]:
    """Add its index to each class name that another class has too: results by name are then those of one class.

    >>> told_apart(["crane", "dog", "crane"])
    ['crane (0)', 'dog', 'crane (2)']
    """
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} ({index})" for index, name in enumerate(names)]


def match_classes(
    names: Sequence[str], model_names: Sequence[str] | None, classes: int, *, as_indices: bool = True
) -> list[int]:
    """Match class names to the model's: return the model's index of each. Numbers may be indices, if `as_indices`.

    >>> match_classes(["dog", "Tabby_Cat"], ["tabby cat", "dog"], 2)
    [1, 0]
    >>> match_classes(["0718", "0003"], None, 1000)
    [718, 3]
    """
    if model_names is not None:
        if tuple(names) == tuple(model_names):  # in the model's own order two classes of one name are told apart
            return list(range(len(names)))
        exact = {name: i for i, name in enumerate(model_names)}
        doubled = {name for name, count in Counter(model_names).items() if count > 1}
        if all(name in exact for name in names):
            if twice := [name for name in names if name in doubled]:
                raise ValueError(f"{_several(model_names, twice[0])}: use class indices")
            return [exact[name] for name in names]
        plain = {_plain(name): i for i, name in enumerate(model_names)}
        if all(_plain(name) in plain for name in names):
            counts = Counter(_plain(name) for name in model_names)
            if twice := [n for n in names if n in doubled or (n not in exact and counts[_plain(n)] > 1)]:
                raise ValueError(f"{_several(model_names, twice[0], twice[0] not in doubled)}: use class indices")
            return [exact.get(name, plain[_plain(name)]) for name in names]
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        if model_names is None or tuple(model_names) != imagenet_names():
            raise ValueError(
                "the folders are WordNet ids, but the model's classes are not ImageNet-1k's: name them by its classes, "
                "or use --probe knn or --probe linear"
            )
        ids = {wordnet: i for i, wordnet in enumerate(imagenet_wordnet_ids())}
        if unknown := [name for name in names if name not in ids]:
            raise ValueError(
                f"{unknown[0]} is not among ImageNet-1k's 1,000 WordNet ids: rename the folder, or take it out"
            )
        return [ids[name] for name in names]
    if as_indices and all(name.isdecimal() for name in names):
        if over := [name for name in names if int(name) >= classes]:
            raise ValueError(f"folder {over[0]} is no class index: the model has classes 0 to {classes - 1}")
        return [int(name) for name in names]
    known = {_plain(name) for name in model_names or ()}
    unknown = [name for name in names if _plain(name) not in known]
    rename = "name folders by class name, WordNet id or class index; " if as_indices else ""
    raise ValueError(
        f"{len(unknown)} of {len(names)} classes are not the model's, such as {unknown[0]!r}: {rename}"
        "to learn them: `vitreous finetune`; to measure features: --probe knn"
    )


def _plain(name: str) -> str:
    """Spell a class name in lower case with single spaces, to match it."""
    return re.sub(r"[\s_-]+", " ", name).strip().lower()
