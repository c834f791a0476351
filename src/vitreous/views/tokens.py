"""Views of tokens between blocks: colours, norms, registers, similarity (CKA); patches of several images compared."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitreous.figures.kinds import Map, Matrix, Result, Results, Table
from vitreous.figures.selection import At
from vitreous.inside import representations
from vitreous.inside.artifacts import Neuron, register_neurons, with_registers
from vitreous.inside.capture import capture
from vitreous.inside.intervene import interventions_on, tokens_left
from vitreous.models.vit import ViT
from vitreous.runtime.wording import percent
from vitreous.views.inspection import Inspection
from vitreous.views.maps import heat_map
from vitreous.views.view import View

COMPONENTS = 64
"""Numbers that are kept of each patch's direction: cosines of ViT-Ti are then off by 0.01 on average, 0.06 at most."""
MAX_IMAGES = 16
"""Images that are compared with each other: the first ones of a report."""
COLOURS_TITLE = "Tokens after {block}: three principal components of all images as colours"
COLOURS_BEWARE = (
    "Colours mean nothing by themselves; those of one block can be compared between the images of this page."
)
SIMILARITY_READ = " Beside another image, the patches there that are alike light up too."


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


def registers(inspection: Inspection) -> Results:
    """Compute the view of tokens with test-time registers: maps without and with them, and the neurons moved.

    The maps are of attention and of rollout.
    """
    if interventions_on(inspection.vit):
        raise ValueError("test-time registers are those of the model as it is: switch nothing off to see them")
    try:
        neurons = register_neurons(inspection.vit, inspection.x)
        reason = "none: no patch's token is an outlier in this image, or no single neuron makes it one"
    except ValueError as error:
        neurons, reason = [], f"none: {error}"
    if not neurons:
        return {"": Table([("test-time registers", reason)], "Test-time registers")}
    with_them = _with_registers(inspection, neurons)
    results: dict[str, Result] = {}
    last = f"block {inspection.block}"
    for name, title in (("attention", f"Attention of the {inspection.query_name}, {last}"), ("rollout", "Rollout")):
        for key, what, one in (("before", "as it is", inspection), ("after", "with registers", with_them)):
            values = heat_map(name, one).flatten().numpy()
            key = "" if not results else f"{name}-{key}"
            results[key] = Map(values, inspection.vit.layout.grid, f"{title}, {what}", label=f"share of {name}")
    results["neurons"] = Table(_compare(inspection, with_them, neurons), "Test-time registers")
    return results


def _with_registers(inspection: Inspection, neurons: list[Neuron]) -> Inspection:
    """Inspect tokens of the same image with as many test-time registers as it has artifacts."""
    count, choice = len(inspection.artifacts.patches), inspection.choice
    if inspection.choice.query is not None and inspection.query_patch is not None:  # patches are counted after them
        choice = replace(choice, query=inspection.choice.query % inspection.vit.layout.tokens + count)
    found = Inspection(with_registers(inspection.vit, neurons, count), inspection.image, choice, inspection.name)
    found.view, found.backdrop = inspection.view, inspection.backdrop  # the page may have blurred patches of them
    return found


def _compare(before: Inspection, after: Inspection, neurons: list[Neuron]) -> list[tuple[str, str]]:
    """Write rows for the view of test-time registers: what they change in tokens, attention and answer."""
    found, patches = before.artifacts, list(before.artifacts.patches)
    shares = [float(heat_map("attention", one).flatten()[patches].sum()) for one in (before, after)]
    highest = [float(representations.token_norms(one.outputs.float(), one.vit.layout).max()) for one in (before, after)]
    rows = [
        ("artifacts", f"{len(patches)} patches from block {found.block} on"),
        ("made by", ", ".join(f"unit {unit} of block {block}" for block, unit in neurons)),
        ("registers", str(len(patches))),
        ("longest patch token", f"{highest[0]:.0f} → {highest[1]:.0f}"),
        ("attention on the artifacts' patches", f"{percent(shares[0])} → {percent(shares[1])}"),
    ]
    if before.model.card.head == "classifier":
        said = (f"{each.model.card.label(int(each.logits.argmax()))} {percent(float(each.logits.softmax(-1).max()))}"
                for each in (before, after))  # fmt: skip
        rows.append(("answer", " → ".join(said)))
    return rows


def patch_similarity(inspection: Inspection) -> Map:
    """Compute the view of similar patch tokens: the cosine of every one with every other, after each block."""
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
    """Compute the view of how similar blocks' tokens are: the linear CKA of what any two read."""
    with torch.inference_mode(), capture(inspection.vit, "norm1") as captured:  # normed, as above
        inspection.vit(inspection.x)
    read = captured.stack("norm1")[:, :, tokens_left(inspection.vit)]  # not what stands for removed patches
    values = representations.layer_similarity(read.float()).cpu().numpy()
    return Matrix(values, "Similarity of what blocks read (CKA)", rows="block", columns="block")


# --- several images of one model side by side ------------------------------------------------------------------------


@torch.no_grad()
def joint_directions(outputs: Sequence[Tensor], model: ViT) -> np.ndarray:
    """Describe tokens for the view that compares patches of several images: few numbers each, `[b blocks n k]`.

    Their products are the tokens' cosines.

    `outputs` are the tokens that leave each block `[blocks t d]`, of each image. The numbers are the patches' unit
    vectors along the directions that hold most of all images, block by block.
    """
    unit = torch.stack([unit_directions(each, model) for each in outputs])  # [b blocks n d]
    flat = unit.transpose(0, 1).flatten(1, 2)  # [blocks bn d]
    _, directions = torch.linalg.eigh(flat.mT @ flat)  # columns, the largest last
    return (unit @ directions[None, ..., -COMPONENTS:]).numpy()  # type: ignore[no-any-return]


def unit_directions(outputs: Tensor, model: ViT) -> Tensor:
    """Prepare the patch tokens of one image for a view that compares images: a unit vector each, `[blocks n d]`.

    They are exact, and can be compared with any image's.
    """
    return torch.nn.functional.normalize(outputs[:, model.layout.prefix :].detach().float().cpu(), dim=-1)


@torch.no_grad()
def joint_colours(outputs: Sequence[Tensor], model: ViT) -> np.ndarray:
    """Colour tokens for the view of several images, by three principal components that they share: `[b blocks n 3]`."""
    weight = next(model.parameters())
    found = []
    for block in range(len(outputs[0])):  # normed, or a few very long tokens would decide the colours
        tokens = model.norm(torch.stack([each[block] for each in outputs]).to(weight))
        found.append(representations.principal_colours(tokens.float().cpu(), model.layout).flatten(1, 2))
    return torch.stack(found, dim=1).clamp(0, 1).numpy()


COLOURS = View(
    "Tokens as colours",
    "The three directions in which the tokens of a block differ most, as red, green and blue: patches of one colour are similar "
    "to the model.",
    "Colours mean nothing by themselves and cannot be compared between images or blocks.",
    colours,
)
NORMS = View(
    "Norm of tokens",
    "How long each patch's token is after a block. A few very long tokens in empty parts of the image are artifacts; models with "
    "registers have fewer.",
    "Length is not importance: the next norm removes most of it.",
    norms,
    more=True,
)
REGISTERS = View(
    "Test-time registers",
    "Attention and rollout as they are, and after the activations of the neurons that make very long tokens were moved to extra "
    "tokens, as many as the image has such patches. What then lights up was hidden behind these patches.",
    "The model is another one with registers, if only slightly: the table says how far its answer moves.",
    registers,
    more=True,
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
    more=True,
)
