"""`fold`: merge normalisation, layer norms' scales and shifts, and layer scale into the weights, for inference.

A layer norm's scale and shift are folded into the linear layer after it, a layer scale into the one before it, and the
normalisation of images into the patch embedding, so that the network takes pixels (uint8) directly. The logits differ
only by rounding.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.qv_bias import QVLinear
from vitreous.models.relative_position import FixedBias, share
from vitreous.models.residual import LayerScale
from vitreous.models.vit import ViT


@torch.no_grad()
def fold(model: ViT, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None) -> ViT:
    """Copy a model for inference, folded and in fp32; with `mean` and `std` the copy takes pixels from 0 to 255.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> pixels = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    >>> fast = fold(model, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    >>> torch.allclose(fast(pixels.float()), model((pixels / 255 - 0.5) / 0.5), atol=1e-4)
    True
    """
    home = next(model.parameters()).device
    model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)  # Apple's GPUs have no double precision
    if mean is not None and std is not None:
        if model.patch_embed.backbone is not None:
            raise ValueError("the normalisation cannot be folded into a convolutional stem: fold without mean and std")
        _fold_normalisation(model.patch_embed.proj, mean, std)
    for block in model.blocks:
        _fold_block(block)
    if model.shared_rel_pos is not None:
        model.shared_rel_pos = share(FixedBias(model.shared_rel_pos()), model.blocks)
    return model.to(home)


def _fold_block(block: Any) -> None:
    """Fold the norms and layer scales of a block into its linear layers."""
    if isinstance(block.attn.qkv, QVLinear):
        block.attn.qkv = _plain_linear(block.attn.qkv)
    if block.attn.rel_pos is not None:
        block.attn.rel_pos = FixedBias(block.attn.rel_pos())
    if not (block.post_norm or block.residual_norm):
        block.norm1, block.attn.qkv = _fold_norm(block.norm1, block.attn.qkv)
        block.norm2, block.mlp.fc1 = _fold_norm(block.norm2, block.mlp.fc1)
    block.ls1 = _fold_scale(block.attn.proj, block.ls1)
    block.ls2 = _fold_scale(block.mlp.fc2, block.ls2)


def _plain_linear(layer: nn.Linear) -> nn.Linear:
    """Copy a layer to fold whose bias is computed (`QVLinear`) as a plain one."""
    plain = nn.Linear(layer.in_features, layer.out_features)
    plain.weight, plain.bias = layer.weight, nn.Parameter(layer.bias.detach(), requires_grad=False)
    return plain


def _fold_normalisation(proj: nn.Conv2d, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Fold the normalisation of pixels into the embedding: `proj((u / 255 - mean) / std)` becomes `proj'(u)`."""
    weight = proj.weight.double()  # [d c p q]
    means, stds = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (mean, std))
    if means.shape[1] != weight.shape[1]:
        raise ValueError(f"the model takes {weight.shape[1]} channels, got {means.shape[1]} means")
    offset = -(weight * (means / stds)).sum(dim=(1, 2, 3))
    bias = offset if proj.bias is None else proj.bias.double() + offset
    proj.weight = nn.Parameter((weight / (255 * stds)).float(), requires_grad=False)
    proj.bias = nn.Parameter(bias.float(), requires_grad=False)


def _fold_norm(norm: nn.Module, linear: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Fold a layer norm into the layer that reads it: `W (γ n + β) + b` = `(W γ) n + (b + W β)`."""
    if type(norm) is not nn.LayerNorm or type(linear) is not nn.Linear or norm.weight is None:
        return norm, linear
    plain = nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)
    weight, gamma = linear.weight.double(), norm.weight.double()
    new = nn.Linear(linear.in_features, linear.out_features)
    shift: Tensor = weight @ norm.bias.double() if norm.bias is not None else torch.zeros(linear.out_features)
    new.weight = nn.Parameter((weight * gamma).float(), requires_grad=False)
    new.bias = nn.Parameter((shift + (0 if linear.bias is None else linear.bias)).float(), requires_grad=False)
    return plain, new


def _fold_scale(linear: nn.Module, scale: nn.Module) -> nn.Module:
    """Fold layer scale into the linear layer before it."""
    if not isinstance(scale, LayerScale) or type(linear) is not nn.Linear:  # LoRA adds to the weight
        return scale
    gamma = scale.gamma.double()
    linear.weight = nn.Parameter((linear.weight.double() * gamma[:, None]).float(), requires_grad=False)
    if linear.bias is not None:
        linear.bias = nn.Parameter((linear.bias.double() * gamma).float(), requires_grad=False)
    return nn.Identity()
