"""Snapshots of a model's internals during training: which epochs and images; recorded, written, read for the page.

`SnapshotRecorder` listens to a run and writes `snapshots/epoch-00012.npz`; `read_snapshots` reads them. It uses the
copy of the model that is also evaluated, and draws no random numbers: a recorded run ends with the same bits.

Shapes:  n filters · p q c a filter's height, width, colours · a b rows and columns of selected patches · i images
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.inside.attention import attention_of, class_maps, mean_distance
from vitreous.inside.capture import capture
from vitreous.inside.filters import first_filters, principal_filters
from vitreous.inside.glossary import full_name
from vitreous.inside.position_similarity import position_similarity
from vitreous.models.timm_classifier import TimmClassifier
from vitreous.models.token_layout import covered
from vitreous.models.vit import ViT
from vitreous.runtime.files import short_name, write_arrays
from vitreous.training.listeners import Listener

if TYPE_CHECKING:
    from vitreous.training.config import TrainConfig
    from vitreous.training.run_folder import RunFolder
    from vitreous.training.setup import TrainingParts
    from vitreous.weights.load import Model

IMAGES = 8  # test images that attention is recorded for
THUMBNAIL = 80  # pixels of a stored image's longer side
MAX_PATCHES, MAX_VALUES = 64, 40_000  # limits on patches whose positions are compared with all, and on the values
FILTERS = 28  # principal components, as in the paper's figure 7


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot recorded of a model after one epoch; None for what the model does not have."""

    epoch: int
    """Epochs done: 0 is before training."""
    filters: NDArray[Any] | None = None
    """The patch embedding's principal components, or a ResNet's first filters: uint8 `[n p q c]`."""
    positions: NDArray[Any] | None = None
    """Cosine similarity of selected patches' position embeddings with those of all patches: `[a b rows columns]`."""
    distances: NDArray[Any] | None = None
    """Mean attention distance of each head in pixels, mean over the images: `[layers heads]`."""
    maps: NDArray[Any] | None = None
    """Attention of the class token in the last block, mean over heads: `[i rows columns]`."""
    images: NDArray[Any] | None = None
    """The images, perhaps reduced: uint8 `[i h w c]`."""
    labels: tuple[str, ...] = ()
    """Their classes."""


class SnapshotRecorder(Listener):
    """Write a snapshot after `config.snapshots` of the epochs; a resumed run writes the same ones."""

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        self.folder = folder.snapshots
        self.epochs = frozenset(snapshot_epochs(config.epochs, config.snapshots))
        if not self.epochs:
            return
        self.pixels, self.labels = some_images(parts)
        if 0 in self.epochs and parts.state.epoch == parts.state.step == 0:
            self.record(0, parts)

    def epoch(self, row: dict[str, Any], parts: TrainingParts) -> None:
        if row["epoch"] in self.epochs:
            self.record(row["epoch"], parts)

    def record(self, epoch: int, parts: TrainingParts) -> Path | None:
        """Record the current weights (their average, if one is kept) and write the snapshot."""
        model = parts.evaluate.current_model()
        if not parts.world.first:
            return None
        x = parts.evaluate.augment.plain(self.pixels).to(next(model.parameters()).device)
        snapshot = take_snapshot(model, x, epoch)
        if snapshot.maps is not None:
            height, width = covered(model, self.pixels.shape[-2:])
            images = thumbnails(self.pixels[..., :height, :width])  # maps lie over what patches read
            snapshot = replace(snapshot, images=images, labels=self.labels)
        return write_snapshot(self.folder, snapshot)


def snapshot_epochs(epochs: int, count: int) -> list[int]:
    """Choose the epochs of snapshots: at most `count` from 0 to the last, spaced roughly by a constant factor.

    >>> snapshot_epochs(100, 8), snapshot_epochs(3, 8), snapshot_epochs(100, 0)
    ([0, 1, 2, 4, 9, 20, 45, 100], [0, 1, 2, 3], [])
    """
    if count < 2:
        return [epochs] * count
    chosen = [0, min(1, epochs) if count > 2 else epochs]
    for left in range(count - 2, 0, -1):
        if chosen[-1] == epochs:
            break
        last = chosen[-1]
        chosen.append(max(last + 1, round(last * (epochs / last) ** (1 / left))))
    return chosen


def some_images(parts: TrainingParts) -> tuple[Tensor, tuple[str, ...]]:
    """Choose a few test images of different classes for snapshots: uint8 `[i c h w]`, and their class names.

    Images with labels, numbers or masks are called by their file names.
    """
    data, source = parts.test_data, parts.test_source
    chosen = spread_over_classes(data.labels, IMAGES)
    pixels = source.some(chosen)[:, : len(source.preprocess.mean)]  # without the mask
    if data.task != "classify":
        return pixels, tuple(short_name(data.describe(i)) for i in chosen)
    return pixels, tuple(data.class_names[data.labels[i]] for i in chosen)


def spread_over_classes(labels: Sequence[int], count: int) -> list[int]:
    """Choose images for snapshots by index: the first of each class (of evenly spaced ones), the second, and so on.

    >>> spread_over_classes([0, 0, 0, 1, 1, 2], 4), spread_over_classes([3, 2, 1, 0], 2)
    ([0, 3, 5, 1], [3, 1])
    """
    members: dict[int, list[int]] = {}
    for i, label in enumerate(labels):
        members.setdefault(label, []).append(i)
    classes = sorted(members)
    if len(classes) > count:
        classes = [classes[i * len(classes) // count] for i in range(count)]
    rounds = range(max((len(members[label]) for label in classes), default=0))
    taken = (members[label][turn] for turn in rounds for label in classes if turn < len(members[label]))
    return [i for i, _ in zip(taken, range(count), strict=False)]


@torch.no_grad()
def take_snapshot(model: Model, x: Tensor, epoch: int = 0) -> Snapshot:
    """Record a snapshot of a model in eval mode on images `[i c h w]`; of a CNN, only its filters.

    >>> from vitreous.models.variants import variant
    >>> snapshot = take_snapshot(ViT(variant("vit_femto_patch4_32")).eval(), torch.randn(2, 3, 32, 32))
    >>> snapshot.filters.shape, snapshot.positions.shape, snapshot.distances.shape, snapshot.maps.shape
    ((28, 4, 4, 3), (8, 8, 8, 8), (4, 8), (2, 8, 8))
    """
    if isinstance(model, TimmClassifier):
        first = model.first_filters()
        return Snapshot(epoch, filters=None if first is None else _bytes(first_filters(first)))
    if not isinstance(model, ViT):
        return Snapshot(epoch, filters=_bytes(first_filters(model.conv1.weight)))
    stem = model.patch_embed.backbone
    weight = (model.patch_embed.proj.weight if stem is None else stem.filters).cpu()
    finite = bool(torch.isfinite(weight).all())  # else there are no components, and the run will soon raise
    distances, maps = _attention(model, x)
    return Snapshot(
        epoch,
        filters=_bytes(principal_filters(weight, FILTERS)[0]) if finite else None,
        positions=None if model.pos_embed is None else _positions(model),
        distances=distances,
        maps=maps,
    )


def _attention(model: ViT, x: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a snapshot's attention: heads' distances `[layers heads]` and class token maps `[i rows columns]`."""
    layout, depth = model.layout, model.config.depth
    distances, maps = [], []
    for image in x[:, None]:  # one image and one block at a time: attention matrices are large
        with capture(model, "norm1") as captured:
            model(image)
        by_layer = []
        for layer in range(depth):
            attention = attention_of(model, layer, captured[full_name("norm1", layer)])[0].float()  # [h t t]
            by_layer.append(mean_distance(attention, layout, model.config.patch))
        distances.append(torch.stack(by_layer))
        maps.append(class_maps(attention, layout).mean(dim=0))
    return torch.stack(distances).mean(dim=0).cpu().numpy(), torch.stack(maps).half().cpu().numpy()


def _positions(model: ViT) -> NDArray[Any]:
    """Compute the similarity of selected position embeddings for a snapshot."""
    rows, columns = selected_patches(model.layout.grid)
    return position_similarity(model)[rows][:, columns].half().cpu().numpy()


def selected_patches(grid: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Choose the patches that a snapshot compares with all others: all or, in a large grid, every n-th row and column.

    >>> selected_patches((2, 3)), selected_patches((14, 14))[0]
    (([0, 1], [0, 1, 2]), [0, 2, 4, 6, 8, 10, 12])
    """
    limit = max(1, min(MAX_PATCHES, MAX_VALUES // (grid[0] * grid[1])))
    step = next(step for step in range(1, max(grid) + 1) if math.prod(-(-side // step) for side in grid) <= limit)
    rows, columns = (list(range((side - 1) % step // 2, side, step)) for side in grid)
    return rows, columns


def thumbnails(pixels: Tensor, longest: int = THUMBNAIL) -> NDArray[Any]:
    """Reduce a snapshot's images `[i c h w]` to a longer side of at most `longest` pixels: uint8 `[i h w c]`."""
    height, width = pixels.shape[-2:]
    if (share := longest / max(height, width)) < 1:
        size = max(1, round(height * share)), max(1, round(width * share))
        smaller = F.interpolate(pixels.float(), size, mode="bilinear", antialias=True)
        pixels = smaller.round().clamp(0, 255).to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def _bytes(images: Tensor) -> NDArray[Any]:
    """Convert a snapshot's colours from 0…1 to uint8."""
    return (images * 255).round().to(torch.uint8).cpu().numpy()


def write_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot, `epoch-00012.npz`, atomically."""
    known = {field.name: getattr(snapshot, field.name) for field in fields(snapshot)}
    arrays = {name: np.asarray(value) for name, value in known.items() if value is not None}
    return write_arrays(folder / f"epoch-{snapshot.epoch:05d}.npz", arrays)


def read_snapshots(folder: Path) -> list[Snapshot]:
    """Read all snapshots of a folder, by epoch; damaged files are skipped."""
    return sorted(_read(sorted(folder.glob("epoch-*.npz"))), key=lambda snapshot: snapshot.epoch)


def _read(paths: Sequence[Path]) -> Iterator[Snapshot]:
    """Read snapshots one by one; damaged files are skipped."""
    names = [field.name for field in fields(Snapshot)]
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as held:
                values: dict[str, Any] = {name: held[name] for name in names if name in held.files}
            epoch, labels = int(values.pop("epoch")), tuple(values.pop("labels", np.array([])).tolist())
        except Exception:  # noqa: S112  # zip, zlib and NumPy each raise their own errors
            continue
        yield partial(Snapshot, **values)(epoch=epoch, labels=labels)
