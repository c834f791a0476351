"""Grad-CAM: the channels that speak for a class, added up where they are active (Selvaraju et al., 2017).

Made for convolutions, it also works on tokens: the patches are the pixels, the width is the channels. It is taken at
the last block's first norm, since after the last block only the class token reaches the head, and patches have no
gradient. For a ResNet it is taken at the last stage, as in the paper.
"""

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.inside.relevance import Target, class_score, differentiable
from vitreous.models.resnet import ResNet


def cam(model: nn.Module, x: Tensor, target: Target = None, *, layer: int = -1) -> Tensor:
    """What speaks for a class, at the last layer: images `[b c H W]` → `[b rows columns]`, never negative.

    `layer` chooses another block of a ViT, or another of a ResNet's four stages: the last has 7×7 places for 224 px,
    and of small images so few that an earlier one tells more.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> cam(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 8, 8])
    """
    if isinstance(model, ResNet):
        return _resnet_cam(model, x, target, layer)
    plain, _ = underneath(model)
    with differentiable(x) as x, capture(model, "norm1", layers=[layer], gradients=True) as seen:
        score = class_score(model(x), target)
        tokens = seen[full_name("norm1", seen.layers[0])]  # [b t d]
        (gradient,) = torch.autograd.grad(score, tokens)
    return weighted_channels(*(plain.layout.to_grid(part.mT) for part in (tokens.detach(), gradient)))


def weighted_channels(activation: Tensor, gradient: Tensor) -> Tensor:
    """Channels weighted by their mean gradient, added, and cut off at zero: `[b c rows columns]` → `[b rows columns]`.

    >>> weighted_channels(torch.tensor([[[[1.0, -1.0]]]]), torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[2., 0.]]])
    """
    weights = gradient.mean(dim=(-2, -1), keepdim=True)
    return (weights * activation).sum(dim=1).clamp_min(0)


def _resnet_cam(model: ResNet, x: Tensor, target: Target, layer: int) -> Tensor:
    seen: list[Tensor] = []
    stage = (model.layer1, model.layer2, model.layer3, model.layer4)[layer]
    hook = stage.register_forward_hook(lambda module, inputs, output: seen.append(output))
    try:
        with differentiable(x) as x:
            score = class_score(model(x), target)
            (gradient,) = torch.autograd.grad(score, seen)
    finally:
        hook.remove()
    return weighted_channels(seen[0].detach(), gradient)
