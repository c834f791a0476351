"""`evaluate`: accuracy and calibration on labelled images; `probe`: how well features separate classes."""

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.data.datasets import open_dataset
from vitreous.data.finding import Images, open_images
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import Compute
from vitreous.predict.classify import load_model
from vitreous.predict.pipeline import choose_compute, compute_batches, decode_batches, lanes_of, plain_compute
from vitreous.runtime.distributed import Rank, gather, span
from vitreous.runtime.files import write_atomic, write_json
from vitreous.weights.load import Model
from vitreous.weights.sidecar import imagenet_names, imagenet_wordnet_ids

ALONE = Rank()


@dataclass(repr=False)
class Evaluation:
    """The results of a model on labelled images; `confusion[i, j]` counts images of class i predicted as j."""

    top1: float
    top5: float
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

    def __repr__(self) -> str:
        return format_summary(self.summary())

    def _repr_html_(self) -> str:
        shown = ((name.replace("_", " "), format_value(name, value)) for name, value in self.summary().items())
        return f"<table>{''.join(f'<tr><th>{name}<td>{html.escape(value)}' for name, value in shown)}</table>"

    def per_class(self) -> dict[str, float]:
        """Return the accuracy of each class; classes without images are left out."""
        counts = self.confusion.sum(dim=1)
        rates = self.confusion.diagonal() / counts
        return {self.class_names[i]: rates[i].item() for i in counts.nonzero().flatten().tolist()}

    def summary(self) -> dict[str, Any]:
        """Return the figures, rounded, for JSON."""
        return {
            "top1": round(self.top1, 6),
            "top5": round(self.top5, 6),
            "images": self.images,
            "loss": round(self.loss, 6),
            "calibration_error": round(self.calibration_error, 6),
            "unreadable": len(self.problems),
        }

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


def format_value(name: str, value: Any) -> str:
    """Format a figure of a summary: shares in percent, counts with commas.

    >>> format_value("top1", 0.7244), format_value("images", 50000)
    ('72.44%', '50,000')
    """
    if name in ("top1", "top5", "calibration_error"):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_summary(summary: dict[str, Any]) -> str:
    """Format the figures of a summary, one a line."""
    return "\n".join(f"{name.replace('_', ' '):<18} {format_value(name, value)}" for name, value in summary.items())


@dataclass
class _Tally:
    """The outcome of each image, in the dataset's order; every figure follows from it."""

    label: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    """The most probable class."""
    in_top5: list[bool] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    """The probability of the predicted class."""
    loss: list[float] = field(default_factory=list)
    problems: list[ImageError] = field(default_factory=list)

    def add(self, logits: Tensor, label: Tensor) -> None:
        """Add logits `[b classes]` and labels `[b]`."""
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
    preprocess: Preprocess | None = None,
    rank: Rank = ALONE,
    compute: Compute | None = None,
) -> Evaluation:
    """Measure accuracy and calibration of a model on labelled images.

    `data` is a dataset, or a name, folder or parquet file for `open_dataset` (its test split); or images, as `classify`
    takes them, with their `labels`. The dataset's classes are matched to the model's by name, WordNet id or index.
    `limit` takes so many images, evenly. `preprocess` replaces the model's own. Unreadable images are counted apart.

    Inside `with cpu_group() as rank`, each process measures its span of the data, and all return the figures of the
    whole. `compute` returns logits of pixels in place of the plain model, such as what `optimize` returns.

    >>> from vitreous.data.samples import samples
    >>> result = evaluate([samples()["chelsea"]], labels=[3], device="cpu")
    >>> result.images, result.confusion.shape[0] == len(result.class_names)
    (1, True)
    """
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_confusion_matrix

    data = _labelled(data, labels)
    data = data if limit is None else data.spread(limit)
    model = load_model(model)
    card, classes = model.card, model.config.classes
    if card.head != "classifier":
        raise ValueError(f"{card.name} has no classifier: use --probe knn or --probe linear")
    indices = match_classes(data.class_names, card.class_names, classes)
    if compute is None:
        compute = choose_compute(model, fast=fast, batch_size=batch_size, device=device, precision=precision)
    run = compute or plain_compute(model, "logits", device, precision)
    view = preprocess or card.preprocess
    own_statistics = (view.mean, view.std) == (card.preprocess.mean, card.preprocess.std)

    own = data if rank.world_size == 1 else data.take(span(len(data), rank))
    tally = _Tally()
    batches = decode_batches(own, view, batch_size, tally.problems)
    if not own_statistics:  # another mean and std are not part of the model
        batches = ((view.normalise(pixels), part) for pixels, part in batches)
    for part, logits in compute_batches(run, batches, lanes=lanes_of(run)):
        tally.add(logits, torch.tensor([indices[label] for label in part]))
    tally, *others = gather(tally, rank)
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
        top5=sum(tally.in_top5) / count,
        images=count,
        loss=sum(tally.loss) / count,
        calibration_error=calibration.item(),
        class_names=tuple(card.label(i) for i in range(classes)),
        confusion=multiclass_confusion_matrix(predicted, label, classes),
        correct=correct.tolist(),
        problems=tally.problems,
    )


def _labelled(data: ImageDataset | Images, labels: Sequence[int | str] | None) -> ImageDataset:
    """Open `data` as a dataset; images come with labels, by class index or name."""
    if isinstance(data, ImageDataset):
        return data
    if labels is None:
        if isinstance(data, (str, Path)):
            return open_dataset(data)
        raise ValueError("images need labels to be evaluated on: pass labels, or a dataset's name or folder")
    images, _ = open_images(data)
    if len(images) != len(labels):
        raise ValueError(f"expected a label for each image, got {len(images)} images and {len(labels)} labels")
    words = [str(label) for label in labels]
    names = sorted(set(words))
    return ImageDataset("images", tuple(names), tuple(names.index(word) for word in words), images.__getitem__)


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


def probe(
    train: ImageDataset,
    test: ImageDataset,
    model: Model | str | None = None,
    kind: Literal["knn", "linear"] = "knn",
    *,
    batch_size: int = 16,
    device: str = "auto",
) -> dict[str, Any]:
    """Measure how well features separate classes: `knn` (20 nearest, cosine) or `linear` (logistic regression).

    Works for every model, headless ones too, and for classes that the model was not trained on.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if train.class_names != test.class_names:
        raise ValueError("the train and test images have different classes: a probe needs the same folders in both")
    model = load_model(model)
    compute = plain_compute(model, "features", device)
    problems: list[ImageError] = []
    train_x, train_y = _features(compute, model.card.preprocess, train, batch_size, problems)
    test_x, test_y = _features(compute, model.card.preprocess, test, batch_size, problems)
    if len(set(train_y.tolist())) < 2:
        raise ValueError(f"{train.name} has one class only: a probe needs at least two, a sub-folder each")
    if kind == "knn":
        classifier = KNeighborsClassifier(min(20, len(train_x)), metric="cosine", weights="distance")
    elif kind == "linear":
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    else:
        raise ValueError(f"a probe is knn or linear, got {kind!r}")
    classifier.fit(train_x, train_y)
    top1 = float((classifier.predict(test_x) == test_y).mean())
    counts = {"images": len(test_y), "train_images": len(train_y), "unreadable": len(problems)}
    return {"probe": kind, "top1": round(top1, 6), **counts}


def _features(
    compute: Compute, preprocess: Preprocess, data: ImageDataset, batch_size: int, problems: list[ImageError]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Compute features `[n d]` and labels `[n]` of a dataset."""
    rows, labels = [], []
    for pixels, part in decode_batches(data, preprocess, batch_size, problems):
        rows.append(compute(pixels).cpu())
        labels += part
    if not rows:
        raise problems[0] if problems else ValueError(f"{data.name} holds no images")
    return torch.cat(rows).numpy(), np.array(labels)
