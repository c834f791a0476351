"""Which preprocessing fits a checkpoint: the plausible ones tried on labelled pictures.

Wrong statistics cost up to 30 points without any error; the pictures themselves tell which are right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb

import torch
from torch import Tensor

from vitreous.data.datasets import PictureSet
from vitreous.data.labels import match_classes
from vitreous.data.pictures import PictureError, read_picture
from vitreous.data.preprocess import STATISTICS, Preprocess
from vitreous.data.stream import ahead, batches
from vitreous.predict import run
from vitreous.speed.shortcut import logits_only
from vitreous.weights.load import Model

SHARES = (0.875, 0.9, 0.95, 1.0)
"""How much of the resized picture the crop keeps, as the field's recipes have it."""


@dataclass(frozen=True)
class Trial:
    """One preprocessing and what it brought."""

    name: str
    preprocess: Preprocess
    correct: tuple[bool, ...]

    @property
    def top1(self) -> float:
        return sum(self.correct) / len(self.correct)


@dataclass(frozen=True)
class Fit:
    """All trials, the one in use first, and what follows from them."""

    trials: tuple[Trial, ...]

    @property
    def current(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        return max(self.trials, key=lambda trial: trial.top1)  # the one in use where it is as good as any

    @property
    def chance(self) -> float:
        """How likely so large a difference is if the two are equally good (exact McNemar test)."""
        pairs = list(zip(self.current.correct, self.best.correct, strict=True))
        lost, won = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
        n = lost + won
        tail = sum(comb(n, k) for k in range(min(lost, won) + 1)) / 2**n
        return min(1.0, 2 * tail)

    def verdict(self) -> str:
        """One sentence."""
        now, best = self.current, self.best
        count = len(now.correct)
        if best is now:
            return f"the preprocessing in use fits best: {now.top1:.1%} of {count} pictures"
        comparison = f"{best.top1:.1%} against {now.top1:.1%} of {count} pictures, p = {self.chance:.2g}"
        if self.chance < 0.01:
            return f"{best.name} fits better than what is in use: {comparison}"
        return f"no clear difference: {best.name} is ahead ({comparison}); keep what is in use"


def fit_preprocessing(model: Model, data: PictureSet, batch_size: int = 16) -> Fit:
    """Try other statistics, then other crops with the best statistics, on the same pictures."""
    if model.card.head != "classifier":
        raise ValueError(f"{model.card.name} has no classifier to try preprocessings with")
    places = match_classes(data.class_names, model.card.class_names, model.config.classes)
    used = model.card.preprocess
    same_statistics = next((name for name, pair in STATISTICS.items() if pair == (used.mean, used.std)), None)
    trials = [_try(model, data, places, {"in use": used}, batch_size)[0]]
    if len(used.mean) == 3:
        statistics = {
            _say(name): replace(used, mean=mean, std=std)
            for name, (mean, std) in STATISTICS.items()
            if name != same_statistics
        }
        trials += _try(model, data, places, statistics, batch_size)
    best = max(trials, key=lambda trial: trial.top1)
    crops = {f"{name}, {best.name}": p for name, p in _crops(best.preprocess) if p != best.preprocess}
    for name, preprocess in crops.items():
        trials += _try(model, data, places, {name: preprocess}, batch_size)
    return Fit(tuple(trials))


def _say(name: str) -> str:
    mean, std = STATISTICS[name]
    numbers = [" ".join(f"{value:.3g}" for value in dict.fromkeys(part)) for part in (mean, std)]
    return f"mean {numbers[0]}, std {numbers[1]}"


def _crops(preprocess: Preprocess) -> Iterator[tuple[str, Preprocess]]:
    height, width = preprocess.size
    for share in SHARES:
        if height == width:
            yield f"crop {share:g}", replace(preprocess, resize=int(height / share), cover=False)
    yield "squashed", replace(preprocess, resize=preprocess.size, cover=False)


def _try(
    model: Model, data: PictureSet, places: list[int], candidates: dict[str, Preprocess], batch_size: int
) -> list[Trial]:
    """Run candidates that differ in mean and std alone: each picture is decoded and cropped once."""
    first = next(iter(candidates.values()))
    plain = replace(first, mean=(0.0,) * len(first.mean), std=(1.0,) * len(first.std))

    def prepare(i: int) -> Tensor | PictureError:
        try:
            return plain(read_picture(data.picture(i)))  # [c h w] from 0 to 1
        except PictureError as error:
            return error

    correct: dict[str, list[bool]] = {name: [] for name in candidates}
    numbered = zip(ahead(prepare, range(len(data)), waiting=2 * batch_size), data.labels, strict=True)
    for batch in batches(numbered, batch_size):
        good = [(pixels, places[label]) for pixels, label in batch if isinstance(pixels, Tensor)]
        if not good:
            continue
        pixels, target = torch.stack([p for p, _ in good]), torch.tensor([label for _, label in good])
        for name, candidate in candidates.items():
            mean, std = (torch.tensor(part).view(-1, 1, 1) for part in (candidate.mean, candidate.std))
            guess = run(model, (pixels - mean) / std, logits_only).argmax(dim=-1)
            correct[name] += (guess == target).tolist()
    if not any(correct.values()):
        raise ValueError(f"{data.name} holds no picture that can be read")
    return [Trial(name, preprocess, tuple(correct[name])) for name, preprocess in candidates.items()]
