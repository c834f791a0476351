"""`start_locally`: first weights with which each head of a fresh ViT attends to one neighbour of every patch.

Trained on few images, a ViT spends its first epochs on learning that neighbouring patches belong together. First
weights can say so. A shift by one patch rotates a wave, a pair of sine and cosine: if the query is a wave turned by an
offset, and the key a wave as it is, their product is highest for the patch at that offset. In a network with rotary
positions, the biases of queries and keys become such waves. In a network without, the learned positions do, and the
weights of queries and keys read them. The network and its training stay the same. The idea of attention that begins as
a convolution is from ConViT (d'Ascoli et al., 2021) and "Structured Initialization" (Zheng et al., 2024).

Shapes:  d width · h heads · k width of one head · n patches · t tokens
"""

import math
from typing import cast

import torch
from torch import Tensor

from vitreous.models.rope import RotaryPositions
from vitreous.models.vit import Attention, TransformerBlock, ViT
from vitreous.models.vit_config import LARGEST, ViTConfig

OFFSETS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))  # in patches
SHARPNESS = 0.9  # factor of the query and key weights that read positions: of 64 patches, the neighbour gets most
AMPLITUDE = 1.0  # of positions, twice that of projected patches
DROP = 2.6  # from the score of the neighbour to that of the next patch, with rotary positions
NARROWEST, FEWEST = 32, 4  # channels of a head, and patches on a side, that tell one neighbour from the next

Offset = tuple[int, int]


@torch.no_grad()
def start_locally(model: ViT) -> None:
    """Let each head of a fresh ViT attend to a neighbour drawn at random; the random part of its weights stays."""
    config, layout, rope = model.config, model.layout, model.rope
    _check(config)
    if rope is None:
        positions = model.pos_embed[0, config.positions - layout.patches :]  # type: ignore[index]
        positions += AMPLITUDE * waves(config.grid, config.width, config.width // config.heads)
    for block in cast("list[TransformerBlock]", model.blocks):
        choices = torch.randint(len(OFFSETS), (config.heads,)).tolist()
        offsets = [OFFSETS[choice] for choice in choices]
        if rope is None:
            _read_neighbours(block.attn, offsets)
        else:
            _turn_biases(block.attn, offsets, rope)


def _check(config: ViTConfig) -> None:
    """Raise for a network whose heads a local start cannot point at one neighbour."""
    k, sides = config.width // config.heads, config.grid
    if config.qk_norm or not config.qkv_bias:
        raise ValueError("initial=local needs queries and keys with biases and without norms")
    if config.rope not in ("none", "dinov3"):
        raise ValueError(f"initial=local needs rope=dinov3, or learned positions without rotation, not {config.rope}")
    if config.rope == "none" and config.position != "learned":
        raise ValueError(f"initial=local sets learned positions, and this model's are {config.position}")
    most = k // 2 if config.rope == "none" else LARGEST  # with more patches, waves repeat
    if k % 4 or k < NARROWEST or not all(FEWEST <= side <= most for side in sides):
        raise ValueError(
            f"initial=local needs heads of a width that 4 divides, {NARROWEST} or more, and {FEWEST} to {most} patches "
            f"on each side; got heads of width {k} and {sides[0]}×{sides[1]} patches"
        )


def rates(pairs: int) -> Tensor:
    """Return the angles by which the waves of a local start turn from one patch to the next, up to half a turn."""
    return math.pi * torch.arange(1, pairs + 1) / pairs


def waves(grid: tuple[int, int], d: int, k: int) -> Tensor:
    """Return positions of a local start as sines and cosines of row and column, in the first `k` channels: `[n d]`."""
    found = torch.zeros(*grid, d)
    for axis, side in enumerate(grid):
        angles = torch.arange(side)[:, None] * rates(k // 4)  # [side k/4]
        wave = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [side k/2]
        found[:, :, axis * (k // 2) : (axis + 1) * (k // 2)] = wave[:, None] if axis == 0 else wave
    return found.flatten(0, 1)


def _read_neighbours(attention: Attention, offsets: list[Offset]) -> None:
    """Add to the weights of queries and keys of a local start what reads the waves of a neighbour and one's own."""
    weight = attention.qkv.weight  # [3d d]
    d, k = weight.shape[1], weight.shape[1] // attention.heads
    for head, offset in enumerate(offsets):
        rows = slice(head * k, (head + 1) * k)
        weight[:d][rows] += SHARPNESS * _read_waves(d, k, offset)
        weight[d : 2 * d][rows] += SHARPNESS * _read_waves(d, k, (0, 0))


def _read_waves(d: int, k: int, offset: Offset) -> Tensor:
    """Return the weights of a local start that read the waves as they are at an offset: `[k d]`."""
    weight = torch.zeros(k, d)
    for axis, patches in enumerate(offset):
        for pair, rate in enumerate(rates(k // 4).tolist()):
            sine, cosine = math.sin(patches * rate), math.cos(patches * rate)
            span = slice(axis * (k // 2) + 2 * pair, axis * (k // 2) + 2 * pair + 2)
            weight[span, span] = torch.tensor([[cosine, sine], [-sine, cosine]])
    return weight


def _turn_biases(attention: Attention, offsets: list[Offset], rope: RotaryPositions) -> None:
    """Set the biases of a local start: of keys the same in all heads, of queries turned by the head's offset."""
    bias = cast(Tensor, attention.qkv.bias)  # [3d]
    d = len(bias) // 3
    k = d // attention.heads
    angles = rope.fixed_angles(rope.grid).view(*rope.grid, -1)  # [rows columns k/2]
    down, right = angles[1, 0] - angles[0, 0], angles[0, 1] - angles[0, 0]  # by one patch
    drop = min((1 - turn.cos()).sum().item() for turn in (down, right))  # of the score of waves of length 1
    length = (DROP * k**0.5 / drop) ** 0.5
    for head, offset in enumerate(offsets):
        turn = offset[0] * down + offset[1] * right  # [k/2]
        rows = slice(head * k, (head + 1) * k)
        bias[:d][rows] = length * torch.cat([turn.cos(), turn.sin()]).to(bias)
        bias[d : 2 * d][rows] = length * torch.cat([torch.ones(k // 2), torch.zeros(k // 2)]).to(bias)
