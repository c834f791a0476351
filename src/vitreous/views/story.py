"""The story of an image through a ViT in eight steps, and the architecture diagram, both from the model itself."""

import torch

from vitreous.figures.kinds import Diagram, Part, Story, StoryStep
from vitreous.inside.capture import capture
from vitreous.inside.glossary import full_name
from vitreous.models.text import SentenceHead
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.views.inspection import Inspection
from vitreous.views.view import VIT, View

STRIP = 64
"""Numbers of a token that the page draws."""


def _times(*sides: int) -> str:
    """Write sides in the story with × between."""
    return " × ".join(str(side) for side in sides)


def _tokens(model: ViT) -> str:
    """Name the tokens in front of the patches in the story's words; empty where there are none."""
    layout = model.layout
    names = [f"a {layout.name(i)} token" for i in range(layout.prefix - layout.registers)]
    names += [f"{layout.registers} registers"] if layout.registers else []
    return " and ".join(names)


def _mlp_equation(config: ViTConfig) -> str:
    """Write the MLP's equation in the story, with the norm where the model has it."""
    if config.residual_norm:
        return "z = LN(z′ + MLP(z′))"
    return "z = z′ + LN(MLP(z′))" if config.post_norm else "z = z′ + MLP(LN(z′))"


def _reads(model: ViT) -> str:
    """Name the tokens that the head reads in the story's words."""
    return {
        "token": "the class token",
        "mean": "the mean of the patches",
        "token+mean": "the class token and the mean of the patches",
        "attention": "the tokens, pooled by attention",
        "class-attention": "a class token that reads the patches after the blocks",
    }[model.config.pool]


def architecture(inspection: Inspection) -> Diagram:
    """Compute the view of the story's diagram: the model's parts from image to answer with shapes, a block enlarged."""
    model = inspection.vit
    config, layout = model.config, model.layout
    (height, width), (p, q), d = config.size, config.patch, config.width
    tokens = _times(layout.tokens, d)
    prefix = _tokens(model)
    whole = [
        Part("image", "", _times(height, width, config.channels)),
        Part("patches", f"{_times(*layout.grid)} of {p} × {q} pixels", _times(layout.patches, p * q * config.channels)),
        Part("embedding", "one linear layer" + (f", {prefix} in front" if prefix else ""), tokens),
    ]
    if config.position != "none":
        whole.append(Part("positions", f"{config.position} position embedding, added", tokens))
    whole.append(Part(f"{config.depth} blocks", "attention and MLP, one after the other", tokens))
    if config.final_norm:
        whole.append(Part("norm", "layer norm", tokens))
    whole.append(Part("pool", _reads(model), str(config.feature_width)))
    if config.classes:
        kind = "a linear layer" if config.head_norm else "a tanh layer"
        before = [f"{kind} of {config.representation_size}"] * bool(config.representation_size)
        before += ["an RMS norm"] * config.head_norm
        head = f"linear, after {' and '.join(before)}" if before else "linear"
        whole.append(Part("head", head, str(config.classes)))
    gate = "gated, SiLU" if config.swiglu else config.activation.replace("_", " ").upper()
    block = (
        Part("norm", "layer norm", tokens),
        Part("attention", f"{config.heads} heads of {d // config.heads}", tokens),
        Part("norm", "layer norm", tokens),
        Part("MLP", f"{d} → {config.mlp_width} → {d}, {gate}", tokens),
    )
    parameters = sum(each.numel() for each in model.parameters())
    title = f"From image to {'answer' if config.classes else 'features'}: {parameters / 1e6:.1f} million parameters"
    return Diagram(whole, block, title)


@torch.inference_mode()
def _embedding_equation(config: ViTConfig) -> str:
    """Write equation 1 of the story as this model computes it: with the tokens and positions that it has."""
    sequence = f"[{'x_class; ' if config.class_token else ''}x₁E; … xₙE]"
    placed = f"{sequence} + E_pos" if config.position != "none" else sequence
    return f"z₀ = LN({placed})" if config.embedding_norm else f"z₀ = {placed}"


def _by_position(config: ViTConfig) -> str:
    """Say in the story how scores depend on positions, if they do; the page draws queries and keys after rotation."""
    rotated = " Both were rotated by the position of their patch." if config.rope != "none" else ""
    biased = " A bias for the offset of the two patches, not drawn here, is added."
    return rotated + (biased if config.relative_position != "none" else "")


def story(inspection: Inspection) -> Story:
    """Compute the story: the image's way through the model in eight steps, with the numbers that the page draws."""
    model = inspection.vit
    config, layout = model.config, model.layout
    block = min(max(config.depth // 2 - 1, 0), max(inspection.artifacts.block - 1, 0) or config.depth)
    with capture(model, ["patches", "embedding", "q", "k", "attention_output", "mlp_output"]) as seen:
        model(inspection.x)
    norms = [
        seen[full_name(name, block)][0, layout.prefix :].float().norm(dim=-1)
        for name in ("attention_output", "mlp_output")
    ]
    q, k = (seen[full_name(name, block)][0, 0].float().cpu().numpy() for name in ("q", "k"))  # [t k] of head 0
    start = seen["patches"][0, :, :STRIP].float().cpu()
    first = seen["embedding"][0, layout.prefix :, :STRIP].float().cpu()
    plain = config.position != "none" and not config.embedding_norm
    (height, width), (p, r), d, n = config.size, config.patch, config.width, layout.patches
    tokens, key = _times(layout.tokens, d), d // config.heads
    prefix = _tokens(model)
    answer = f"“{inspection.target_label}”" if config.classes and model.card.head == "classifier" else "its features"
    worded = ", compares it with the text features of each sentence" if isinstance(model.head, SentenceHead) else ""
    steps = (
        StoryStep(
            "Image",
            f"The image is resized and cropped to {height} × {width} pixels: nothing outside the frame reaches the model.",
            f"x : {_times(height, width, config.channels)}",
            (("image", _times(height, width, config.channels)),),
            "image",
        ),
        StoryStep(
            "Patches",
            f"It is cut into {_times(*layout.grid)} patches of {p} × {r} pixels; each patch becomes one token.",
            "x → x₁ … xₙ",
            (("patches", _times(n, p * r * config.channels)),),
            "patches",
        ),
        StoryStep(
            "Embedding",
            f"One matrix turns the {p * r * config.channels} numbers of a patch into {d}"
            + (", and the embedding of its position is added" if config.position != "none" else "")
            + (
                f"; {prefix} stand in front."
                if " and " in prefix
                else f"; {prefix} stands in front."
                if prefix
                else "."
            ),
            _embedding_equation(config),
            (("patches × matrix", _times(n, d)), ("tokens", tokens)),
            "embedding",
        ),
        StoryStep(
            "Query and keys",
            f"In block {block}, head 0, the token of a patch asks with its query; every token offers a key. Where the two "
            f"point the same way, the score is high.{_by_position(config)}",
            f"s = q · k / √{key}" + (" + b" if config.relative_position != "none" else ""),
            (("queries, keys", _times(layout.tokens, key)), ("scores", _times(layout.tokens, layout.tokens))),
            "score",
        ),
        StoryStep(
            "Attention",
            "The softmax turns scores into shares of 1: the token takes that share of each token's value and adds the sum "
            "to itself.",
            "A = softmax(s),  z′ = LN(z + (A v) W)" if config.residual_norm else "A = softmax(s),  z′ = z + (A v) W",
            (("attention", _times(config.heads, layout.tokens, layout.tokens)), ("output", tokens)),
            "attention",
        ),
        StoryStep(
            "MLP",
            f"Then each token is transformed by itself, through {config.mlp_width} hidden numbers; here is how much "
            f"attention and MLP add to each token in block {block}.",
            _mlp_equation(config),
            (("hidden layer", _times(layout.tokens, config.mlp_width)), ("output", tokens)),
            "mlp",
        ),
        StoryStep(
            f"{config.depth} blocks",
            f"The same two steps, {config.depth} times with other weights: after each block the head can be asked what it "
            "would answer.",
            f"z₁ … z_{config.depth}",
            (("tokens after every block", tokens),),
            "blocks",
        ),
        StoryStep(
            "Answer",
            f"The head reads {_reads(model)}{worded} and answers {answer}.",
            "p = softmax(s cos(W LN(z), text) + b)" if worded else "p = softmax(W LN(z) + b)",
            (("pooled", str(config.feature_width)), ("logits", str(config.classes or config.feature_width))),
            "answer",
        ),
    )
    return Story(
        steps,
        start.numpy(),
        (first - start).numpy() if plain else None,
        q,
        k,
        torch.stack(norms).cpu().numpy(),
        layout.prefix,
        block,
        title="An image on its way through the model, in eight steps",
    )


ARCHITECTURE = View(
    "Architecture",
    "The model drawn from its own configuration: every part from image to answer with the shape that leaves it, and one block "
    "enlarged, beside the order of the first Transformer.",
    "It shows how the parts are joined, not what they have learned.",
    architecture,
    group="Model",
    needs=VIT,
)
STORY = View(
    "Step by step",
    "Your image on its way through the model in eight steps, each with its drawing, its equation and its shapes; point at a patch "
    "to follow it.",
    "One block and one head are followed; the others do the same with other weights.",
    story,
    group="Model",
)
