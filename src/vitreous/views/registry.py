"""`VIEWS`: every way to look at a model, by name, with how to read it and what it does not show.

The command line, the report and the explorer all read this table. To add a view: compute in `inside/`, draw in
`figures/`, pair them in `views/drawing.py`, and add a line here.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from vitreous.models.resnet import ResNet
from vitreous.views import drawing
from vitreous.views.drawing import Figures, one_map
from vitreous.views.inspection import Inspection


@dataclass(frozen=True)
class View:
    """One way to look."""

    title: str
    read: str
    """How to read it, in a sentence or two."""
    beware: str
    """What it does not show."""
    draw: Callable[[Inspection], Figures]
    needs: frozenset[str] = frozenset({"image", "vit"})
    """What there must be: `image`, `classes` (a classifier), `positions`, `vit` (not a ResNet)."""
    asked: bool = False
    """Drawn only when asked for by name, since it takes many forward passes."""

    def missing(self, inspection: Inspection) -> str | None:
        """Why this view cannot be had of an inspection, or None."""
        config = inspection.model.config
        if "vit" in self.needs and isinstance(inspection.model, ResNet):
            return "a ResNet has no tokens to look at"
        if "image" in self.needs and inspection.image is None:
            return "it needs an image"
        if "classes" in self.needs and inspection.model.card.head != "classifier":
            return "the model has no classifier"
        if "positions" in self.needs and getattr(config, "position", "none") == "none":
            return "the model has no position embeddings"
        return None


IMAGE, CLASSES, MODEL = frozenset({"image", "vit"}), frozenset({"image", "vit", "classes"}), frozenset({"vit"})

VIEWS: dict[str, View] = {
    "predictions": View(
        "What it sees",
        "The classes the model finds most likely, with probability and logit.",
        "A probability is the model's confidence, not the chance that it is right: it knows only its own classes, and "
        "spreads 100 % over them whatever is in the image.",
        drawing.predictions,
        frozenset({"image", "classes"}),
    ),
    "relevance": View(
        "Relevance for a class",
        "Attention weighted by its gradient and carried through all blocks: the patches whose attention speaks for the "
        "class in the title.",
        "Only what speaks for the class is kept; what speaks against it is cut off. A map exists even when the model is "
        "wrong: compare the trust view.",
        one_map("relevance", "Relevance for {target}", "relevance"),
        CLASSES,
    ),
    "patches": View(
        "Patches",
        "The image as the model gets it, cut into the patches that become its tokens. It never sees anything else.",
        "Within a patch the model can see fine detail; the cut only decides what is one token.",
        drawing.patches,
    ),
    "shapes": View(
        "Shapes at each step",
        "How an image's tensor changes on its way: patches, tokens, heads, the attention matrix, logits.",
        "Only the first block is followed; all blocks have the same shapes.",
        drawing.shapes,
        MODEL,
    ),
    "positions": View(
        "Position embeddings",
        "Each tile belongs to one patch and shows how similar its position embedding is to every other. Red crosses "
        "mean that the model has learned rows and columns.",
        "Similarity of embeddings says what the model can tell apart, not how it uses it.",
        drawing.positions,
        frozenset({"vit", "positions"}),
    ),
    "filters": View(
        "Embedding filters",
        "The patterns that the first layer responds to: for a ViT the principal components of its patch filters, for a "
        "ResNet the filters of its first convolution. Waves and blobs are what one expects to find.",
        "A ViT's components are directions, not single filters, and their sign means nothing.",
        drawing.embedding_filters,
        frozenset(),
    ),
    "attention-matrix": View(
        "Attention matrix",
        "Row q shows where token q looks: each row sums to 1. The thin lines part class and register tokens from patches. "
        "A bright diagonal is a token that looks at itself; bright columns are tokens that everyone looks at.",
        "Attention says what is mixed, not what follows from it: a token may be looked at and ignored later.",
        drawing.attention_matrix,
    ),
    "attention-rows": View(
        "Attention of one token, head by head",
        "One row of the attention matrix laid out as the image, for each head. Different heads look for different "
        "things.",
        "Each map has its own scale: compare where they look, not how strongly.",
        drawing.attention_rows,
    ),
    "attention-maps": View(
        "Attention through the blocks",
        "Where the class token (or the token you chose) looks, from the first block to the last; then every head by "
        "itself.",
        "Late tokens are mixtures: looking at a patch's token is no longer looking at that patch alone.",
        drawing.attention_maps,
    ),
    "rollout": View(
        "Attention rollout",
        "Attention multiplied through all blocks, a part of each token passing by the shortcut: how much of each patch "
        "can have reached the answer.",
        "It is the same for every class and knows neither values nor MLPs: it shows a possibility of flow, not a reason.",
        one_map("rollout", "Attention rollout", "share of the answer's token"),
    ),
    "gradient-attention": View(
        "Gradient × attention",
        "The last block's attention, weighted by what it does for the class in the title.",
        "One block only: what earlier blocks gathered is already inside its tokens.",
        one_map("gradient × attention", "Gradient × attention for {target}", "relevance"),
        CLASSES,
    ),
    "cam": View(
        "Class activation map",
        "Channels that speak for the class in the title, added up where they are active: at the last block's first norm "
        "in a ViT, at the last stage in a ResNet.",
        "A coarse map: one number for each patch, smoothed over the image for display.",
        one_map("CAM", "CAM for {target}", "activation"),
        frozenset({"image", "classes"}),
    ),
    "integrated-gradients": View(
        "Integrated gradients",
        "Each patch's part in the logit of the class in the title, on the way from a black image. Parts add up to the "
        "difference of the two logits, but for the error of 32 steps; blue speaks against the class.",
        "It depends on the black image it starts from: a black object can hardly get a part.",
        one_map("integrated gradients", "Integrated gradients for {target}", "part of the logit", diverging=True),
        CLASSES,
    ),
    "distance": View(
        "How far heads look",
        "Mean distance between a patch and what it looks at, for each head of each block. Early blocks have local and "
        "global heads side by side; late ones look everywhere.",
        "An average for this image: a head may look far at one patch and near at another.",
        drawing.distance,
    ),
    "entropy": View(
        "How sharply heads look",
        "Entropy of attention for each head: at the dashed line a head looks everywhere alike, at 0 at one token.",
        "Sharp is not important: a sharp head can be ignored by what follows.",
        drawing.entropy,
    ),
    "importance": View(
        "Heads that matter",
        "How much the logit of the class in the title hangs on each head, by one gradient.",
        "A slope at full strength, not the effect of removal: the ablation view measures that.",
        drawing.head_importance,
        CLASSES,
    ),
    "lens": View(
        "Logit lens",
        "What the model would answer if it stopped after each block, and how the final class grows.",
        "Early tokens were never meant for the head: early answers show how far from its language they still are.",
        drawing.logit_lens,
        CLASSES,
    ),
    "token-colours": View(
        "Tokens as colours",
        "The three directions in which the tokens differ most, as red, green and blue: patches of one colour are alike "
        "to the model.",
        "Colours mean nothing by themselves and cannot be compared between images.",
        drawing.token_colours,
    ),
    "token-norms": View(
        "Length of tokens",
        "How long each patch's token is. A few very long tokens in empty places are artefacts that registers cure.",
        "Length is not importance: the next norm takes most of it away.",
        drawing.token_norms,
    ),
    "layers": View(
        "Similarity of blocks",
        "How alike what any two blocks read is (linear CKA of their normed input): bright squares are blocks that change "
        "little.",
        "Measured on the tokens of this one image; what the last block writes is not among them.",
        drawing.layers,
    ),
    "ablation": View(
        "Heads switched off",
        "Each head is switched off by itself and the image run again: bars to the left are heads that had spoken for "
        "the class, bars to the right had spoken against it.",
        "One head at a time: heads that can stand in for each other look unimportant.",
        drawing.ablation,
        CLASSES,
        asked=True,
    ),
    "trust": View(
        "Which map to trust",
        "Patches are taken away in the order of each map (deletion: the faster the class is lost, the better) and put in "
        "(insertion: the faster it is found, the better), beside a random and a centre map. Then each map is made again "
        "with fresh weights: one that looks the same does not show what the model has learned.",
        "It measures whether a map finds what the model uses on this one image, not whether the model is right.",
        drawing.trust,
        frozenset({"image", "classes"}),
        asked=True,
    ),
}


def choose(names: str, inspection: Inspection) -> dict[str, View]:
    """The views that were asked for, by name: `all`, or names with commas between.

    `all` leaves out what the inspection cannot give and what has to be asked for; a name that cannot be given is an error.
    """
    chosen: dict[str, View] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name == "all":
            chosen |= {n: view for n, view in VIEWS.items() if not view.asked and view.missing(inspection) is None}
            continue
        if name not in VIEWS:
            close = difflib.get_close_matches(name, VIEWS, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(VIEWS)}"
            raise ValueError(f"there is no view {name!r}: {hint} (`vitreous views` says what each shows)")
        if (reason := VIEWS[name].missing(inspection)) is not None:
            raise ValueError(f"the view {name!r} cannot be had: {reason}")
        chosen[name] = VIEWS[name]
    if not chosen:
        raise ValueError(f"no view was named: there are {', '.join(VIEWS)}, or all")
    return chosen
