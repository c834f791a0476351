"""Which heads matter, by one gradient (Michel, Levy & Neubig, 2019, "Are Sixteen Heads Really Better than One?")."""

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture
from vitreous.inside.glossary import full_name
from vitreous.inside.relevance import Target, class_score, differentiable


def head_importance(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """How much a class's logit hangs on each head: images `[b c H W]` → `[layers heads]`, never negative.

    |Σ mixed · ∂logit/∂mixed|, the logit's slope as the head is faded out, averaged over images. One backward pass for
    all heads; `intervene.ablate_heads` switches each off for good.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> head_importance(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([4, 8])
    """
    with differentiable(x) as x, capture(model, "mixed", gradients=True) as seen:
        score = class_score(model(x), target)
        mixed = [seen[full_name("mixed", layer)] for layer in seen.layers]  # [b h t k] each
        gradients = torch.autograd.grad(score, mixed, materialize_grads=True)
    slopes = [(value.detach() * slope).sum(dim=(2, 3)) for value, slope in zip(mixed, gradients, strict=True)]
    return torch.stack(slopes).abs().mean(dim=1)  # [l b h] → [l h]
