"""Cosine similarity of position embeddings (the paper's figure 7, centre)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.capture import underneath


@torch.no_grad()
def position_similarity(model: nn.Module) -> Tensor:
    """Compute the cosine similarity of all patches' position embeddings: `[rows columns rows columns]`.

    `position_similarity(model)[2, 5]` is the tile of the patch in row 2, column 5. Works for learned and sine
    positions.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> tiles = position_similarity(ViT(variant("vit_femto_patch4_32", position="sine-2d")))
    >>> tiles.shape, round(tiles[2, 5, 2, 5].item(), 4)
    (torch.Size([8, 8, 8, 8]), 1.0)
    """
    plain, _ = underneath(model)
    if plain.pos_embed is None:
        raise ValueError("this model has no position embeddings (position='none'): there is nothing to compare")
    positions = plain.layout.to_grid(plain.pos_embed[0], dim=0)  # [rows columns d], with or without prefix slots
    positions = F.normalize(positions.to(torch.promote_types(positions.dtype, torch.float32)), dim=-1)
    return torch.einsum("i j d, k l d -> i j k l", positions, positions)
