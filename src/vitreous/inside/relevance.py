"""Gradient relevance: the contribution of patches to a chosen class, by attention times its gradient.

Attention alone does not depend on a class. Attention times its gradient, where that is positive, does (Chefer, Gur &
Wolf, 2021, "Generic Attention-model Explainability"). No parameter's `.grad` is changed; frozen models and callers
inside `torch.no_grad()` work.

Shapes:  b images · h heads · t tokens · k width of one head
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from vitreous.inside.attention import attention_of, pooled_by, readout
from vitreous.inside.capture import capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.inside.gradients import Target, class_score, differentiable

"""Class to explain: one for all images, one for each, or None for each image's predicted class."""


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
    matrices = _weighted_attention(model, x, target)
    row = start = next(matrices)  # [b t]
    for matrix in matrices:
        row = row.to(matrix)
        row = row + (row[:, None] @ matrix)[:, 0]
    return plain.layout.to_grid(row if plain.config.pool == "attention" else row - start.to(row))


def gradient_attention(model: nn.Module, x: Tensor, target: Target = None, *, layer: int = -1) -> Tensor:
    """Compute one layer's (∇A ⊙ A)⁺ for a class, averaged over heads: `[b c H W]` → `[b rows columns]`.

    The row is the one that the head reads: the class token's, the mean of the patches', or the attention pool's.
    """
    plain, _ = underneath(model)
    row, matrix = _weighted_attention(model, x, target, layers=[layer])
    return plain.layout.to_grid((row.to(matrix)[:, None] @ matrix)[:, 0])


def _weighted_attention(
    model: nn.Module, x: Tensor, target: Target, layers: Sequence[int] | None = None
) -> Iterator[Tensor]:
    """Yield the row that the head reads, `[b t]`, then (∇A ⊙ A)⁺ averaged over heads, `[b t t]`, of the chosen layers.

    Layers come from the last to the first. The row of an attention pool is its own (∇A ⊙ A)⁺.
    """
    plain, _ = underneath(model)
    pooled = pooled_by(plain)
    names = ["norm1", "v", "mixed", *pooled]
    with differentiable(x) as x, capture(model, names, layers=layers, gradients=True) as internals:
        score = class_score(model(x), target)
        mixed = [internals[full_name("mixed", layer)] for layer in internals.layers]
        mixed += [internals["pool.mixed"]] if pooled else []
        gradients = torch.autograd.grad(score, mixed, materialize_grads=True)  # dO of each layer, [b h t k]
    if pooled:
        gradients, gradient = gradients[:-1], gradients[-1]
        by_gradient = gradient @ internals["pool.v"].detach().transpose(-2, -1)  # [b h 1 t]
        yield readout(plain, (by_gradient * internals["pool.attention"]).clamp_min(0))
    else:
        yield readout(plain).expand(len(x), -1)
    for layer, gradient in reversed(list(zip(internals.layers, gradients, strict=True))):
        attention = attention_of(plain, layer, internals[full_name("norm1", layer)].detach())  # [b h t t]
        values = internals[full_name("v", layer)].detach()
        by_gradient = gradient @ values.transpose(-2, -1)  # O = A v, so that dA = dO vᵀ: the fused kernel can stay
        yield (by_gradient * attention).clamp_min(0).mean(dim=1)
        del attention, by_gradient  # [b h t t] each: freed before the next layer's are made
