"""`start_locally`: first weights with which each head of a fresh ViT attends to one neighbour of every patch.

Trained on few images, a ViT spends its first epochs on learning that neighbouring patches belong together. Waves as
positions make that a matter of first weights: a shift by one patch rotates each pair of sine and cosine, so that a
head whose query weights rotate these pairs, and whose key weights leave them as they are, scores highest the patch at
that offset. The network and its training stay the same. The idea of attention that begins as a convolution is from
ConViT (d'Ascoli et al., 2021) and "Structured Initialization" (Zheng et al., 2024).

Shapes:  d width · h heads · k width of one head · n patches · t tokens
"""

import math
from typing import cast

import torch
from torch import Tensor

from vitreous.models.vit import TransformerBlock, ViT

OFFSETS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))  # in patches
SHARPNESS = 0.9  # factor of the query and key weights that read positions: of 64 patches, the neighbour gets most
AMPLITUDE = 1.0  # twice that of projected patches


@torch.no_grad()
def start_locally(model: ViT) -> None:
    """Set a fresh ViT's learned positions to waves, and let each head attend to a neighbour drawn at random.

    The random part of each weight stays.
    """
    config, layout = model.config, model.layout
    if config.position != "learned":
        raise ValueError(f"initial=local sets learned positions, and this model's are {config.position}")
    d, k = config.width, config.width // config.heads
    positions = model.pos_embed[0, config.positions - layout.patches :]  # type: ignore[index]
    positions += AMPLITUDE * waves(config.grid, d, k)
    for block in cast("list[TransformerBlock]", model.blocks):
        weight = block.attn.qkv.weight  # [3d d]
        for head, choice in enumerate(torch.randint(len(OFFSETS), (config.heads,)).tolist()):
            rows = slice(head * k, (head + 1) * k)
            weight[:d][rows] += SHARPNESS * read_waves(d, k, OFFSETS[choice])
            weight[d : 2 * d][rows] += SHARPNESS * read_waves(d, k, (0, 0))


def rates(pairs: int) -> Tensor:
    """Return the angles by which the waves of a local start turn from one patch to the next, up to half a turn."""
    return math.pi * torch.arange(1, pairs + 1) / pairs


def waves(grid: tuple[int, int], d: int, k: int) -> Tensor:
    """Return positions as sines and cosines of row and column, in the first `k` channels: `[n d]`."""
    found = torch.zeros(*grid, d)
    for axis, side in enumerate(grid):
        angles = torch.arange(side)[:, None] * rates(k // 4)  # [side k/4]
        wave = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [side k/2]
        found[:, :, axis * (k // 2) : (axis + 1) * (k // 2)] = wave[:, None] if axis == 0 else wave
    return found.flatten(0, 1)


def read_waves(d: int, k: int, offset: tuple[int, int]) -> Tensor:
    """Return the weights of a local start that read the waves as they are at an offset: `[k d]`."""
    weight = torch.zeros(k, d)
    for axis, patches in enumerate(offset):
        for pair, rate in enumerate(rates(k // 4).tolist()):
            sine, cosine = math.sin(patches * rate), math.cos(patches * rate)
            span = slice(axis * (k // 2) + 2 * pair, axis * (k // 2) + 2 * pair + 2)
            weight[span, span] = torch.tensor([[cosine, sine], [-sine, cosine]])
    return weight
