"""Match a dataset's classes to a model's: by name, by WordNet id, or by index."""

import re
from collections import Counter
from collections.abc import Sequence

from vitreous.weights.sidecar import imagenet_names, imagenet_wordnet_ids


def match_classes(names: Sequence[str], model_names: Sequence[str] | None, classes: int) -> list[int]:
    """Return the model's class index for each of the dataset's class names.

    >>> match_classes(["dog", "Tabby_Cat"], ["tabby cat", "dog"], 2)
    [1, 0]
    >>> match_classes(["0718", "0003"], None, 1000)
    [718, 3]
    """
    if model_names is not None:
        exact = {name: i for i, name in enumerate(model_names)}
        if all(name in exact for name in names):
            return [exact[name] for name in names]
        plain = {_plain(name): i for i, name in enumerate(model_names)}
        if all(_plain(name) in plain for name in names):
            counts = Counter(_plain(name) for name in model_names)
            if twice := [name for name in names if name not in exact and counts[_plain(name)] > 1]:
                raise ValueError(
                    f"the model has {counts[_plain(twice[0])]} classes called {twice[0]!r}: use class indices"
                )
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
    if all(name.isdecimal() for name in names):
        if over := [name for name in names if int(name) >= classes]:
            raise ValueError(f"folder {over[0]} is no class index: the model has classes 0 to {classes - 1}")
        return [int(name) for name in names]
    known = {_plain(name) for name in model_names or ()}
    unknown = [name for name in names if _plain(name) not in known]
    raise ValueError(
        f"{len(unknown)} of {len(names)} classes are not the model's, such as {unknown[0]!r}: name folders by class "
        "name, WordNet id or class index; for a model of other classes use --probe knn or --probe linear"
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().lower()
