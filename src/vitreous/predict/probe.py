"""`probe`: how well a model's features separate classes, by k-NN or logistic regression; of images or of patches.

Shapes:  b images · d width of the features · k classes · h w pixels as the model sees an image
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.counter_random import CounterRandom
from vitreous.data.image_dataset import NOUNS, ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.masks import IGNORE
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import Compute
from vitreous.models.timm_classifier import TimmConfig
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.mask_scores import check_masks, class_ious, mask_figures, mask_rows, split_counts
from vitreous.predict.pipeline import PlainCompute, copy_to, decode_batches, patch_features, plain_compute
from vitreous.weights.load import Model, loaded

PATCHES = 50_000
"""About so many patches are learned from; of more, so many are drawn."""


def probe(
    train: ImageDataset,
    test: ImageDataset,
    model: Model | str | None = None,
    kind: Literal["knn", "linear"] = "knn",
    *,
    tokens: bool = False,
    blocks: Sequence[int] = (),
    patches: int = PATCHES,
    seed: int = 0,
    batch_size: int = 16,
    device: str = "auto",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure how well features separate classes: `knn` (20 nearest, cosine) or `linear` (logistic regression).

    Works for every model, headless ones too, and for classes that the model was not trained on.
    `progress` gets how many images are done, and of how many.

    With `tokens`, `linear` separates the classes of masks by the features of each patch: of the last block, or those of
    several `blocks` side by side. It learns from about `patches` patches, drawn by `seed`; a patch's class is that of
    most of its pixels. Its scores, upsampled to the mask as the model sees it, are measured as segmentations are.
    """
    if train.class_names != test.class_names:
        raise ValueError("the train and test images have different classes: a probe needs the same folders in both")
    if kind not in ("knn", "linear"):
        raise ValueError(f"a probe is knn or linear, got {kind!r}")
    if blocks and not tokens:
        raise ValueError("blocks are chosen for the features of patches: set tokens too")
    model = loaded(model)
    given: dict[str, Any] = {"batch_size": batch_size, "device": device, "progress": progress}
    if not tokens:
        return _probe_images(train, test, model, kind, **given)
    if kind != "linear":
        raise ValueError(f"features of patches have a linear probe, got {kind!r}: set kind to linear")
    return _probe_patches(train, test, model, blocks, patches, seed, **given)


# --- images -----------------------------------------------------------------------------------------------------------


def _probe_images(
    train: ImageDataset,
    test: ImageDataset,
    model: Model,
    kind: str,
    batch_size: int,
    device: str,
    progress: Callable[[int, int], object],
) -> dict[str, Any]:
    """Probe the features of whole images."""
    from sklearn.neighbors import KNeighborsClassifier

    compute = plain_compute(model, "features", device)
    problems: list[ImageError] = []
    total = len(train) + len(test)
    given = (compute, model.card.preprocess, batch_size, problems)
    train_x, train_y = _features(train, *given, lambda done: progress(done, total))
    test_x, test_y = _features(test, *given, lambda done: progress(len(train) + done, total))
    if len(set(train_y.tolist())) < 2:
        raise ValueError(f"{train.name} has one class only: a probe needs at least two, a sub-folder each")
    nearest = KNeighborsClassifier(min(20, len(train_x)), metric="cosine", weights="distance")
    classifier = nearest if kind == "knn" else _logistic_regression()
    classifier.fit(train_x, train_y)
    top1 = float((classifier.predict(test_x) == test_y).mean())
    counts = {"images": len(test_y), "train_images": len(train_y), "unreadable": len(problems)}
    return {"probe": kind, "top1": round(top1, 6), **counts}


def _logistic_regression() -> Any:
    """Make scikit-learn's logistic regression of standardised features for a probe."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))


def _features(
    data: ImageDataset,
    compute: Compute,
    preprocess: Preprocess,
    batch_size: int,
    problems: list[ImageError],
    progress: Callable[[int], object],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Compute the features `[n d]` and labels `[n]` of a dataset that a probe learns from."""
    if data.task != "classify":
        raise ValueError(f"a probe learns classes, and {data.name} has {NOUNS[data.task]}: leave --probe out")
    rows, labels = [], list[int]()
    for pixels, part in decode_batches(data, preprocess, batch_size, problems):
        rows.append(compute(pixels).cpu())
        labels += part.tolist()
        progress(len(labels))
    if not rows:
        raise problems[0] if problems else ValueError(f"{data.name} holds no images")
    return torch.cat(rows).numpy(), np.array(labels)


# --- patches ----------------------------------------------------------------------------------------------------------


def _probe_patches(
    train: ImageDataset,
    test: ImageDataset,
    model: Model,
    blocks: Sequence[int],
    patches: int,
    seed: int,
    batch_size: int,
    device: str,
    progress: Callable[[int, int], object],
) -> dict[str, Any]:
    """Probe features of patches: fit a linear probe on patches of `train`, and measure it on pixels of `test`.

    The classes of patches and pixels come from masks.
    """
    config, preprocess = model.config, model.card.preprocess
    if isinstance(config, TimmConfig):
        raise ValueError("a timm classifier has no patches that are known here: choose a ViT or ResNet")
    if blocks and not isinstance(config, ViTConfig):
        raise ValueError("only a Vision Transformer has blocks to choose: leave blocks out for a ResNet")
    if blocks and not all(0 <= block < config.depth for block in blocks):
        raise ValueError(f"this model has blocks 0 to {config.depth - 1}, got {list(blocks)}")
    if patches < 1:
        raise ValueError(f"a probe learns from at least one patch, got patches={patches}")
    for data in (train, test):
        if data.mask is None:
            raise ValueError(
                f"the classes of patches come from masks, and {data.name} has a class for each image: name a folder "
                "with images/ and masks/, or leave tokens out"
            )
    compute = PlainCompute(copy_to(model, device, "fp32"), forward=partial(patch_features, blocks=blocks))
    (rows, columns), sides = config.grid, config.patch if isinstance(config, ViTConfig) else None
    classes, problems, total = len(train.class_names), list[ImageError](), len(train) + len(test)
    share = patches / max(1, len(train) * rows * columns)
    features, labels, labelled = list[Tensor](), list[Tensor](), 0
    trained = 0
    for pixels, masks in decode_batches(train, preprocess, batch_size, problems):
        check_masks(masks, classes)
        found = compute(pixels).cpu().flatten(0, 2)  # [b·rows·columns d]
        label = torch.stack([patch_labels(mask, (rows, columns), classes, sides) for mask in masks]).flatten()
        numbers = trained * rows * columns + torch.arange(len(label))
        drawn = CounterRandom.of(seed, 0, numbers).uniform("patch") < share
        labelled += int((label >= 0).sum())
        features.append(found[drawn & (label >= 0)])
        labels.append(label[drawn & (label >= 0)])
        trained += len(pixels)
        progress(trained, total)
    if not trained:
        raise problems[0] if problems else ValueError(f"{train.name} holds no images")
    x, y = torch.cat(features).numpy(), torch.cat(labels).numpy()
    if len(set(y.tolist())) < 2:
        raise ValueError(f"the {len(y):,} patches of {train.name} that are learned from have fewer than two classes")
    weight, bias, known = _fit_linear(x, y)
    counts, tested = list[Tensor](), 0
    for pixels, masks in decode_batches(test, preprocess, batch_size, problems):
        scores = F.linear(compute(pixels).cpu(), weight, bias).permute(0, 3, 1, 2)  # [b known rows columns]
        logits = torch.full((len(pixels), classes, *preprocess.size), -torch.inf)
        logits[:, known] = upsample(scores, preprocess.size, sides)  # [b k h w]
        counts.append(mask_rows(logits, masks))
        tested += len(pixels)
        progress(trained + tested, total)
    if not tested or not split_counts(measured := torch.cat(counts))[2].any():
        raise problems[0] if problems else ValueError(f"the masks of {test.name} have no pixel of a class")
    ious = zip(train.class_names, class_ious(measured), strict=True)
    return {
        "probe": "linear",
        **{name: round(value, 6) for name, value in mask_figures(measured).items()},
        "iou": {name: round(value, 6) for name, value in ious if value is not None},
        "images": tested,
        "train_images": trained,
        "train_patches": len(y),
        **({"drawn_from": labelled} if len(y) < labelled else {}),
        **({"blocks": list(blocks)} if blocks else {}),
        "unreadable": len(problems),
    }


def patch_labels(mask: Tensor, grid: tuple[int, int], classes: int, sides: tuple[int, int] | None = None) -> Tensor:
    """Return the classes that a linear probe learns for patches: that of most pixels, uint8 `[h w]` → `[rows columns]`.

    It is -1 if all pixels of a patch are ignored; of two equal counts the lower class is taken. `sides` are height and
    width of a patch; by default the image is divided evenly.

    >>> patch_labels(torch.tensor([[0, 1, 1, 255], [1, 1, 255, 255]]), (1, 2), 2, (2, 2))
    tensor([[1, 1]])
    """
    (height, width), (rows, columns) = mask.shape, grid
    y, x = torch.arange(height), torch.arange(width)
    row = y * rows // height if sides is None else y // sides[0]
    column = x * columns // width if sides is None else x // sides[1]
    counted = (mask != IGNORE) & (row < rows)[:, None] & (column < columns)  # pixels may be left that fill no patch
    cells = (row[:, None] * columns + column) * classes + mask.long()
    counts = torch.bincount(cells[counted], minlength=rows * columns * classes).view(rows, columns, classes)
    return torch.where(counts.sum(dim=-1) > 0, counts.argmax(dim=-1), -1)


def upsample(scores: Tensor, size: tuple[int, int], sides: tuple[int, int] | None = None) -> Tensor:
    """Upsample a probe's scores of patches to pixels, bilinearly: `[b k rows columns]` → `[b k h w]`.

    `sides` are height and width of a patch; pixels that fill no patch have the scores of the nearest one.
    """
    rows, columns = scores.shape[-2:]
    covered = size if sides is None else (rows * sides[0], columns * sides[1])
    found = F.interpolate(scores, covered, mode="bilinear", align_corners=False)
    return F.pad(found, (0, size[1] - covered[1], 0, size[0] - covered[0]), mode="replicate")


def _fit_linear(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a probe's linear layer to patches `[n d]` and labels `[n]`: weight, bias, and the class of each output.

    A class that no patch has gets no output, and is never predicted.
    """
    fitted = _logistic_regression().fit(x, y)
    scaler, regression = fitted[0], fitted[-1]
    coefficients, intercepts = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2:  # one row, for the second class
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercepts = np.concatenate([np.zeros_like(intercepts), intercepts])
    coefficients = coefficients / scaler.scale_  # the standardisation, folded in
    biases = intercepts - coefficients @ scaler.mean_
    return torch.from_numpy(coefficients).float(), torch.from_numpy(biases).float(), torch.tensor(regression.classes_)
