"""`evaluate`: how often a model is right on labelled images, and how well it knows it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError, read_image
from vitreous.data.prefetch import batched, prefetch
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import logits_only
from vitreous.predict.class_match import match_classes
from vitreous.predict.classify import placed, run, started
from vitreous.predict.embed import embedding
from vitreous.predict.pipeline import answered, lanes_of
from vitreous.runtime.distributed import Rank, gather, span
from vitreous.runtime.files import write_atomic, write_json
from vitreous.weights.load import Model

ALONE = Rank()


@dataclass
class Evaluation:
    """What came out; `confusion[i, j]` counts images of class i that were called j."""

    top1: float
    top5: float
    images: int
    loss: float
    calibration_error: float
    """Expected calibration error: how far confidence and accuracy lie apart, over 15 bins."""
    class_names: tuple[str, ...]
    confusion: Tensor
    correct: list[bool]
    """Whether each image's first guess was right, in the set's order."""
    problems: list[ImageError] = field(default_factory=list)

    def per_class(self) -> dict[str, float]:
        """The share of each class's images that were recognised; classes without images are left out."""
        counts = self.confusion.sum(dim=1)
        rates = self.confusion.diagonal() / counts
        return {self.class_names[i]: rates[i].item() for i in counts.nonzero().flatten().tolist()}

    def summary(self) -> dict[str, Any]:
        return {
            "top1": round(self.top1, 6),
            "top5": round(self.top5, 6),
            "images": self.images,
            "loss": round(self.loss, 6),
            "calibration_error": round(self.calibration_error, 6),
            "unreadable": len(self.problems),
        }

    def write(self, folder: str | Path) -> list[Path]:
        """`result.json`, `per_class.json` and `confusion.npz` in a folder."""
        folder = Path(folder)

        def write_confusion(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez_compressed(file, confusion=self.confusion.numpy(), classes=np.array(self.class_names))

        return [
            write_json(folder / "result.json", self.summary()),
            write_json(folder / "per_class.json", self.per_class()),
            write_atomic(folder / "confusion.npz", write_confusion),
        ]


@dataclass
class _Tally:
    """What is kept of each image, in the set's order; every figure follows from it."""

    target: list[int] = field(default_factory=list)
    called: list[int] = field(default_factory=list)
    """The first guess."""
    among: list[bool] = field(default_factory=list)
    """Whether the right class is among the five best."""
    confidence: list[float] = field(default_factory=list)
    """The first guess's probability."""
    loss: list[float] = field(default_factory=list)
    problems: list[ImageError] = field(default_factory=list)

    def add(self, logits: Tensor, target: Tensor) -> None:
        """Logits `[b classes]` and the right classes `[b]`."""
        confidence = logits.softmax(dim=-1).max(dim=-1).values
        best = logits.topk(min(5, logits.shape[-1])).indices  # [b 5]
        self.target += target.tolist()
        self.called += logits.argmax(dim=-1).tolist()
        self.among += (best == target[:, None]).any(dim=-1).tolist()
        self.confidence += confidence.tolist()
        self.loss += torch.nn.functional.cross_entropy(logits, target, reduction="none").tolist()

    def follow(self, other: "_Tally") -> None:
        """Put another one's images behind one's own."""
        for each in fields(self):
            getattr(self, each.name).extend(getattr(other, each.name))


def evaluate(
    model: Model,
    data: ImageDataset,
    *,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "fp32",
    preprocess: Preprocess | None = None,
    place: Rank = ALONE,
    using: Callable[[Tensor], Tensor] | None = None,
) -> Evaluation:
    """Measure accuracy and calibration; the set's classes are matched to the model's by name, WordNet id or number.

    `preprocess` takes the place of the model's own. Images that cannot be read are counted apart. Inside
    `with cpu_group() as place`, each process measures its span of the set, and all get the figures of the whole. `using`
    computes logits instead of the plain model, such as what `optimize` gives.
    """
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_confusion_matrix

    card, classes = model.card, model.config.classes
    if card.head != "classifier":
        raise ValueError(f"{card.name} has no classifier: use --probe knn or --probe linear")
    places = match_classes(data.class_names, card.class_names, classes)
    compute = using or partial(started, placed(model, device, precision), function=logits_only)
    view = preprocess or card.preprocess
    own_statistics = (view.mean, view.std) == (card.preprocess.mean, card.preprocess.std)

    def begin(batch: tuple[Tensor, list[int]]) -> Tensor:  # others' statistics are no part of the model
        return compute(batch[0] if own_statistics else view.normalise(batch[0]))

    own = data if place.world_size == 1 else data.take(span(len(data), place))
    tally = _Tally()
    found = prepared(own, view, batch_size, tally.problems)
    for (_, labels), logits in answered(begin, found, lanes=lanes_of(using)):
        tally.add(logits, torch.tensor([places[label] for label in labels]))
    tally, *others = gather(tally, place)
    for other in others:
        tally.follow(other)
    count = len(tally.target)
    if not count:
        raise tally.problems[0] if tally.problems else ValueError(f"{data.name} holds no images")
    target, called = torch.tensor(tally.target), torch.tensor(tally.called)
    correct = target == called
    # how sure it was of its first guess, and whether that was right: a question of two classes
    calibration = binary_calibration_error(torch.tensor(tally.confidence).clamp(0, 1), correct.int(), n_bins=15)
    return Evaluation(
        top1=correct.sum().item() / count,
        top5=sum(tally.among) / count,
        images=count,
        loss=sum(tally.loss) / count,
        calibration_error=calibration.item(),
        class_names=tuple(card.label(i) for i in range(classes)),
        confusion=multiclass_confusion_matrix(called, target, classes),
        correct=correct.tolist(),
        problems=tally.problems,
    )


def probe(
    model: Model, train: ImageDataset, test: ImageDataset, kind: str, *, batch_size: int = 16, device: str = "auto"
) -> dict[str, Any]:
    """How well the features alone separate the classes: `knn` (20 nearest, cosine) or `linear` (logistic regression).

    Works for every model, headless ones too, and for classes that the model has never seen.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if train.class_names != test.class_names:
        raise ValueError("the train and test images have different classes: a probe needs the same folders in both")
    model = placed(model, device, "fp32")
    problems: list[ImageError] = []
    seen, known = _features(model, train, batch_size, problems)
    asked, truth = _features(model, test, batch_size, problems)
    if len(set(known.tolist())) < 2:
        raise ValueError(f"{train.name} has one class only: a probe needs at least two, a sub-folder each")
    if kind == "knn":
        classifier = KNeighborsClassifier(min(20, len(seen)), metric="cosine", weights="distance")
    elif kind == "linear":
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    else:
        raise ValueError(f"a probe is knn or linear, got {kind!r}")
    classifier.fit(seen, known)
    top1 = float((classifier.predict(asked) == truth).mean())
    counts = {"images": len(truth), "train_images": len(known), "unreadable": len(problems)}
    return {"probe": kind, "top1": round(top1, 6), **counts}


def prepared(
    data: ImageDataset, preprocess: Preprocess, batch_size: int, problems: list[ImageError]
) -> Iterator[tuple[Tensor, list[int]]]:
    """Batches of pixels `[b c h w]`, uint8, with their labels, decoded ahead; what is unreadable goes to `problems`."""

    def prepare(i: int) -> tuple[Tensor | ImageError, int]:
        try:
            return preprocess.pixels(read_image(data.image(i))), data.labels[i]
        except ImageError as error:
            return error, data.labels[i]

    for batch in batched(prefetch(prepare, range(len(data)), waiting=2 * batch_size), batch_size):
        problems += [tensor for tensor, _ in batch if isinstance(tensor, ImageError)]
        good = [(tensor, label) for tensor, label in batch if isinstance(tensor, Tensor)]
        if good:
            yield torch.stack([tensor for tensor, _ in good]), [label for _, label in good]


def _features(
    model: Model, data: ImageDataset, batch_size: int, problems: list[ImageError]
) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = [], []
    for tensors, part in prepared(data, model.card.preprocess, batch_size, problems):
        rows.append(run(model, tensors, embedding))
        labels += part
    if not rows:
        raise problems[0] if problems else ValueError(f"{data.name} holds no images")
    return torch.cat(rows).numpy(), np.array(labels)
