"""`probe`: how well a model's features separate classes, by k-NN or logistic regression."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import Compute
from vitreous.predict.pipeline import decode_batches, plain_compute
from vitreous.weights.load import Model, loaded


def probe(
    train: ImageDataset,
    test: ImageDataset,
    model: Model | str | None = None,
    kind: Literal["knn", "linear"] = "knn",
    *,
    batch_size: int = 16,
    device: str = "auto",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure how well features separate classes: `knn` (20 nearest, cosine) or `linear` (logistic regression).

    Works for every model, headless ones too, and for classes that the model was not trained on.
    `progress` gets how many images are done, and of how many.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if train.class_names != test.class_names:
        raise ValueError("the train and test images have different classes: a probe needs the same folders in both")
    model = loaded(model)
    compute = plain_compute(model, "features", device)
    problems: list[ImageError] = []
    total = len(train) + len(test)
    given = (compute, model.card.preprocess, batch_size, problems)
    train_x, train_y = _features(train, *given, lambda done: progress(done, total))
    test_x, test_y = _features(test, *given, lambda done: progress(len(train) + done, total))
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
    data: ImageDataset,
    compute: Compute,
    preprocess: Preprocess,
    batch_size: int,
    problems: list[ImageError],
    progress: Callable[[int], object],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Compute the features `[n d]` and labels `[n]` of a dataset that a probe learns from."""
    rows, labels = [], []
    for pixels, part in decode_batches(data, preprocess, batch_size, problems):
        rows.append(compute(pixels).cpu())
        labels += part
        progress(len(labels))
    if not rows:
        raise problems[0] if problems else ValueError(f"{data.name} holds no images")
    return torch.cat(rows).numpy(), np.array(labels)
