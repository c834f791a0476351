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
    """Describe each patch of each image by few numbers whose products are the cosines of any two: `[b blocks n k]`.

    `outputs` are the tokens that leave each block `[blocks t d]`, of each image. The numbers are the patches' unit
    vectors along the directions that hold most of all images, block by block.
    """
    patches = torch.stack([each[:, model.layout.prefix :].float().cpu() for each in outputs])  # [b blocks n d]
    unit = torch.nn.functional.normalize(patches, dim=-1)
    flat = unit.transpose(0, 1).flatten(1, 2)  # [blocks bn d]
    _, directions = torch.linalg.eigh(flat.mT @ flat)  # columns, the largest last
    return (unit @ directions[None, ..., -COMPONENTS:]).numpy()  # type: ignore[no-any-return]


@torch.no_grad()
def joint_colours(outputs: Sequence[Tensor], model: ViT) -> np.ndarray:
    """Map the patches of all images to red, green and blue by the same three components: `[b blocks n 3]`."""
    weight = next(model.parameters())
    found = []
    for block in range(len(outputs[0])):  # normed, or a few very long tokens would decide the colours
        tokens = model.norm(torch.stack([each[block] for each in outputs]).to(weight))
        found.append(principal_colours(tokens.float().cpu(), model.layout).flatten(1, 2))
    return torch.stack(found, dim=1).clamp(0, 1).numpy()
