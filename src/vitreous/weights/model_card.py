"""Write the model card: a `README.md` as the Hugging Face Hub reads it, without local paths and secrets."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.files import write_atomic
from vitreous.weights.card import Card
from vitreous.weights.load import Model
from vitreous.weights.names import parse

NOT_OF_THE_MODEL = ("device", "workers", "save_every", "keep", "snapshots", "log", "resident")
"""Settings of a run that concern the machine and its logs, not the model."""


def write_model_card(model: Model, folder: str | Path, name: str = "FOLDER", licence: str | None = None) -> Path:
    """Write `README.md` into the folder of a saved model; `name` is what `load` takes."""
    text = model_card(model, name, licence)
    return write_atomic(Path(folder) / "README.md", partial(Path.write_text, data=text, encoding="utf-8"))


def model_card(model: Model, name: str = "FOLDER", licence: str | None = None) -> str:
    """Return the text of the model card.

    >>> from vitreous.weights.load import load
    >>> [line for line in model_card(load("packaged:cifar10")).splitlines() if line.startswith("## ")]
    ['## Use', '## Images', '## Training', '## Accuracy', '## Limits']
    """
    card = model.card
    assert card is not None
    training = _public_training(card)
    title = public(card.name) if name == "FOLDER" else name.split("/")[-1]
    steps = card.preprocess.describe()
    parts = (
        _front_matter(title, card, training, licence),
        f"# {title}",
        _description(model, card, training),
        _usage(card, name),
        f"## Images\n\n{steps[:1].upper()}{steps[1:]}. `vitreous.classify` and `vitreous.embed` do this.",
        *((_training_section(training), _accuracy_section(training)) if training else ()),
        _limits_section(card, training),
    )
    return "\n\n".join(parts) + "\n"


def public(value: object) -> object:
    """Cut local paths and secrets out of a setting on the model card: a path's last part, no query in an address.

    >>> public("/home/me/images"), public("../cats/"), public("google/vit-base-patch16-224"), public(0.5)
    ('images', 'cats', 'google/vit-base-patch16-224', 0.5)
    >>> public("https://me:secret@example.org/vit.pth?token=1")
    'https://example.org/vit.pth'
    """
    if isinstance(value, Mapping):
        return {key: public(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [public(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if re.match(r"\w+://", value):
        address = urlsplit(value)
        return f"{address.scheme}://{address.hostname or ''}{address.path}"
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    if absolute or value[:1] in (".", "~") or "\\" in value or value.count("/") > 1 or _exists(value):
        return PureWindowsPath(value).name or "a folder"  # takes both kinds of separator
    return value


def _exists(value: str) -> bool:
    """Return whether a setting on the model card is a path on this machine."""
    try:
        return "/" in value and Path(value).exists()
    except OSError:  # too long for a name
        return False


def _public_training(card: Card) -> dict[str, Any]:
    """Return the model card's record of the training without local paths; empty without a record of ours."""
    training = public(card.training) if isinstance(card.training, Mapping) else {}
    assert isinstance(training, dict)
    complete = isinstance(training.get("config"), dict) and {"data", "model"} <= set(training["config"])
    return training if complete and {"top1", "images"} <= set(training.get("result") or ()) else {}


def _front_matter(title: object, card: Card, training: dict[str, Any], licence: str | None) -> str:
    """Write the model card's YAML header for the Hub."""
    from huggingface_hub import EvalResult, ModelCardData

    known: dict[str, Any] = {
        "library_name": "vitreous",
        "tags": ["vitreous", "vision", "vision-transformer" if card.family == "ViT" else "resnet"],
        "pipeline_tag": "image-classification" if card.head == "classifier" else "image-feature-extraction",
    }
    if licence is not None:
        known["license"] = licence
    if training:
        if (base := _base_model(training)) is not None:
            known["base_model"] = base
        data, top1 = str(training["config"]["data"]), round(float(training["result"]["top1"]), 6)
        known |= {"metrics": ["accuracy"], "model_name": str(title)}
        known["eval_results"] = [EvalResult("image-classification", data, data, "accuracy", top1)]
    return f"---\n{ModelCardData(**known).to_yaml().strip()}\n---"


def _base_model(training: dict[str, Any]) -> str | None:
    """Find for the model card the Hub repository that a run started from; None if it started elsewhere."""
    if not training["config"].get("pretrained"):
        return None
    try:
        name = parse(str(training["config"]["model"]))
    except (ValueError, OSError):
        return None
    return name.target if name.kind == "hub" else None


def _description(model: Model, card: Card, training: dict[str, Any]) -> str:
    """Write the model card's description of the network."""
    config, count = model.config, sum(parameter.numel() for parameter in model.parameters())
    if isinstance(config, ViTConfig):
        (height, width), (rows, columns) = config.size, config.patch
        shape = f"A Vision Transformer: {height}×{width} px in patches of {rows}×{columns}, width {config.width}, "
        shape += f"depth {config.depth}, {config.heads} heads, {count:,} parameters."
    else:
        shape = f"A ResNet with {config.depth} layers and {count:,} parameters."
    if card.head == "classifier":
        names = card.class_names
        shown = f": {', '.join(names[:10])}{', …' if len(names) > 10 else ''}" if names else ", without names"
        shape += f" It distinguishes {config.classes:,} classes{shown}."
    elif card.head == "projection":
        shape += f" It projects an image to {config.classes:,} dimensions."
    else:
        shape += " It has no head: it gives features."
    if training:
        start = f"fine-tuned from {training['config']['model']}"
        start = start if training["config"].get("pretrained") else "from scratch"
        shape += f" Trained {start} on {training['config']['data']} with Vitreous."
    elif card.origin != "memory" and card.name:
        shape += f" The weights come from {public(card.name)}."
    return shape


def _usage(card: Card, name: str) -> str:
    """Write the model card's commands to use the model."""
    command = "classify" if card.head == "classifier" else "embed"
    note = "\n\nFOLDER is the folder of this file." if name == "FOLDER" else ""
    python = f'import vitreous\n\nmodel = vitreous.load("{name}")\n'
    if command == "classify":
        python += 'for answer in vitreous.classify(["photo.jpg"], model):\n'
        python += "    print(answer.best.class_name, answer.best.probability)"
    else:
        python += 'features = vitreous.embed(["photo.jpg"], model)'
    return f"## Use\n\n```bash\nvitreous {command} photo.jpg --model {name}\n```\n\n```python\n{python}\n```{note}"


def _training_section(training: dict[str, Any]) -> str:
    """Write the model card's table of training settings."""
    result = training["result"]
    settings = {key: value for key, value in training["config"].items() if key not in NOT_OF_THE_MODEL}
    rows = [f"| {key} | {_format_value(value)} |" for key, value in settings.items()]
    summary = []
    if "training_images" in training:
        summary.append(f"Trained on {training['training_images']:,} images of {training['config']['data']}.")
    if {"epochs", "seconds"} <= set(result):
        hardware = f" on {training['hardware']}" if "hardware" in training else ""
        summary.append(f"{result['epochs']} epochs took {result['seconds']:,.0f} s{hardware}.")
    table = "\n".join(["| setting | value |", "|---|---|", *rows])
    return "\n\n".join(filter(None, ("## Training", " ".join(summary), table)))


def _accuracy_section(training: dict[str, Any]) -> str:
    """Write the model card's accuracy with its interval."""
    from scipy.stats import binomtest

    config, result = training["config"], training["result"]
    count, top1 = int(result["images"]), float(result["top1"])
    low, high = binomtest(round(top1 * count), count).proportion_ci(method="wilson") if count else (0.0, 1.0)
    date = f" on {training['date']}" if "date" in training else ""
    text = f"**{top1:.2%}** of {count:,} held-out images of {config['data']} are classified correctly, measured{date}; "
    text += f"95 % interval: {low:.2%} to {high:.2%} (Wilson)."
    if "top5" in result:
        text += f" The correct class is among the top five for {result['top5']:.2%}."
    if config.get("validation"):
        text += " They are a share of the training images, held out to choose settings: test accuracy may be lower."
    return f"## Accuracy\n\n{text} The model is the last epoch's, not the best epoch's."


def _limits_section(card: Card, training: dict[str, Any]) -> str:
    """Write what the model card says the model does not do."""
    lines = []
    if card.head == "classifier":
        lines.append("The answer is always one of the classes above, whatever the image shows.")
    if training:
        lines.append(f"It was evaluated on {training['config']['data']} only: accuracy on other images is unknown.")
        lines.append("Calibration and accuracy for each class were not measured.")
    else:
        lines.append("The model's files state no accuracy: measure it with `vitreous evaluate`.")
    lines += [f"Assumed, since no file states it: {key}, {why}." for key, why in card.report.assumed.items()]
    return "\n".join(["## Limits", "", *(f"- {line}" for line in lines)])


def _format_value(value: object) -> str:
    """Write a setting of training in words for the model card."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " to ".join(_format_value(part) for part in value)
    text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
