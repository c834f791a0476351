"""Gradient relevance: the contribution of patches to a chosen class, by attention times its gradient.

Attention alone does not depend on a class. Attention times its gradient, where that is positive, does (Chefer, Gur &
Wolf, 2021, "Generic Attention-model Explainability"). No parameter's `.grad` is changed; frozen models and callers
inside `torch.no_grad()` work.

Shapes:  b images · h heads · t tokens · k width of one head
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.inside.attention import attention_of, pooled_by, readout
from vitreous.inside.capture import Internals, capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.inside.gradients import Target, class_score, differentiable
from vitreous.inside.head_importance import head_slopes
from vitreous.models.vit import ViT


@dataclass(frozen=True)
class ClassEvidence:
    """What gradients say of one image, for several classes."""

    relevance: Tensor
    """`[classes rows columns]`, as `relevance` computes it."""
    gradient_attention: Tensor
    """`[classes rows columns]`, of one layer."""
    head_importance: Tensor
    """`[classes layers heads]`, as `head_importance` computes it."""


def relevance(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Compute each patch's relevance for a class, through all layers: images `[b c H W]` → `[b rows columns]`.

    R ← R + Ā R in each layer, with Ā = mean over heads of (∇A ⊙ A)⁺, from R = identity; the result is the row of R that
    the head reads, minus the identity. Only that row is carried, from the last layer to the first, as in rollout. An
    attention pool is one layer more, whose query is no token: its row is (∇A ⊙ A)⁺, and nothing is subtracted.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> relevance(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32), target=3).shape
    torch.Size([2, 8, 8])
    """
    plain, _ = underneath(model)
    internals, gradients, _ = _gradients(model, x, target)
    start = _row_read(plain, internals, gradients)
    return _carried(plain, start, (matrix for _, matrix in _weighted_attention(plain, internals, gradients)))


def gradient_attention(model: nn.Module, x: Tensor, target: Target = None, *, layer: int | None = None) -> Tensor:
    """Compute each patch's relevance for a class, through one layer alone: `[b c H W]` → `[b rows columns]`.

    This is gradient × attention, (∇A ⊙ A)⁺. The row is the one that the head reads: the class token's, the mean of the
    patches', or the attention pool's. The layer is by default the last that the head reads.
    """
    plain, _ = underneath(model)
    internals, gradients, _ = _gradients(model, x, target, layers=[plain.config.last_read if layer is None else layer])
    ((_, matrix),) = _weighted_attention(plain, internals, gradients)
    return plain.layout.to_grid(_times(_row_read(plain, internals, gradients), matrix))


def class_evidence(model: nn.Module, x: Tensor, classes: Sequence[int], *, layer: int | None = None) -> ClassEvidence:
    """Compute relevance for several classes of one image, with its parts.

    The parts are gradient × attention of a layer, and the importance of heads.

    The image `[1 c H W]` runs forward once, and backward once for each class.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> found = class_evidence(ViT(variant("vit_femto_patch4_32")), torch.randn(1, 3, 32, 32), [3, 0])
    >>> found.relevance.shape, found.head_importance.shape
    (torch.Size([2, 8, 8]), torch.Size([2, 4, 8]))
    """
    if len(x) != 1:
        raise ValueError(f"expected one image [1 c H W], got {tuple(x.shape)}")
    plain, _ = underneath(model)
    internals, gradients, slopes = _gradients(model, x, classes)
    start, wanted = (
        _row_read(plain, internals, gradients),
        internals.layers[plain.config.last_read if layer is None else layer],
    )
    rows: list[Tensor] = []

    def matrices() -> Iterator[Tensor]:
        for number, matrix in _weighted_attention(plain, internals, gradients):
            if number == wanted:
                rows.append(_times(start, matrix))
            yield matrix

    through = _carried(plain, start, matrices())
    mixed = [internals[full_name("mixed", number)].detach() for number in internals.layers]
    importance = head_slopes(mixed, slopes[: len(mixed)]).transpose(0, 1)  # [classes layers heads]
    return ClassEvidence(through, plain.layout.to_grid(rows[0]), importance)


def _times(row: Tensor, matrix: Tensor) -> Tensor:
    """Multiply a row of relevance by a layer's matrix: `[b t]` and `[b t t]` → `[b t]`."""
    matrix = _exact(matrix)
    return (row.to(matrix)[:, None] @ matrix)[:, 0]


def _exact(value: Tensor) -> Tensor:
    """Bring what relevance is computed from to single precision, if it is in half: it is a difference of products."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def _carried(model: ViT, start: Tensor, matrices: Iterator[Tensor]) -> Tensor:
    """Carry relevance from the row that the head reads through matrices `[b t t]`, the last layer's first."""
    row = start = _exact(start)
    for matrix in matrices:
        row = row.to(matrix.device) + _times(row, matrix)
    return model.layout.to_grid(row if pooled_by(model) else row - start.to(row))


def _gradients(
    model: nn.Module, x: Tensor, target: Target, layers: Sequence[int] | None = None
) -> tuple[Internals, list[Tensor], list[Tensor]]:
    """Run forward and backward for relevance: internals, and the logit's gradients at each layer's attention × values.

    Gradients are `[b h t k]`, that of an attention pool comes last. One image may have several classes, which then take
    the place of b. The first gradients are at what attention gave, for the gradient of attention itself; the second at
    `mixed`, which an intervention may have made of it.
    """
    plain, _ = underneath(model)
    pooled = pooled_by(plain)
    with (
        differentiable(x) as x,
        capture(model, ["norm1", "v", "mixed", *pooled], layers=layers, gradients=True) as seen,
    ):
        logits = model(x)
        classes = target if len(x) == 1 and isinstance(target, Sequence) else [target]
        mixed = [full_name("mixed", layer) for layer in seen.layers] + (["pool.mixed"] if pooled else [])
        values = [seen.weighted[name] for name in mixed] + [seen[name] for name in mixed]
        scores = [class_score(logits, each) for each in classes]
        found = [torch.autograd.grad(each, values, retain_graph=True, materialize_grads=True) for each in scores]
    gradients = [torch.cat(each) for each in zip(*found, strict=True)]
    return seen, gradients[: len(mixed)], gradients[len(mixed) :]


def _row_read(model: ViT, internals: Internals, gradients: Sequence[Tensor]) -> Tensor:
    """Return the row that relevance starts from, `[b t]`: what the head reads, or a pool's own (∇A ⊙ A)⁺."""
    if not pooled_by(model):
        return readout(model).expand(len(gradients[0]), -1)
    by_gradient = _exact(gradients[-1]) @ _exact(internals["pool.v"].detach()).transpose(-2, -1)  # [b h 1 t]
    return readout(model, (by_gradient * internals["pool.attention"].detach()).clamp_min(0))


def _weighted_attention(model: ViT, internals: Internals, gradients: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Yield for relevance each layer and its (∇A ⊙ A)⁺, averaged over heads, `[b t t]`, last layer first."""
    for layer, gradient in reversed(list(zip(internals.layers, gradients, strict=False))):
        attention = attention_of(model, layer, internals[full_name("norm1", layer)].detach())  # [b h t t]
        values = _exact(internals[full_name("v", layer)].detach())
        by_gradient = _exact(gradient) @ values.mT  # O = A v, so that dA = dO vᵀ: the fused kernel can stay
        yield layer, (by_gradient * attention).clamp_min(0).mean(dim=1)
        del attention, by_gradient  # [b h t t] each: freed before the next layer's are made
