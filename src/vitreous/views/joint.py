"""Several images of one model side by side: patches compared across images, principal components of all as colours."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitreous.inside.representations import principal_colours
from vitreous.models.vit import ViT

COMPONENTS = 64
"""Numbers that are kept of each patch's direction: cosines of ViT-Ti are then off by 0.01 on average, 0.06 at most."""
MAX_IMAGES = 16
"""Images that are compared with each other: the first ones of a report."""
COLOURS_TITLE = "Tokens after {block}: three principal components of all images as colours"
COLOURS_BEWARE = (
    "Colours mean nothing by themselves; those of one block can be compared between the images of this page."
)

SIMILARITY_READ = " Beside another image, the patches there that are alike light up too."


@torch.no_grad()
def joint_directions(outputs: Sequence[Tensor], model: ViT) -> np.ndarray:
    """Describe each patch of several images by few numbers whose products are cosines: `[b blocks n k]`.

    `outputs` are the tokens that leave each block `[blocks t d]`, of each image. The numbers are the patches' unit
    vectors along the directions that hold most of all images, block by block.
    """
    unit = torch.stack([unit_directions(each, model) for each in outputs])  # [b blocks n d]
    flat = unit.transpose(0, 1).flatten(1, 2)  # [blocks bn d]
    _, directions = torch.linalg.eigh(flat.mT @ flat)  # columns, the largest last
    return (unit @ directions[None, ..., -COMPONENTS:]).numpy()  # type: ignore[no-any-return]


def unit_directions(outputs: Tensor, model: ViT) -> Tensor:
    """Describe each patch of one image by its unit vector `[blocks n d]`: exact, and comparable with any other image's."""
    return torch.nn.functional.normalize(outputs[:, model.layout.prefix :].detach().float().cpu(), dim=-1)


@torch.no_grad()
def joint_colours(outputs: Sequence[Tensor], model: ViT) -> np.ndarray:
    """Colour the patches of several images by the same three principal components: `[b blocks n 3]`."""
    weight = next(model.parameters())
    found = []
    for block in range(len(outputs[0])):  # normed, or a few very long tokens would decide the colours
        tokens = model.norm(torch.stack([each[block] for each in outputs]).to(weight))
        found.append(principal_colours(tokens.float().cpu(), model.layout).flatten(1, 2))
    return torch.stack(found, dim=1).clamp(0, 1).numpy()
