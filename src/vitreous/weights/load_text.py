"""`load_text`: load the text tower of a CLIP or SigLIP whose vision tower `load` has loaded, with its tokenizer."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from vitreous.models.text import TextConfig, TextTower
from vitreous.weights.config_files import read_json
from vitreous.weights.fetch import CheckpointFiles, fetch
from vitreous.weights.formats.text import TEXT_FORMATS, TextFormat
from vitreous.weights.load import CONFIG_ERRORS, Model
from vitreous.weights.names import parse
from vitreous.weights.read import read, read_sharded
from vitreous.weights.safety import CheckpointError
from vitreous.weights.tokenizer import read_tokenizer

HEAD_WIDTH = 64
"""Width of a head in all of OpenAI's text towers."""


def load_text(model: Model) -> TextTower:
    """Load the text tower beside a loaded vision tower, with its tokenizer, in evaluation mode.

    The files are found again by the name that the model was loaded by.
    """
    card = model.card
    if card is None or card.origin not in ("file", "folder", "hub", "url"):
        name = "this model" if card is None else card.name
        raise ValueError(f"{name} has no text tower: words need a CLIP or SigLIP")
    revision = None if parse(card.name).version else card.revision
    files = fetch(card.name, revision=revision)
    raw = read_sharded(files.index, files.weights) if files.index else read(files.weights[0])
    sidecar = read_json(files.config)
    try:
        tower = _build(raw.tensors, files, sidecar, model)
    except CONFIG_ERRORS as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise CheckpointError(f"{card.name}: its text tower cannot be understood ({reason}): get it again") from error
    except ValueError as error:
        raise CheckpointError(f"{card.name}: {error}") from error
    like = next(model.parameters())
    return tower.to(device=like.device, dtype=like.dtype).eval()


def _build(
    tensors: Mapping[str, Tensor], files: CheckpointFiles, sidecar: Mapping[str, Any], model: Model
) -> TextTower:
    """Build the text tower of a checkpoint: recognise its format, read its config, translate its tensors."""
    format = next((known for known in TEXT_FORMATS if known.mark in tensors), None)
    if format is None:
        raise CheckpointError("it has no text tower of CLIP's or SigLIP's: words need one of them with both towers")
    if not sidecar and format.name != "openai":
        raise CheckpointError("the text tower's heads are not in its tensors: keep the config file next to the weights")
    ours = format.translate(tensors)
    config = _config(ours, format, sidecar, model)
    tower = TextTower(config)
    if "logit_bias" in ours:
        tower.add_bias()
    for name in {"logit_scale", "logit_bias"} & set(ours):
        if ours[name].numel() != 1:
            raise CheckpointError(f"{name} should be one number, got {tuple(ours[name].shape)}: get it again")
        ours[name] = ours[name].reshape(())
    wanted = tower.state_dict()
    for what, keys in (("lacks", set(wanted) - set(ours)), ("has too many of", set(ours) - set(wanted))):
        if keys:
            raise CheckpointError(f"its text tower {what} {', '.join(sorted(keys)[:4])}: it is incomplete")
    if wrong := [key for key, value in wanted.items() if value.shape != ours[key].shape]:
        shapes = f"{tuple(ours[wrong[0]].shape)}, expected {tuple(wanted[wrong[0]].shape)}"
        raise CheckpointError(f"its text tower's {wrong[0]} has the shape {shapes}: get it again")
    tower.load_state_dict({key: value.float() for key, value in ours.items()})
    tower.tokenizer = read_tokenizer(files, sidecar, config)
    return tower


def _config(ours: Mapping[str, Tensor], format: TextFormat, sidecar: Mapping[str, Any], model: Model) -> TextConfig:
    """Join what tensors and config file say of a text tower; raise if they contradict each other."""
    needed = ("token_embed.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "logit_scale")
    if missing := [key for key in needed if key not in ours]:
        raise CheckpointError(f"its text tower lacks {missing[0]}: it is incomplete")
    vocabulary, width = ours["token_embed.weight"].shape
    projection = "linear+bias" if "head.bias" in ours else "linear" if "head.weight" in ours else "none"
    shapes: dict[str, Any] = {
        "vocabulary": vocabulary,
        "width": width,
        "context": ours["pos_embed"].shape[1],
        "depth": len({key.split(".")[1] for key in ours if key.startswith("blocks.")}),
        "mlp_width": ours["blocks.0.mlp.fc1.weight"].shape[0],
        "projection": projection,
        "outputs": ours["head.weight"].shape[0] if "head.weight" in ours else width,
    }
    activation = getattr(model.config, "activation", "gelu")
    stated = {"activation": activation} | format.read_config(sidecar)
    for name, value in shapes.items():
        if stated.get(name, value) != value:
            raise CheckpointError(f"its config says {name}={stated[name]} of the text tower, its tensors say {value}")
    if "heads" not in stated:
        if width % HEAD_WIDTH:
            raise CheckpointError("the text tower's heads are not in its tensors: keep the config file beside them")
        stated["heads"] = width // HEAD_WIDTH
        said = f"{stated['heads']} heads and the activation {activation} (as in OpenAI's models)"
        model.card.report.assumed["text tower"] = said
    known = {field.name for field in fields(TextConfig)}
    return TextConfig(**{name: value for name, value in (shapes | stated).items() if name in known})
