"""Views of tokens between the blocks: as colours, by their norm, and how similar patches and blocks are (CKA)."""

import torch

from vitreous.figures.kinds import Map, Matrix
from vitreous.figures.selection import At
from vitreous.inside import representations
from vitreous.inside.capture import capture
from vitreous.views.inspection import Inspection
from vitreous.views.view import View


def colours(inspection: Inspection) -> Map:
    """Compute the view of tokens as colours: their three main directions after each block as red, green and blue."""
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
    """Compute the view of tokens by their norm after each block."""
    layout = inspection.vit.layout
    found = [representations.token_norms(one.float(), layout).cpu() for one in inspection.outputs]
    values = torch.stack(found).flatten(1).numpy()  # [blocks n]
    title = "Norm of the tokens after {block}"
    at: At = {"block": inspection.block}
    return Map(values, layout.grid, title, axes=("block",), at=at, label="norm", from_zero=False, **inspection.left_out)


def patch_similarity(inspection: Inspection) -> Map:
    """Compute the view of similar patches: the cosine of every one with every other, after each block."""
    layout = inspection.vit.layout
    rows, columns = layout.grid
    row, column = inspection.query_patch or (rows // 2, columns // 2)
    return Map(
        representations.patch_similarity(inspection.outputs, layout).cpu().numpy(),  # [blocks n n]
        layout.grid,
        "Similarity of the {query} with every patch, after {block}",
        axes=("block", "query"),
        at={"block": inspection.block, "query": row * columns + column},
        names={"query": [f"patch {divmod(i, columns)}" for i in range(layout.patches)]},
        label="cosine similarity",
        limits=(0.0, 1.0),
        panels=("block",),
        symmetric=True,
        **inspection.left_out,
        says="After {block}, the {query} is most similar to {peak} ({number}).",
    )


def similarity(inspection: Inspection) -> Matrix:
    """Compute the view of similar blocks: the linear CKA of what any two read."""
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
)
NORMS = View(
    "Norm of tokens",
    "How long each patch's token is after a block. A few very long tokens in empty parts of the image are artefacts; models with "
    "registers have fewer.",
    "Length is not importance: the next norm removes most of it.",
    norms,
)
PATCH_SIMILARITY = View(
    "Similarity of patches",
    "Point at a patch: patches that the model represents alike light up, block by block; a click holds the patch.",
    "Alike to the model need not be alike to the eye; negative similarity is drawn as none.",
    patch_similarity,
    group="Where",
)
SIMILARITY = View(
    "Similarity of blocks",
    "How similar the inputs of any two blocks are (linear CKA of their normed tokens): bright squares are blocks that change little.",
    "Measured on the tokens of this one image; the output of the last block is not among them.",
    similarity,
)
