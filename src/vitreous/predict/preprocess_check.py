"""Check a checkpoint's preprocessing: try plausible means, stds and crops on labelled images, and test the difference.

A wrong mean and std cost up to 30 points of accuracy without any error.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from vitreous.data.image_dataset import NOUNS, ImageDataset
from vitreous.data.preprocess import STATISTICS, Preprocess
from vitreous.predict.class_matching import match_dataset
from vitreous.predict.pipeline import PlainCompute, decode_batches
from vitreous.weights.load import Model

BATCH = 16
CROP_SHARES = (0.875, 0.9, 0.95, 1.0)
"""The share of the resized image that the crop keeps, as in common recipes."""


@dataclass(frozen=True)
class PreprocessTrial:
    """One preprocessing, and which images it classifies correctly."""

    name: str
    preprocess: Preprocess
    correct: tuple[bool, ...]

    @property
    def top1(self) -> float:
        return sum(self.correct) / len(self.correct)


@dataclass(frozen=True)
class PreprocessCheck:
    """All trials of preprocessings: the one in use, then other statistics, then other crops with the best of these."""

    statistics: tuple[PreprocessTrial, ...]
    crops: tuple[PreprocessTrial, ...]

    @property
    def trials(self) -> tuple[PreprocessTrial, ...]:
        return self.statistics + self.crops

    @property
    def chosen(self) -> PreprocessTrial:
        """The statistics that the check of preprocessing chose: the best if significantly better, else those in use."""
        return clearly_better(self.statistics[0], self.statistics[1:]) or self.statistics[0]

    def verdict(self) -> list[str]:
        """Write what the check of preprocessing found: a sentence on the statistics and one on the crop."""
        used, chosen = self.statistics[0], self.chosen
        if chosen is used:
            share = f"{used.top1:.1%} of {len(used.correct)} images"
            lines = [f"mean and std in use fit: {share}, no other is clearly better"]
        else:
            lines = [f"{chosen.name} fits better than what is in use: {compared(chosen, used)}"]
        crop = clearly_better(chosen, self.crops)
        if crop is not None:
            lines.append(f"{crop.name} fits better than the crop in use: {compared(crop, chosen)}")
        elif self.crops:
            lines.append("no other crop is clearly better than the one in use")
        return lines


def clearly_better(used: PreprocessTrial, others: Iterable[PreprocessTrial]) -> PreprocessTrial | None:
    """Return the preprocessing of `others` that is significantly better than the one in `used` (p < 0.01), if any."""
    best = max(others, key=lambda trial: trial.top1, default=used)
    return best if best.top1 > used.top1 and p_value(used, best) < 0.01 else None


def p_value(one: PreprocessTrial, other: PreprocessTrial) -> float:
    """Return the p-value of the difference between two preprocessings on the same images (exact McNemar test)."""
    from scipy.stats import binomtest

    pairs = list(zip(one.correct, other.correct, strict=True))
    lost, won = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    return float(binomtest(won, lost + won).pvalue) if lost + won else 1.0


def compared(better: PreprocessTrial, worse: PreprocessTrial) -> str:
    """Describe the difference in accuracy between two preprocessings that the check tried."""
    count = len(better.correct)
    return f"{better.top1:.1%} against {worse.top1:.1%} of {count} images, p = {p_value(worse, better):.1g}"


def check_preprocess(
    model: Model, data: ImageDataset, progress: Callable[[int, int], object] = lambda done, total: None
) -> PreprocessCheck:
    """Check the preprocessing: try other statistics, then other crops with the best statistics, on the same images.

    `progress` gets how many forward passes of an image are done, and of how many.
    """
    if model.card.head != "classifier":
        raise ValueError(f"{model.card.name} has no classifier to try preprocessings with: leave --data out")
    if model.card.task != "classify" or data.task != "classify":
        who, what = (model.card.name, model.card.task) if model.card.task != "classify" else (data.name, data.task)
        advice = "leave --data out, and measure the model with vitreous evaluate"
        raise ValueError(f"preprocessings are tried on images with a class each, and {who} has {NOUNS[what]}: {advice}")
    indices = match_dataset(data, model)
    used = model.card.preprocess
    candidates = {"in use": used}
    if len(used.mean) == 3:
        for mean, std in STATISTICS.values():
            if (mean, std) != (used.mean, used.std):
                numbers = [" ".join(f"{value:.3g}" for value in dict.fromkeys(part)) for part in (mean, std)]
                candidates[f"mean {numbers[0]}, std {numbers[1]}"] = replace(used, mean=mean, std=std)
    total = len(data) * (len(candidates) + sum(crop != used for _, crop in _crops(used)))
    done = 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        progress(done, total)

    given = (model, data, indices, advance)
    check = PreprocessCheck(tuple(_try(candidates, *given)), ())
    crops = [(name, crop) for name, crop in _crops(check.chosen.preprocess) if crop != check.chosen.preprocess]
    tried = [_try({f"{name}, {check.chosen.name}": crop}, *given)[0] for name, crop in crops]
    return replace(check, crops=tuple(tried))


def _crops(preprocess: Preprocess) -> Iterator[tuple[str, Preprocess]]:
    """List the crops that the check of preprocessing tries."""
    height, width = preprocess.size
    for share in CROP_SHARES:
        if height == width:
            yield f"crop {share:g}", replace(preprocess, resize=int(height / share), cover=False, pad=False)
    yield "squashed", preprocess.with_fit("squash")


def _try(
    candidates: dict[str, Preprocess],
    model: Model,
    data: ImageDataset,
    indices: list[int],
    advance: Callable[[int], object],
) -> list[PreprocessTrial]:
    """Try preprocessings, to check the one in use, that differ in mean and std alone: each image is decoded once."""
    first = next(iter(candidates.values()))
    correct: dict[str, list[bool]] = {name: [] for name in candidates}
    compute = PlainCompute(model)
    for pixels, labels in decode_batches(data, first, BATCH, problems=[]):
        target = torch.tensor(indices)[labels]
        for name, candidate in candidates.items():
            predicted = compute(candidate.normalise(pixels)).cpu().argmax(dim=-1)
            correct[name] += (predicted == target).tolist()
            advance(len(labels))
    if not any(correct.values()):
        raise ValueError(f"{data.name} holds no image that can be read: name other images")
    return [PreprocessTrial(name, preprocess, tuple(correct[name])) for name, preprocess in candidates.items()]
