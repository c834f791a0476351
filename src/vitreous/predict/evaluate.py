"""`evaluate` of the Python API: accuracy with its interval, calibration, confusion matrix on images not trained on."""

import html
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.datasets import open_dataset, open_split
from vitreous.data.finding import Images, open_images
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.preprocess import Fit, Preprocess
from vitreous.models.last_block import Compute
from vitreous.predict.class_names import match_classes
from vitreous.predict.pipeline import choose_compute, compute_batches, decode_batches, lanes_of, plain_compute
from vitreous.predict.words import PLAIN, named_by_folders, with_folder_names
from vitreous.runtime.distributed import Rank, span
from vitreous.runtime.files import write_atomic, write_json
from vitreous.weights.load import Model, loaded
from vitreous.weights.runs import is_run

ALONE = Rank()


@dataclass(repr=False)
class Evaluation:
    """The results of a model on labelled images; `confusion[i, j]` counts images of class i predicted as j."""

    top1: float
    top5: float | None
    """None for five classes or fewer: each is among the first five."""
    images: int
    loss: float
    calibration_error: float
    """Expected calibration error: the mean gap between confidence and accuracy, over 15 bins."""
    class_names: tuple[str, ...]
    confusion: Tensor
    correct: list[bool]
    """Whether each image's top class is its label, in the dataset's order."""
    problems: list[ImageError] = field(default_factory=list)
    """Errors of unreadable images, which count for nothing else."""
    note: str = ""
    """Which part of the data was measured, if the model was trained on it."""

    def __repr__(self) -> str:
        return "\n".join(filter(None, (format_summary(self.summary()), self.format_classes(), self.note)))

    def _repr_html_(self) -> str:
        shown = ((name.replace("_", " "), format_value(name, value)) for name, value in self.summary().items())
        rows = "".join(f"<tr><th>{name}<td>{html.escape(value)}" for name, value in shown)
        return f"<table>{rows}</table>" + (f"<p>{html.escape(self.note)}</p>" if self.note else "")

    @property
    def counts(self) -> dict[str, int]:
        """The number of images of each evaluated class that has some."""
        counts = self.confusion.sum(dim=1)
        return {self.class_names[i]: int(counts[i]) for i in counts.nonzero().flatten().tolist()}

    def per_class(self) -> dict[str, float]:
        """Return the accuracy of each class; classes without images are left out."""
        counts = self.confusion.sum(dim=1)
        rates = self.confusion.diagonal() / counts
        return {self.class_names[i]: rates[i].item() for i in counts.nonzero().flatten().tolist()}

    @property
    def is_balanced(self) -> bool:
        """Whether all classes have as many images; if not, the largest classes make most of `top1`."""
        return len(set(self.counts.values())) == 1

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the classes' accuracies: each class counts the same."""
        rates = self.per_class().values()
        return sum(rates) / len(rates)

    @property
    def top1_interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `top1` (Wilson's)."""
        return confidence_interval(sum(self.correct), self.images)

    def summary(self) -> dict[str, Any]:
        """Return the figures of an evaluation, rounded, for JSON."""
        found = {
            "top1": round(self.top1, 6),
            "top1_interval": [round(end, 6) for end in self.top1_interval],
            "top5": None if self.top5 is None else round(self.top5, 6),
            "balanced_accuracy": None if self.is_balanced else round(self.balanced_accuracy, 6),
            "images": self.images,
            "loss": round(self.loss, 6),
            "calibration_error": round(self.calibration_error, 6),
            "unreadable": len(self.problems),
        }
        return {name: value for name, value in found.items() if value is not None}

    def format_classes(self, limit: int = 20) -> str:
        """Format each class's accuracy, the lowest first, if classes have different numbers of images."""
        if self.is_balanced:
            return ""
        rates, counts = self.per_class(), self.counts
        ranked = sorted(rates, key=lambda name: rates[name])
        width = max(len(name) for name in ranked[:limit])
        lines = [f"  {name:<{width}}  {rates[name]:7.2%} of {counts[name]:,}" for name in ranked[:limit]]
        return "\n".join(lines + ([f"  … and {len(ranked) - limit} more classes"] if len(ranked) > limit else []))

    def write(self, folder: str | Path) -> list[Path]:
        """Write `result.json`, `per_class.json` and `confusion.npz` to a folder."""
        folder = Path(folder)

        def write_confusion(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez_compressed(file, confusion=self.confusion.numpy(), class_names=np.array(self.class_names))

        return [
            write_json(folder / "result.json", self.summary()),
            write_json(folder / "per_class.json", self.per_class()),
            write_atomic(folder / "confusion.npz", write_confusion),
        ]


def confidence_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share, by Wilson's formula.

    >>> [round(end, 3) for end in confidence_interval(9, 10)]
    [0.596, 0.982]
    """
    from scipy.stats import binomtest

    found = binomtest(hits, count).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def format_value(name: str, value: Any) -> str:
    """Format a figure of an evaluation's summary: shares in percent, counts with commas.

    >>> format_value("top1", 0.7244), format_value("top1_interval", (0.68, 0.762)), format_value("images", 50000)
    ('72.44%', '68.0% to 76.2% (95 % confidence)', '50,000')
    """
    if name == "top1_interval":
        return f"{value[0]:.1%} to {value[1]:.1%} (95 % confidence)"
    if name in ("top1", "top5", "balanced_accuracy", "calibration_error"):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_summary(summary: dict[str, Any]) -> str:
    """Format the figures of an evaluation's summary, one a line."""
    return "\n".join(f"{name.replace('_', ' '):<18} {format_value(name, value)}" for name, value in summary.items())


@dataclass
class _Tally:
    """The outcome of each evaluated image, in the dataset's order; every figure follows from it."""

    label: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    """The most probable class."""
    in_top5: list[bool] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    """The probability of the predicted class."""
    loss: list[float] = field(default_factory=list)
    problems: list[ImageError] = field(default_factory=list)

    def add(self, logits: Tensor, label: Tensor) -> None:
        """Add the outcome of a batch to the evaluation: logits `[b classes]` and labels `[b]`."""
        confidence = logits.softmax(dim=-1).max(dim=-1).values
        best = logits.topk(min(5, logits.shape[-1])).indices  # [b 5]
        self.label += label.tolist()
        self.predicted += logits.argmax(dim=-1).tolist()
        self.in_top5 += (best == label[:, None]).any(dim=-1).tolist()
        self.confidence += confidence.tolist()
        self.loss += torch.nn.functional.cross_entropy(logits, label, reduction="none").tolist()


def evaluate(
    data: ImageDataset | Images,
    model: Model | str | None = None,
    *,
    labels: Sequence[int | str] | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "fp32",
    fast: bool = False,
    fit: Fit | None = None,
    preprocess: Preprocess | None = None,
    all_images: bool = False,
    templates: Sequence[str] = PLAIN,
    rank: Rank = ALONE,
    compute: Compute | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Evaluation:
    """Measure accuracy and calibration of a model on labelled images.

    `data` is a dataset, or a name, folder or parquet file for `open_dataset` (its test split); or images, as `classify`
    takes them, with their `labels`. The dataset's classes are matched to the model's by name, WordNet id or index.
    `limit` takes so many images, evenly. `fit` crops, squashes or pads images of other sides than the model's, and
    `preprocess` replaces all of the model's own. Unreadable images are counted apart. Of the folder that the model was
    trained on, the images that were held out then are measured, unless `all_images`.

    A CLIP or SigLIP gets the dataset's class names as words (`n02123045_tabby_cat` is "tabby cat"); `templates` are the
    sentences around them, such as `["a photo of a {}"]`, or `ENSEMBLE` of `vitreous.predict.words`.

    Inside `with cpu_group() as rank`, each process measures its span of the data, and all return the figures of the
    whole. `compute` returns logits of pixels in place of the plain model, such as what `optimize` returns.
    `progress` gets how many of this process's images are done, and of how many.

    >>> from vitreous.data.samples import samples
    >>> result = evaluate([samples()["chelsea"]], "packaged:cifar10", labels=[3], device="cpu")
    >>> result.images, result.confusion.shape[0] == len(result.class_names)
    (1, True)
    """
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_confusion_matrix

    model, note = loaded(model), ""
    if labels is None and isinstance(data, (str, Path)):
        data, note = open_unseen(data, model, all_images=all_images)
    data = _labelled(data, labels)
    data = data if limit is None else data.spread(limit)
    if compute is None:
        model = with_folder_names(model, data.class_names, templates)
    card, classes = model.card, model.config.classes
    if card.head != "classifier":
        raise ValueError(f"{card.name} has no classifier: use --probe knn or --probe linear")
    own_names = named_by_folders(model, data.class_names)
    indices = list(range(classes)) if own_names else match_classes(data.class_names, card.class_names, classes)
    if compute is None:
        compute = choose_compute(model, fast=fast, batch_size=batch_size, device=device, precision=precision)
    run = compute or plain_compute(model, "logits", device, precision)
    view = (preprocess or card.preprocess).with_fit(fit)
    own_statistics = (view.mean, view.std) == (card.preprocess.mean, card.preprocess.std)

    own = data if rank.world_size == 1 else data.take(span(len(data), rank))
    tally = _Tally()
    batches = decode_batches(own, view, batch_size, tally.problems)
    if not own_statistics:  # another mean and std are not part of the model
        batches = ((view.normalise(pixels), part) for pixels, part in batches)
    for part, logits in compute_batches(run, batches, lanes=lanes_of(run)):
        tally.add(logits, torch.tensor([indices[label] for label in part]))
        progress(len(tally.label) + len(tally.problems), len(own))
    tally, *others = rank.gather(tally)
    for other in others:  # the images of other ranks
        for each in fields(tally):
            getattr(tally, each.name).extend(getattr(other, each.name))
    count = len(tally.label)
    if not count:
        raise tally.problems[0] if tally.problems else ValueError(f"{data.name} holds no images")
    label, predicted = torch.tensor(tally.label), torch.tensor(tally.predicted)
    correct = label == predicted
    # confidence in the top class against its correctness: a problem of two classes
    calibration = binary_calibration_error(torch.tensor(tally.confidence).clamp(0, 1), correct.int(), n_bins=15)
    return Evaluation(
        top1=correct.sum().item() / count,
        top5=sum(tally.in_top5) / count if classes > 5 else None,
        images=count,
        loss=sum(tally.loss) / count,
        calibration_error=calibration.item(),
        class_names=tuple(card.label(i) for i in range(classes)),
        confusion=multiclass_confusion_matrix(predicted, label, classes),
        correct=correct.tolist(),
        problems=tally.problems,
        note=note,
    )


def open_unseen(
    name: str | Path, model: Model, root: Path | None = None, *, all_images: bool = False
) -> tuple[ImageDataset, str]:
    """Open the images to evaluate on: test images, or of a model's own training data those held out then; say so."""
    data = open_dataset(name, "test", root)
    used = training_config(model)
    if used is None or used.get("stream"):
        return data, ""
    try:
        train, held_out = open_split(name, root, used["held_out"], train=used["train_split"])
    except (ValueError, KeyError, OSError):  # other splits than the training had, or a record of something else
        return data, ""
    if len(held_out) == len(data) or train.class_names != model.card.class_names:  # a test split, or other data
        return data, ""
    if not _is_same_data(name, used, len(train), model):
        return data, f"the model was trained on {used.get('data')}: if it learned from these images, this is too high"
    if all_images:
        return data, f"the model learned from {len(train):,} of these {len(data):,} images, so this is too high"
    return held_out, (
        f"the model learned from {len(train):,} of these {len(data):,} images: measured on the {len(held_out):,} that "
        "were held out (--all for all)"
    )


def _is_same_data(name: str | Path, used: dict[str, Any], train_images: int, model: Model) -> bool:
    """Return whether the evaluated model was trained on this data: by its path, or by its name if it was moved."""
    before, now = (os.path.realpath(str(path)) for path in (used.get("data"), name))
    share = used.get("validation") or 0
    learned = train_images - (max(1, round(share * train_images)) if share else 0)
    recorded = (model.card.training or {}).get("training_images")
    return before == now or (os.path.basename(before) == os.path.basename(now) and learned == recorded)


def training_config(model: Model) -> dict[str, Any] | None:
    """Return the settings that an evaluated model was trained with: its record, or its run's config."""
    record = model.card.training
    if isinstance(record, dict) and isinstance(record.get("config"), dict):
        return dict(record["config"])
    for file in model.card.files[:1]:
        run = Path(file).absolute().parent.parent
        if is_run(run):
            try:
                found = json.loads((run / "config.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
            return found if isinstance(found, dict) else None
    return None


def _labelled(data: ImageDataset | Images, labels: Sequence[int | str] | None) -> ImageDataset:
    """Open `data` for `evaluate` as a dataset; images come with labels, by class index or name."""
    if isinstance(data, ImageDataset):
        return data
    if labels is None:
        raise ValueError("images need labels to be evaluated on: pass labels, or a dataset's name or folder")
    images, _ = open_images(data)
    if len(images) != len(labels):
        raise ValueError(f"expected a label for each image, got {len(images)} images and {len(labels)} labels")
    words = [str(label) for label in labels]
    names = sorted(set(words))
    return ImageDataset("images", tuple(names), tuple(names.index(word) for word in words), images.__getitem__)
