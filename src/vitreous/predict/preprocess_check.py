"""Which preprocessing fits a checkpoint: the plausible ones tried on labelled images.

Wrong statistics cost up to 30 points without any error; the images themselves tell which are right.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import comb

import torch
from torch import Tensor

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, read_image
from vitreous.data.prefetch import batched, prefetch
from vitreous.data.preprocess import STATISTICS, Preprocess
from vitreous.models.last_block import logits_only
from vitreous.predict.class_match import match_classes
from vitreous.predict.classify import run
from vitreous.weights.load import Model

SHARES = (0.875, 0.9, 0.95, 1.0)
"""How much of the resized image the crop keeps, as the field's recipes have it."""


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
    """What was tried: first the preprocessing in use, then other statistics, then other crops with the better ones."""

    statistics: tuple[Trial, ...]
    crops: tuple[Trial, ...]

    @property
    def trials(self) -> tuple[Trial, ...]:
        return self.statistics + self.crops

    @property
    def chosen(self) -> Trial:
        """The best statistics where they are clearly better than those in use, else what is in use."""
        return clearly_better(self.statistics[0], self.statistics[1:]) or self.statistics[0]

    def verdict(self) -> list[str]:
        """One sentence on the statistics and one on the crop."""
        used, chosen = self.statistics[0], self.chosen
        if chosen is used:
            lines = [
                f"mean and std in use fit: {used.top1:.1%} of {len(used.correct)} images, no other is clearly better"
            ]
        else:
            lines = [f"{chosen.name} fits better than what is in use: {compared(chosen, used)}"]
        crop = clearly_better(chosen, self.crops)
        if crop is not None:
            lines.append(f"{crop.name} fits better than the crop in use: {compared(crop, chosen)}")
        elif self.crops:
            lines.append("no other crop is clearly better than the one in use")
        return lines


def clearly_better(used: Trial, others: Iterable[Trial]) -> Trial | None:
    """The best of `others`, if chance alone would hardly make it so much better than `used`."""
    best = max(others, key=lambda trial: trial.top1, default=used)
    return best if best.top1 > used.top1 and chance(used, best) < 0.01 else None


def chance(one: Trial, other: Trial) -> float:
    """How likely so large a difference is if the two are equally good (exact McNemar test)."""
    pairs = list(zip(one.correct, other.correct, strict=True))
    lost, won = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    n = lost + won
    tail = sum(comb(n, k) for k in range(min(lost, won) + 1)) / 2**n
    return min(1.0, 2 * tail)


def compared(better: Trial, worse: Trial) -> str:
    """The evidence for a verdict, in words."""
    count = len(better.correct)
    return f"{better.top1:.1%} against {worse.top1:.1%} of {count} images, p = {chance(worse, better):.1g}"


def fit_preprocessing(model: Model, data: ImageDataset, batch_size: int = 16) -> Fit:
    """Try other statistics, then other crops with the better statistics, on the same images."""
    if model.card.head != "classifier":
        raise ValueError(f"{model.card.name} has no classifier to try preprocessings with: leave --data out")
    places = match_classes(data.class_names, model.card.class_names, model.config.classes)
    used = model.card.preprocess
    candidates = {"in use": used}
    if len(used.mean) == 3:
        for name, (mean, std) in STATISTICS.items():
            if (mean, std) != (used.mean, used.std):
                candidates[_say(name)] = replace(used, mean=mean, std=std)
    fit = Fit(tuple(_try(model, data, places, candidates, batch_size)), ())
    crops = [(name, crop) for name, crop in _crops(fit.chosen.preprocess) if crop != fit.chosen.preprocess]
    tried = [_try(model, data, places, {f"{name}, {fit.chosen.name}": crop}, batch_size)[0] for name, crop in crops]
    return replace(fit, crops=tuple(tried))


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
    model: Model, data: ImageDataset, places: list[int], candidates: dict[str, Preprocess], batch_size: int
) -> list[Trial]:
    """Run candidates that differ in mean and std alone: each image is decoded and cropped once."""
    first = next(iter(candidates.values()))
    plain = replace(first, mean=(0.0,) * len(first.mean), std=(1.0,) * len(first.std))

    def prepare(i: int) -> Tensor | ImageError:
        try:
            return plain(read_image(data.image(i)))  # [c h w] from 0 to 1
        except ImageError as error:
            return error

    correct: dict[str, list[bool]] = {name: [] for name in candidates}
    numbered = zip(prefetch(prepare, range(len(data)), waiting=2 * batch_size), data.labels, strict=True)
    for batch in batched(numbered, batch_size):
        good = [(pixels, places[label]) for pixels, label in batch if isinstance(pixels, Tensor)]
        if not good:
            continue
        pixels, target = torch.stack([p for p, _ in good]), torch.tensor([label for _, label in good])
        for name, candidate in candidates.items():
            mean, std = (torch.tensor(part).view(-1, 1, 1) for part in (candidate.mean, candidate.std))
            guess = run(model, (pixels - mean) / std, logits_only).argmax(dim=-1)
            correct[name] += (guess == target).tolist()
    if not any(correct.values()):
        raise ValueError(f"{data.name} holds no image that can be read: name other images")
    return [Trial(name, preprocess, tuple(correct[name])) for name, preprocess in candidates.items()]
