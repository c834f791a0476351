"""Views of the model itself: crop, patches, positions, filters, the shapes along the way, and what was loaded."""

from typing import Any, cast

import numpy as np

from vitreous.figures.kinds import Crop, Map, Results, Table, Tiles
from vitreous.inside import filters as embedding_filters
from vitreous.inside.position_similarity import position_similarity
from vitreous.models.summary import trace
from vitreous.models.vit import ViT
from vitreous.runtime.files import short_name
from vitreous.views.inspection import Inspection
from vitreous.views.view import ANY, VIT, View
from vitreous.weights.inspect import inspect

LARGEST_SIDE = 400
"""Pixels of the original image's longer side on the page."""
COMPONENTS = 28
"""Principal components, as many as the paper's figure 7 shows."""


def seen(inspection: Inspection) -> Crop:
    """Compute the view of what the model sees: the original image with the model's crop outlined, and the crop."""
    assert inspection.image is not None
    image, preprocess = inspection.image, inspection.model.card.preprocess
    small = image.convert("RGB")
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    height, width = inspection.pixels.shape[:2]
    return Crop(
        np.asarray(small),
        inspection.seen_box,
        inspection.pixels,
        (f"{image.height} × {image.width} pixels, as it came", f"{height} × {width} pixels, as the model gets it"),
        f"What the model sees: {preprocess.describe()}",
    )


def patches(inspection: Inspection) -> Tiles:
    """Compute the view of the model's input: the image as the model sees it, cut in patches."""
    layout = inspection.vit.layout
    (rows, columns), (height, width) = layout.grid, layout.covered
    return Tiles(inspection.pixels[None, :height, :width], f"{rows} × {columns} patches", grid=layout.grid)


def positions(inspection: Inspection) -> Results:
    """Compute the view of the model's positions: the similarity of each to every other, one of them enlarged."""
    layout = inspection.vit.layout
    similarity = position_similarity(inspection.vit).float().cpu().numpy()  # [r c r c]
    rows, columns = layout.grid
    row, column = inspection.query_patch or (rows // 2, columns // 2)
    values = similarity.reshape(layout.patches, layout.patches)

    def one(title: str, every: bool) -> Map:
        return Map(
            values,
            layout.grid,
            title,
            axes=("query",),
            at={"query": row * columns + column},
            names={"query": [f"patch {divmod(i, columns)}" for i in range(layout.patches)]},
            label="cosine similarity",
            signed=True,
            limits=(-1.0, 1.0),
            symmetric=True,
            panels=("query",) if every else (),
            over_image=False,
            says="How similar the position of the {query} is to every other.",
        )

    return {
        "": one("Similarity of position embeddings", every=True),
        "one": one("Position of {query} and all others", every=False),
    }


def filters(inspection: Inspection) -> Tiles:
    """Compute the view of the model's filters: principal components of a ViT's, or a ResNet's first ones."""
    if not isinstance(inspection.model, ViT):
        images = embedding_filters.first_filters(cast(Any, inspection.model).conv1.weight)
        return Tiles(images.cpu().numpy(), "Filters of the first convolution")
    if (stem := inspection.vit.patch_embed.backbone) is not None:
        return Tiles(embedding_filters.first_filters(stem.filters).cpu().numpy(), "Filters of the first convolution")
    weight = inspection.vit.patch_embed.proj.weight
    images, shares = embedding_filters.principal_filters(weight, count=COMPONENTS)
    title = "Principal components of the patch embedding's filters"
    return Tiles(images.cpu().numpy(), title, shares=shares.tolist())


def shapes(inspection: Inspection) -> Table:
    """Compute the view of the model's shapes: the tensor's at each step."""
    return Table(trace(inspection.vit), "Shapes at each step")


def card(inspection: Inspection) -> Table:
    """Compute the view of the model as it was loaded: from where, and what was assumed; local paths stay out."""
    sections = inspect(inspection.model).sections.values()
    rows = [(label, text) for lines in sections for label, text in lines if label != "file"]
    return Table([(label, short_name(text) if label == "name" else text) for label, text in rows], "About the model")


SEEN = View(
    "What the model sees",
    "The image as it came, with the part that the model gets outlined, and that part with the model's own pixels.",
    "Brightness and contrast are shown as they came: the model gets them after mean and standard deviation are taken out.",
    seen,
    group="Model",
    needs=frozenset({"image"}),
)
PATCHES = View(
    "Patches",
    "The image as the model gets it, cut into the patches that become its tokens.",
    "Within a patch the model can see fine detail; the cut only decides what is one token.",
    patches,
    group="Model",
)
POSITIONS = View(
    "Position embeddings",
    "Each tile belongs to one patch and shows the cosine similarity of its position embedding to every other: crosses mean that "
    "the model has learned rows and columns.",
    "Similarity of embeddings says what the model can tell apart, not how it uses it.",
    positions,
    needs=frozenset({"vit", "positions"}),
)
FILTERS = View(
    "Embedding filters",
    "The patterns that the first layer responds to: for a ViT the principal components of its patch filters with their share of the "
    "variance, for a ResNet the filters of its first convolution. Waves and blobs are usual.",
    "A ViT's components are directions, not single filters, and their sign means nothing.",
    filters,
    needs=ANY,
)
SHAPES = View(
    "Shapes at each step",
    "How an image's tensor changes on its way: patches, tokens, heads, the attention matrix, logits.",
    "Only the first block is followed; all blocks have the same shapes.",
    shapes,
    group="Model",
    needs=VIT,
)
CARD = View(
    "About the model",
    "What was loaded, from where, what was assumed because no file says it, and how images are prepared.",
    "Not whether the preprocessing is correct: “vitreous doctor --data” measures that.",
    card,
    group="Model",
    needs=ANY,
)
