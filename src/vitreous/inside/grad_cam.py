"""Grad-CAM and Grad-CAM++: activations weighted by the gradient of a class's logit.

Grad-CAM (Selvaraju et al., 2017) weights a channel by the mean of its gradients; Grad-CAM++ (Chattopadhay et al., 2018)
by a weighted mean of the positive ones, so that several objects of one class all count.

Made for convolutions, it also works on tokens: patches are the pixels, the width is the channels. It is computed at the
last block's first norm, since after the last block only the class token reaches the head and patches have no gradient.
For a ResNet it is computed at the last stage, as in the paper, for a CNN of timm's at its last feature map.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.inside.gradients import Target, class_score, differentiable
from vitreous.inside.intervene import tokens_left

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet
    from vitreous.models.timm_classifier import TimmClassifier


def grad_cam(model: nn.Module, x: Tensor, target: Target = None, *, layer: int | None = None) -> Tensor:
    """Compute Grad-CAM for a class: images `[b c H W]` → `[b rows columns]`, never negative.

    `layer` is a block of a ViT, or one of a ResNet's four stages, by default the last that the head reads. A ResNet's
    last has 7×7 positions for 224 px, and for small images so few that an earlier one shows more.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> grad_cam(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 8, 8])
    """
    return _cam(model, x, target, layer, weighted_channels)


def grad_cam_plus_plus(model: nn.Module, x: Tensor, target: Target = None, *, layer: int | None = None) -> Tensor:
    """Compute Grad-CAM++ for a class: images `[b c H W]` → `[b rows columns]`, never negative.

    Second and third derivatives are those of the exponential of the logit, as the paper assumes.
    """
    return _cam(model, x, target, layer, positively_weighted_channels)


def _cam(
    model: nn.Module, x: Tensor, target: Target, layer: int | None, weigh: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    if hasattr(model, "layer4"):  # a ResNet: to ask for its class would import torchvision
        return weigh(*_resnet_activations(cast("ResNet", model), x, target, -1 if layer is None else layer))
    if hasattr(model, "read_map"):  # a CNN of timm's, whose last feature map is the only one known
        return weigh(*_feature_map_activations(cast("TimmClassifier", model), x, target))
    plain, _ = underneath(model)
    layer = plain.config.last_read if layer is None else layer
    with differentiable(x) as x, capture(model, "norm1", layers=[layer], gradients=True) as internals:
        score = class_score(model(x), target)
        tokens = internals[full_name("norm1", internals.layers[0])]  # [b t d]
        (gradient,) = torch.autograd.grad(score, [tokens], materialize_grads=True)  # 0 beyond what a dense head reads
    left = tokens_left(plain).to(x.device)
    if left.all():
        return weigh(*(plain.layout.to_grid(part.mT) for part in (tokens.detach(), gradient)))
    left[: plain.layout.prefix] = False
    found = weigh(*(part.mT[:, :, None, left] for part in (tokens.detach(), gradient)))[:, 0]  # of the patches left
    whole = found.new_zeros(len(found), len(left))  # the others have no part
    whole[:, left] = found
    return plain.layout.to_grid(whole)


def weighted_channels(activation: Tensor, gradient: Tensor) -> Tensor:
    """Sum channels as Grad-CAM: weighted by mean gradient, clamped at 0, `[b c rows columns]` → `[b rows columns]`.

    >>> weighted_channels(torch.tensor([[[[1.0, -1.0]]]]), torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[2., 0.]]])
    """
    weights = gradient.mean(dim=(-2, -1), keepdim=True)
    return (weights * activation).sum(dim=1).clamp_min(0)


def positively_weighted_channels(activation: Tensor, gradient: Tensor) -> Tensor:
    """Sum channels weighted as Grad-CAM++ does, clamped at zero: `[b c rows columns]` → `[b rows columns]`.

    >>> positively_weighted_channels(torch.tensor([[[[1.0, 1.0]]]]), torch.tensor([[[[2.0, -1.0]]]]))
    tensor([[[0.3333, 0.3333]]])
    """
    square = gradient.square()
    below = 2 * square + (activation.sum(dim=(-2, -1), keepdim=True)) * square * gradient
    alpha = torch.where(below != 0, square / torch.where(below != 0, below, 1.0), 0.0)
    weights = (alpha * gradient.clamp_min(0)).sum(dim=(-2, -1), keepdim=True)
    return (weights * activation).sum(dim=1).clamp_min(0)


def _resnet_activations(model: "ResNet", x: Tensor, target: Target, layer: int) -> tuple[Tensor, Tensor]:
    """Compute what Grad-CAM weights in a ResNet: a stage's output and its gradient, `[b c rows columns]` each."""
    outputs: list[Tensor] = []
    stage = (model.layer1, model.layer2, model.layer3, model.layer4)[layer]
    hook = stage.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        with differentiable(x) as x:
            score = class_score(model(x), target)
            (gradient,) = torch.autograd.grad(score, outputs)
    finally:
        hook.remove()
    return outputs[0].detach(), gradient


def _feature_map_activations(model: "TimmClassifier", x: Tensor, target: Target) -> tuple[Tensor, Tensor]:
    """Compute what Grad-CAM weights in a CNN of timm's: its last feature map and the gradient of that."""
    with differentiable(x) as x:
        if (activation := model.feature_map(x)) is None:
            raise ValueError(f"{model.config.timm} has no feature map of rows and columns, which Grad-CAM needs")
        (gradient,) = torch.autograd.grad(class_score(model.read_map(activation), target), [activation])
    return activation.detach(), gradient
