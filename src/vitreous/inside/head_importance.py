"""Importance of attention heads: by gradient, and by ablation, which switches each head off.

Michel, Levy & Neubig (2019), "Are Sixteen Heads Really Better than One?".
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture, underneath, within
from vitreous.inside.glossary import full_name
from vitreous.inside.gradients import Target, class_score, differentiable
from vitreous.inside.intervene import intervene


def head_importance(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Estimate the importance of heads by gradient: images `[b c H W]` → `[layers heads]`, never negative.

    |Σ mixed · ∂logit/∂mixed|, the derivative of the logit with respect to a factor on the head, averaged over images.
    One backward pass covers all heads.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> head_importance(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([4, 8])
    """
    with differentiable(x) as x, capture(model, "mixed", gradients=True) as internals:
        score = class_score(model(x), target)
        mixed = [internals[full_name("mixed", layer)] for layer in internals.layers]  # [b h t k] each
        gradients = torch.autograd.grad(score, mixed, materialize_grads=True)
    return head_slopes([value.detach() for value in mixed], gradients).mean(dim=1)  # [l b h] → [l h]


def head_slopes(mixed: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Compute the importance of heads, |Σ mixed · gradient|: `[b h t k]` of each layer, twice → `[layers b heads]`."""
    slopes = [(value * slope).sum(dim=(2, 3)) for value, slope in zip(mixed, gradients, strict=True)]
    return torch.stack(slopes).abs()


@torch.no_grad()
def ablate_heads(
    model: nn.Module,
    x: Tensor,
    target: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Tensor:
    """Measure the importance of heads by ablation: `[layers heads]`, negative if the head raises the class's logit.

    `x` is one image `[1 c h w]`; `target` is a class, by default the predicted one. Blocks before the head's are run
    once; from the head's block on, all heads of a layer run as one batch. `progress` gets how many layers are done,
    and of how many.
    """
    if len(x) != 1:
        raise ValueError(f"expected one image [1 c h w], got {tuple(x.shape)}")
    model, _ = underneath(model)
    depth, heads = model.config.depth, model.config.heads
    inputs, tokens = [], model.embed(x)
    for block in model.blocks:
        inputs.append(tokens)
        tokens = block(tokens)
    read = [inputs[number + 1] for number in model.config.dense_blocks if number < depth - 1]  # by a dense head
    logits = model.forward_head(*read, *model.run_blocks(tokens, first=depth))
    target = int(logits.argmax()) if target is None else within(target, model.config.classes, "class")
    effect = torch.empty(depth, heads)
    for layer, start in enumerate(inputs):
        weights = torch.ones(heads, depth, heads)
        weights[range(heads), layer, range(heads)] = 0.0  # copy i of the image runs without head i
        earlier = [inputs[number + 1] for number in model.config.dense_blocks if number + 1 < layer]
        with intervene(model, head_weights=weights):
            read = [each.expand(heads, -1, -1) for each in earlier] + model.run_blocks(
                start.expand(heads, -1, -1), first=layer
            )
            changed = model.forward_head(*read)
        effect[layer] = (changed[:, target] - logits[0, target]).cpu()
        progress(layer + 1, depth)
    return effect
