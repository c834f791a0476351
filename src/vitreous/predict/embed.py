"""`embed`: images to feature vectors, and those to a file."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.data.images import ImageError
from vitreous.data.prefetch import batched
from vitreous.predict.classify import Image, placed, read_ahead, started
from vitreous.predict.pipeline import answered, lanes_of
from vitreous.runtime.files import write_atomic
from vitreous.weights.load import Model, load


def embedding(model: Model, x: Tensor) -> Tensor:
    """What stands for an image: a headless model's or a projection's output, else the features below the head."""
    return model.features(x) if model.card.head == "classifier" else model(x)


def embed(
    images: Iterable[Image], model: Model | str | None = None, *, batch_size: int = 8, device: str = "auto"
) -> Tensor:
    """The feature vectors of images: `[images d]`; one that cannot be read raises `ImageError`."""
    rows = []
    for _, row in embed_each(images, model, batch_size=batch_size, device=device):
        if isinstance(row, ImageError):
            raise row
        rows.append(row)
    return torch.stack(rows) if rows else torch.empty(0, 0)


def embed_each(
    images: Iterable[Image],
    model: Model | str | None = None,
    *,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
    using: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[tuple[str, Tensor | ImageError]]:
    """Each image's name with its vector `[d]`, in order; a bad image gives its error instead."""
    if not isinstance(model, torch.nn.Module):
        model = load(model)
    compute = using or partial(started, placed(model, device, precision), function=embedding)

    def begin(batch: list[tuple[str, Tensor | ImageError]]) -> Tensor:
        good = [tensor for _, tensor in batch if isinstance(tensor, Tensor)]
        return compute(torch.stack(good)) if good else torch.empty(0)

    with closing(read_ahead(images, model, batch_size)) as read:  # whoever stops early leaves no thread behind
        for batch, vectors in answered(begin, batched(read, batch_size), lanes=lanes_of(using)):
            rows = iter(vectors)
            for name, tensor in batch:
                yield name, tensor if isinstance(tensor, ImageError) else next(rows)


def write_features(path: str | Path, names: list[str], features: Tensor, model_name: str) -> Path:
    """Write `image` and `features` columns to `.parquet`, or arrays of those names to `.npz`."""
    path = Path(path)
    if path.suffix == ".npz":

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez(file, image=np.array(names), features=features.numpy(), model=np.array(model_name))

    elif path.suffix == ".parquet":

        def write(temporary: Path) -> None:
            import pyarrow
            import pyarrow.parquet

            width = features.shape[1]
            values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.numpy().ravel()), width)
            table = pyarrow.table({"image": names, "features": values})
            table = table.replace_schema_metadata({"vitreous.model": model_name})
            pyarrow.parquet.write_table(table, temporary)

    else:
        raise ValueError(f"features go to .parquet or .npz, got {path.name}")
    return write_atomic(path, write)
