"""Tokens between the blocks: as colours, by their norm, and how similar the input of blocks is."""

import torch

from vitreous.figures.kinds import Map, Matrix
from vitreous.inside import representations
from vitreous.inside.capture import capture
from vitreous.views.inspection import Inspection
from vitreous.views.view import View


def colours(inspection: Inspection) -> Map:
    """The three main directions of the tokens after each block, as red, green and blue."""
    layout = inspection.vit.layout
    with torch.inference_mode():  # normed, or a few very long tokens would decide the colours
        found = [
            representations.principal_colours(inspection.vit.norm(one)[None].float(), layout)[0].cpu()
            for one in inspection.outputs
        ]
    values = torch.stack(found).flatten(1, 2).clamp(0, 1).numpy()  # [blocks n 3]
    title = "Tokens after {block}: three principal components as colours"
    return Map(values, layout.grid, title, axes=("block",), at={"block": inspection.block}, colours=True, says="")


def norms(inspection: Inspection) -> Map:
    """The norm of each token after each block."""
    layout = inspection.vit.layout
    found = [representations.token_norms(one.float(), layout).cpu() for one in inspection.outputs]
    values = torch.stack(found).flatten(1).numpy()  # [blocks n]
    title = "Norm of the tokens after {block}"
    return Map(values, layout.grid, title, axes=("block",), at={"block": inspection.block}, label="norm")


def similarity(inspection: Inspection) -> Matrix:
    """Linear CKA of what any two blocks read."""
    with torch.inference_mode(), capture(inspection.vit, "norm1") as captured:  # normed, as above
        inspection.vit(inspection.x)
    values = representations.layer_similarity(captured.stack("norm1").float()).cpu().numpy()
    return Matrix(values, "Similarity of what blocks read (CKA)", rows="block", columns="block")


COLOURS = View(
    "Tokens as colours",
    "The three directions in which the tokens of a block differ most, as red, green and blue: patches of one colour are similar "
    "to the model.",
    "Colours mean nothing by themselves and cannot be compared between images or blocks.",
    colours,
    tab="Tokens",
)
NORMS = View(
    "Norm of tokens",
    "How long each patch's token is after a block. A few very long tokens in empty parts of the image are artefacts; models with "
    "registers have fewer.",
    "Length is not importance: the next norm removes most of it.",
    norms,
    tab="Tokens",
)
SIMILARITY = View(
    "Similarity of blocks",
    "How similar the inputs of any two blocks are (linear CKA of their normed tokens): bright squares are blocks that change little.",
    "Measured on the tokens of this one image; the output of the last block is not among them.",
    similarity,
    tab="Matrices",
)
