"""The inside of a model while it trains: at a few moments of a run, what the run's page shows over the epochs.

`Recorder` listens to a run and writes `snapshots/epoch-00012.npz`; `read_snapshots` gives them back. What is looked at
is the copy of the model that is also evaluated, and nothing random is drawn: a recorded run ends with the same bits.

Shapes:  n filters · p q c a filter's height, width, colours · a b rows and columns of patches that were asked ·
         i images
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
from vitreous.models.vit import ViT
from vitreous.runtime.files import write_atomic
from vitreous.training.batches import Source
from vitreous.training.listeners import Listener

if TYPE_CHECKING:
    from vitreous.training.assemble import Parts
    from vitreous.training.config import TrainConfig
    from vitreous.training.folder import RunFolder
    from vitreous.weights.load import Model

IMAGES = 8  # held-out images that attention is recorded for
SIDE = 80  # pixels of a kept image's longer side: a thumbnail, so that a file stays small
ASKED, CELLS = 64, 40_000  # patches whose position is compared with all others at the most, and numbers that this makes
FILTERS = 28  # principal components, as in the paper's figure 7


@dataclass(frozen=True)
class Snapshot:
    """What was recorded at one moment; None where the model has no such thing."""

    epoch: int
    """Epochs that were done: 0 is before training."""
    filters: NDArray[Any] | None = None
    """The patch embedding's principal components, or a ResNet's first filters: uint8 `[n p q c]`."""
    positions: NDArray[Any] | None = None
    """Cosine similarity of some patches' position embedding with that of all patches: `[a b rows columns]`."""
    distances: NDArray[Any] | None = None
    """How far each head looks, in pixels, mean over the images: `[layers heads]`."""
    maps: NDArray[Any] | None = None
    """Where the class token looks in the last block, mean over heads: `[i rows columns]`."""
    images: NDArray[Any] | None = None
    """The images that it looks at, perhaps made smaller: uint8 `[i h w c]`."""
    labels: tuple[str, ...] = ()
    """Their classes."""


class Recorder(Listener):
    """Writes a snapshot at `config.snapshots` moments; a run that goes on after a restart writes the same ones."""

    def begin(self, parts: Parts, config: TrainConfig, folder: RunFolder) -> None:
        self.folder = folder.snapshots
        self.moments = frozenset(moments(config.epochs, config.snapshots))
        if not self.moments:
            return
        self.pixels, self.labels = some_images(parts)
        if 0 in self.moments and parts.state.epoch == parts.state.step == 0:
            self.record(0, parts)

    def epoch(self, row: dict[str, Any], parts: Parts) -> None:
        if row["epoch"] in self.moments:
            self.record(row["epoch"], parts)

    def record(self, epoch: int, parts: Parts) -> Path | None:
        """Look at the weights of this moment (their average where one is kept) and write what is seen."""
        model = parts.measure.whole()
        if not parts.world.first:
            return None
        x = parts.measure.augment.plain(self.pixels).to(next(model.parameters()).device)
        seen = look(model, x, epoch)
        if seen.maps is not None:
            seen = replace(seen, images=thumbnails(self.pixels), labels=self.labels)
        return write_snapshot(self.folder, seen)


def moments(epochs: int, count: int) -> list[int]:
    """At most `count` epochs from 0 to the last, each further from the one before by the same factor or nearly so.

    >>> moments(100, 8), moments(3, 8), moments(100, 0)
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


def some_images(parts: Parts) -> tuple[Tensor, tuple[str, ...]]:
    """A few held-out images of different classes: uint8 `[i c h w]` on the device, and the names of their classes."""
    data = parts.tested.take(spread_over_classes(parts.tested.labels, IMAGES))
    config = replace(parts.config, resident="no")  # these few are not worth a file in the cache
    source = Source(data, parts.held_out.preprocess, config, parts.state.device, training=False)
    pixels, labels = next(source.all(IMAGES))
    return pixels, tuple(data.class_names[label] for label in labels.tolist())


def spread_over_classes(labels: Sequence[int], count: int) -> list[int]:
    """Which of the images to take: the first of each class, or of classes all over the list; then the second, …

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
def look(model: Model, x: Tensor, epoch: int = 0) -> Snapshot:
    """Everything of a model in eval mode that is recorded, on images `[i c h w]`; of a ResNet, its filters alone.

    >>> from vitreous.models.variants import variant
    >>> seen = look(ViT(variant("vit_femto_patch4_32")).eval(), torch.randn(2, 3, 32, 32))
    >>> seen.filters.shape, seen.positions.shape, seen.distances.shape, seen.maps.shape
    ((28, 4, 4, 3), (8, 8, 8, 8), (4, 8), (2, 8, 8))
    """
    if not isinstance(model, ViT):
        return Snapshot(epoch, filters=_bytes(first_filters(model.conv1.weight)))
    weight = model.patch_embed.proj.weight.cpu()
    finite = bool(torch.isfinite(weight).all())  # else there are no components, and the run will soon say why
    distances, maps = _attention(model, x)
    return Snapshot(
        epoch,
        filters=_bytes(principal_filters(weight, FILTERS)[0]) if finite else None,
        positions=None if model.pos_embed is None else _positions(model),
        distances=distances,
        maps=maps,
    )


def _attention(model: ViT, x: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """How far each head looks `[layers heads]`, and where the last block's class token does `[i rows columns]`."""
    layout, depth = model.layout, model.config.depth
    distances, maps = [], []
    for image in x.split(1):  # one image and one block at a time: whole attention matrices are large
        with capture(model, "norm1") as seen:
            model(image)
        far = []
        for layer in range(depth):
            attention = attention_of(model, layer, seen[full_name("norm1", layer)])[0].float()  # [h t t]
            far.append(mean_distance(attention, layout, model.config.patch))
        distances.append(torch.stack(far))
        maps.append(class_maps(attention, layout).mean(dim=0))
    return torch.stack(distances).mean(dim=0).cpu().numpy(), torch.stack(maps).half().cpu().numpy()


def _positions(model: ViT) -> NDArray[Any]:
    rows, columns = asked_places(model.layout.grid)
    return position_similarity(model)[rows][:, columns].half().cpu().numpy()


def asked_places(grid: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Rows and columns of the patches to compare with all others: all, or of a large grid every second, third, …

    >>> asked_places((2, 3)), asked_places((14, 14))[0]
    (([0, 1], [0, 1, 2]), [0, 2, 4, 6, 8, 10, 12])
    """
    most = max(1, min(ASKED, CELLS // (grid[0] * grid[1])))
    step = next(step for step in range(1, max(grid) + 1) if math.prod(-(-side // step) for side in grid) <= most)
    rows, columns = (list(range((side - 1) % step // 2, side, step)) for side in grid)
    return rows, columns


def thumbnails(pixels: Tensor) -> NDArray[Any]:
    """Images `[i c h w]`, the longer side `SIDE` pixels at the most: uint8 `[i h w c]`."""
    height, width = pixels.shape[-2:]
    if (share := SIDE / max(height, width)) < 1:
        size = max(1, round(height * share)), max(1, round(width * share))
        smaller = F.interpolate(pixels.float(), size, mode="bilinear", antialias=True)
        pixels = smaller.round().clamp(0, 255).to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def _bytes(images: Tensor) -> NDArray[Any]:
    """0…1 to uint8."""
    return (images * 255).round().to(torch.uint8).cpu().numpy()


def write_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Write `epoch-00012.npz`, whole or not at all."""
    known = {field.name: getattr(snapshot, field.name) for field in fields(snapshot)}
    arrays = {name: np.asarray(value) for name, value in known.items() if value is not None}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a name, NumPy would add a suffix of its own
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    return write_atomic(folder / f"epoch-{snapshot.epoch:05d}.npz", write)


def read_snapshots(folder: Path) -> list[Snapshot]:
    """All whole snapshots of a folder, by epoch; a damaged one is left out."""
    return sorted(_read(sorted(folder.glob("epoch-*.npz"))), key=lambda snapshot: snapshot.epoch)


def _read(paths: Sequence[Path]) -> Iterator[Snapshot]:
    names = [field.name for field in fields(Snapshot)]
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as held:
                values: dict[str, Any] = {name: held[name] for name in names if name in held.files}
            epoch, labels = int(values.pop("epoch")), tuple(values.pop("labels", np.array([])).tolist())
        except Exception:  # noqa: S112  # zip, zlib and NumPy have errors of their own for each kind of damage
            continue
        yield partial(Snapshot, **values)(epoch=epoch, labels=labels)
