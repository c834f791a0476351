"""`probe`: how well a model's features separate classes, by k-NN or logistic regression."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import Compute
from vitreous.predict.classify import load_model
from vitreous.predict.pipeline import decode_batches, plain_compute
from vitreous.weights.load import Model


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
