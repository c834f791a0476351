"""The model itself: the shapes on the way through it, and what was loaded."""

from vitreous.figures.kinds import Table
from vitreous.models.summary import trace
from vitreous.runtime.files import short_name
from vitreous.views.inspection import Inspection
from vitreous.views.view import ANY, VIT, View
from vitreous.weights.inspect import inspect


def shapes(inspection: Inspection) -> Table:
    """The shape of the tensor at each step."""
    return Table(trace(inspection.vit), "Shapes at each step")


def card(inspection: Inspection) -> Table:
    """What was loaded, from where, and what was assumed; local paths stay out, for pages are shared."""
    sections = inspect(inspection.model).sections.values()
    rows = [(label, text) for lines in sections for label, text in lines if label != "file"]
    return Table([(label, short_name(text) if label == "name" else text) for label, text in rows], "About the model")


SHAPES = View(
    "Shapes at each step",
    "How an image's tensor changes on its way: patches, tokens, heads, the attention matrix, logits.",
    "Only the first block is followed; all blocks have the same shapes.",
    shapes,
    tab="Model",
    needs=VIT,
)
CARD = View(
    "About the model",
    "What was loaded, from where, what was assumed because no file says it, and how images are prepared.",
    "Not whether the preprocessing is correct: `vitreous doctor --data` measures that.",
    card,
    tab="Model",
    needs=ANY,
)
