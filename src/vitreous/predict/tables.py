"""What `embed` and `classify` write of each image, as columns of a table; a bad image has its error alone."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow
import torch
from torch import Tensor

from vitreous.data.images import ImageError
from vitreous.predict.classify import Answer, classify_each, placed
from vitreous.predict.embed import embed_each
from vitreous.predict.parts import written
from vitreous.weights.load import Model

Row = TypeVar("Row")
Using = Callable[[Tensor], Tensor] | None
"""What computes instead of the plain model (`--fast`)."""


@dataclass(frozen=True)
class Work(Generic[Row]):
    """Images to rows, and rows to columns."""

    about: dict[str, str]
    """What decides over the rows: command, model, fingerprint, precision."""
    schema: pyarrow.Schema
    compute: Callable[[Iterable[str]], Iterator[Row]]
    columns: Callable[[list[Row]], dict[str, Any]]


def embedding_work(
    model: Model, *, batch_size: int, device: str, precision: str, using: Using = None, merge: int = 0
) -> Work[tuple[str, Tensor | ImageError]]:
    """Columns image, features (a list) and error."""
    about = _about("embed", model, precision, merge)
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    if using is None:
        model = placed(model, device, precision)
    # not a list of fixed size: pyarrow before 26 cannot read one that is missing
    fields = {"features": pyarrow.list_(pyarrow.float32())}

    def columns(rows: list[tuple[str, Tensor | ImageError]]) -> dict[str, Any]:
        features = [row.numpy() if isinstance(row, Tensor) else None for _, row in rows]
        return {"features": pyarrow.array(features, fields["features"]), "error": [_reason(row) for _, row in rows]}

    return Work(
        about,
        _schema(fields, model),
        lambda names: embed_each(names, model, using=using, **sizes),
        columns,
    )


def classifying_work(
    model: Model, *, top: int, batch_size: int, device: str, precision: str, using: Using = None, merge: int = 0
) -> Work[Answer | ImageError]:
    """Columns image, class, index, probability and error; for more than one class lists of the `top` best as well."""
    sizes: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision}
    fields = {"class": pyarrow.string(), "index": pyarrow.int32(), "probability": pyarrow.float32()}
    if top > 1:
        lists = {"classes": pyarrow.list_(pyarrow.string()), "probabilities": pyarrow.list_(pyarrow.float32())}
        fields |= lists

    def columns(rows: list[Answer | ImageError]) -> dict[str, Any]:
        best = [None if isinstance(row, ImageError) else row.best for row in rows]
        ranked = [None if isinstance(row, ImageError) else row.predictions for row in rows]
        found = {
            "class": [p and p.label for p in best],
            "index": [p and p.index for p in best],
            "probability": [p and p.probability for p in best],
            "classes": [r and [p.label for p in r] for r in ranked],
            "probabilities": [r and [p.probability for p in r] for r in ranked],
            "error": [_reason(row) for row in rows],
        }
        return {name: found[name] for name in (*fields, "error")}

    return Work(
        _about("classify", model, precision, merge) | {"top": str(top)},
        _schema(fields, model),
        lambda names: classify_each(names, model, top=top, using=using, **sizes),
        columns,
    )


def fingerprint(model: Model) -> str:
    """A hash of all that decides what an image turns into: weights, configuration, preprocessing, class names.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> from vitreous.weights.card import usual_preprocess
    >>> from vitreous.weights.card import Card
    >>> model = ViT(variant("vit_femto_patch4_32"))
    >>> model.card = Card("femto", usual_preprocess(model.config))
    >>> before = fingerprint(model)
    >>> _ = model.cls_token.data.add_(1)
    >>> len(before), fingerprint(model) == before
    (64, False)
    """
    state = hashlib.sha256(repr((model.config, model.card.preprocess, model.card.class_names)).encode())
    for key, tensor in sorted(model.state_dict().items()):
        state.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def _about(command: str, model: Model, precision: str, merge: int) -> dict[str, str]:
    about = {"command": command, "model": model.card.name, "fingerprint": fingerprint(model), "precision": precision}
    return about | ({"merge": str(merge)} if merge else {})


def _schema(fields: dict[str, pyarrow.DataType], model: Model) -> pyarrow.Schema:
    columns = {"image": pyarrow.string(), **fields, "error": pyarrow.string()}
    return pyarrow.schema(columns.items(), metadata={"vitreous.model": model.card.name})


def _reason(row: object) -> str | None:
    """Why there is no answer; None where there is one."""
    error = row if isinstance(row, ImageError) else None
    return written(error.reason) if error else None
