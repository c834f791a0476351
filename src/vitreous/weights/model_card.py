"""The page that travels with a model: `README.md` as the Hugging Face Hub reads it, from what the model itself knows.

What no file tells is left out, and of a path on this machine only the last part is told.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT, ViTConfig
from vitreous.runtime.files import write_atomic
from vitreous.weights.card import Card

CARD = "README.md"
ELSEWHERE = ("device", "workers", "save_every", "keep", "snapshots", "log", "resident")
"""Settings of a run that say where and how it was watched, and nothing of the model."""


def write_model_card(model: ViT | ResNet, folder: str | Path, name: str = "FOLDER", licence: str | None = None) -> Path:
    """Write `README.md` beside a saved model; `name` is what `load` takes."""
    text = model_card(model, name, licence)
    return write_atomic(Path(folder) / CARD, partial(Path.write_text, data=text, encoding="utf-8"))


def model_card(model: ViT | ResNet, name: str = "FOLDER", licence: str | None = None) -> str:
    """The page as text.

    >>> from vitreous.weights.load import load
    >>> [line for line in model_card(load()).splitlines() if line.startswith("## ")]
    ['## Use', '## Images', '## Training', '## Accuracy', '## Limits']
    """
    card = model.card
    assert card is not None
    message = _training(card)
    title = public(card.name) if name == "FOLDER" else name.split("/")[-1]
    parts = [_front(title, card, message, licence), f"# {title}", _what(model, card, message), _use(card, name)]
    steps = card.preprocess.describe()
    parts.append(f"## Images\n\n{steps[:1].upper()}{steps[1:]}. Loaded as above, the model does it itself.")
    if message:
        parts += [_trained(message), _accuracy(message)]
    parts.append(_limits(card, message))
    return "\n\n".join(parts) + "\n"


def public(value: object) -> object:
    """A setting as strangers may read it: of a path on this machine, the last part; of an address, no query.

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
    if absolute or value[:1] in (".", "~") or "\\" in value or value.count("/") > 1 or _is_here(value):
        return PureWindowsPath(value).name or "a folder"  # takes both kinds of separator
    return value


def _is_here(value: str) -> bool:
    try:
        return "/" in value and Path(value).exists()
    except OSError:  # too long for a name
        return False


def _training(card: Card) -> dict[str, Any]:
    """What the run told, made public; nothing where it was not trained here, or told otherwise."""
    message = public(card.training) if isinstance(card.training, Mapping) else {}
    assert isinstance(message, dict)
    complete = isinstance(message.get("config"), dict) and {"data", "model"} <= set(message["config"])
    return message if complete and {"top1", "images"} <= set(message.get("result") or ()) else {}


def _front(title: object, card: Card, message: dict[str, Any], licence: str | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    classifier = card.head == "classifier"
    known: dict[str, Any] = {"library_name": "vitreous", "tags": ["vitreous", "vision"]}
    known["tags"] += ["vision-transformer"] if card.family == "ViT" else ["resnet"]
    known["pipeline_tag"] = "image-classification" if classifier else "image-feature-extraction"
    if licence is not None:
        known["license"] = licence
    if message:
        if (base := _base(message)) is not None:
            known["base_model"] = base
        data, right = str(message["config"]["data"]), round(float(message["result"]["top1"]), 6)
        known |= {"metrics": ["accuracy"], "model_name": str(title)}
        known["eval_results"] = [EvalResult("image-classification", data, data, "accuracy", right)]
    return f"---\n{ModelCardData(**known).to_yaml().strip()}\n---"


def _base(message: dict[str, Any]) -> str | None:
    """The Hub's repository that a run began with; None where it began elsewhere."""
    from vitreous.weights.names import parse

    if not message["config"].get("pretrained"):
        return None
    try:
        name = parse(str(message["config"]["model"]))
    except (ValueError, OSError):
        return None
    return name.target if name.kind == "hub" else None


def _what(model: ViT | ResNet, card: Card, message: dict[str, Any]) -> str:
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
        shape += f" It tells {config.classes:,} classes apart{shown}."
    elif card.head == "projection":
        shape += f" It projects an image to {config.classes:,} dimensions."
    else:
        shape += " It has no head: it gives features."
    if message:
        begun = (
            f"fine-tuned from {message['config']['model']}" if message["config"].get("pretrained") else "from scratch"
        )
        shape += f" Trained {begun} on {message['config']['data']} with Vitreous."
    elif card.origin != "memory" and card.name:
        shape += f" The weights come from {public(card.name)}."
    return shape


def _use(card: Card, name: str) -> str:
    command = "classify" if card.head == "classifier" else "embed"
    where = "\n\nFOLDER is where this file lies." if name == "FOLDER" else ""
    python = f'import vitreous\n\nmodel = vitreous.load("{name}")\n'
    if command == "classify":
        python += 'for answer in vitreous.classify(["photo.jpg"], model):\n'
        python += "    print(answer.best.label, answer.best.probability)"
    else:
        python += 'features = vitreous.embed(["photo.jpg"], model)'
    return f"## Use\n\n```bash\nvitreous {command} photo.jpg --model {name}\n```\n\n```python\n{python}\n```{where}"


def _trained(message: dict[str, Any]) -> str:
    result = message["result"]
    lines = [f"| {key} | {_spell(value)} |" for key, value in message["config"].items() if key not in ELSEWHERE]
    learned = (
        f"Learned from {message['learned']:,} images of {message['config']['data']}." if "learned" in message else ""
    )
    took = f"{result['epochs']} epochs took {result['seconds']:,.0f} s" if {"epochs", "seconds"} <= set(result) else ""
    took += f" on {message['hardware']}" if took and "hardware" in message else ""
    said = " ".join(part for part in (learned, took + "." if took else "") if part)
    return "\n".join(["## Training", *(["", said] if said else []), "", "| setting | value |", "|---|---|", *lines])


def _accuracy(message: dict[str, Any]) -> str:
    from scipy.stats import binomtest

    config, result = message["config"], message["result"]
    count, right = int(result["images"]), float(result["top1"])
    low, high = binomtest(round(right * count), count).proportion_ci(method="wilson") if count else (0.0, 1.0)
    date = f" on {message['date']}" if "date" in message else ""
    text = f"**{right:.2%}** of {count:,} held-out images of {config['data']} are right, measured{date}; "
    text += f"95 % interval for that many images: {low:.2%} to {high:.2%} (Wilson)."
    if "top5" in result:
        text += f" The right class is among the first five for {result['top5']:.2%}."
    if config.get("validation"):
        text += " They are a share of the training images, kept for choosing settings: test images may say less."
    return f"## Accuracy\n\n{text} It is the last epoch's model, not the best epoch's."


def _limits(card: Card, message: dict[str, Any]) -> str:
    lines = []
    if card.head == "classifier":
        lines.append("Whatever the image shows, the answer is one of the classes above.")
    if message:
        lines.append(f"Only images of {message['config']['data']} were tried: nothing is known here of others.")
        lines.append("Calibration and single classes were not measured by the run.")
    else:
        lines.append("No accuracy stands in the model's files: measure it with `vitreous evaluate`.")
    lines += [f"Assumed, for no file told it: {key}, {why}." for key, why in card.report.assumed.items()]
    return "\n".join(["## Limits", "", *(f"- {line}" for line in lines)])


def _spell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " to ".join(_spell(part) for part in value)
    text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
