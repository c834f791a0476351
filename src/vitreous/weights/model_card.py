"""Write the model card: a `README.md` as the Hugging Face Hub reads it, without local paths and secrets."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from vitreous.data.image_dataset import count_nouns
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.files import write_text
from vitreous.runtime.wording import FIGURES, count, figure
from vitreous.weights.card import Card
from vitreous.weights.load import Model
from vitreous.weights.names import parse

NOT_OF_THE_MODEL = ("device", "workers", "save_every", "keep", "snapshots", "log", "resident")
"""Settings of a run that concern the machine and its logs, not the model."""
METRICS: dict[str, tuple[str | None, str, str]] = {
    "classify": ("image-classification", "top1", "accuracy"),
    "multilabel": ("image-classification", "map", "mean_average_precision"),
    "regress": (None, "r2", "r_squared"),  # the Hub has no such pipeline
    "segment": ("image-segmentation", "miou", "mean_iou"),
}
"""Task → the Hub's pipeline, the figure that counts, and what the Hub calls it."""
SAYS = {
    "classify": "It distinguishes {}",
    "multilabel": "It says which of {} an image has",
    "regress": "It estimates {}",
    "segment": "It segments images into {}",
}
"""Task → what a model does, with a number of classes, labels or numbers."""
USAGE = {
    "classify": "print(answer.best.class_name, answer.best.probability)",
    "multilabel": "print(answer.labels)  # those that are present; answer.predictions has the probabilities",
    "regress": "print(answer.numbers)  # name → number",
    "segment": "print(answer.shares, answer.mask.shape)  # indices of classes, at the image's own size",
}
"""Task → what to do with an answer."""
LIMITS = {
    "classify": "The answer is always one of the classes above, whatever the image shows.",
    "multilabel": "It knows the labels above alone; an image may have none of them.",
    "regress": "It gives the numbers above for any image, whatever it shows.",
    "segment": "Each pixel gets one of the classes above, whatever the image shows.",
}


def write_model_card(model: Model, folder: str | Path, name: str = "FOLDER", licence: str | None = None) -> Path:
    """Write `README.md` into the folder of a saved model; `name` is what `load` takes."""
    text = model_card(model, name, licence)
    return write_text(Path(folder) / "README.md", text)


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
        *((_training_section(training), _results_section(model, card, training)) if training else ()),
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
    needed = {"images"} if card.task == "regress" else {METRICS[card.task][1], "images"}  # R² may be undefined
    return training if complete and needed <= set(training.get("result") or ()) else {}


def _data_name(training: dict[str, Any]) -> str:
    """Name the data of a run in a sentence of the model card: "36 images of images" would be read twice.

    >>> _data_name({"config": {"data": "digits"}}), _data_name({"config": {"data": "images/"}})
    ('digits', 'the folder images')
    """
    name = str(training["config"]["data"]).rstrip("/\\")
    return f"the folder {name}" if name.lower() == "images" else name


def training_figures(card: Card) -> list[tuple[str, str]]:
    """Return for the model card the figures of labels, numbers or masks at the end of training, in words."""
    found = []
    for key, value in dict((card.training or {})["result"]).items():
        name, _, number = key.rpartition("_")
        if key in FIGURES:
            found.append((FIGURES[key][0], figure(key, value)))
        elif name in FIGURES and number.isdecimal():  # the error of each of several numbers
            found.append((f"{FIGURES[name][0]} of {card.label(int(number))}", figure(name, value)))
    return found


def _front_matter(title: object, card: Card, training: dict[str, Any], licence: str | None) -> str:
    """Write the model card's YAML header for the Hub."""
    from huggingface_hub import EvalResult, ModelCardData

    known: dict[str, Any] = {
        "library_name": "vitreous",
        "tags": ["vitreous", "vision", {"ViT": "vision-transformer"}.get(card.family, card.family.lower())],
    }
    if card.head != "classifier":
        known["pipeline_tag"] = "image-feature-extraction"
    elif (pipeline := METRICS[card.task][0]) is not None:
        known["pipeline_tag"] = pipeline
    if card.task != "classify":
        known["tags"].append(card.task)
    if licence is not None:
        known["license"] = licence
    if training:
        if (base := _base_model(training)) is not None:
            known["base_model"] = base
        pipeline, key, metric = METRICS[card.task]
        if key in training["result"]:
            data, value = str(training["config"]["data"]), round(float(training["result"][key]), 6)
            known |= {"metrics": [metric], "model_name": str(title)}
            known["eval_results"] = [EvalResult(pipeline or card.task, data, data, metric, value)]
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
    config: Any = model.config
    parameters = f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"
    if isinstance(config, ViTConfig):
        (height, width), (rows, columns) = config.size, config.patch
        shape = f"A Vision Transformer: {height}×{width} px in patches of {rows}×{columns}, width {config.width}, "
        shape += f"depth {config.depth}, {config.heads} heads, {parameters}."
    elif card.family == "timm":
        shape = f"timm's {config.timm}, with {parameters}."
    else:
        shape = f"A ResNet with {config.depth} layers and {parameters}."
    if card.head == "classifier":
        names = card.class_names
        shown = f": {', '.join(names[:10])}{', …' if len(names) > 10 else ''}" if names else ", without names"
        shape += f" {SAYS[card.task].format(count_nouns(card.task, config.classes))}{shown}."
    elif card.head == "projection":
        shape += f" It projects an image to {config.classes:,} dimensions."
    else:
        shape += " It has no head: it gives features."
    if training:
        tuned = f"Fine-tuned from {training['config']['model']}"
        start = tuned if training["config"].get("pretrained") else "Trained from scratch"
        shape += f" {start} on {_data_name(training)} with Vitreous."
    elif card.origin != "memory" and card.name:
        shape += f" The weights come from {public(card.name)}."
    return shape


def _usage(card: Card, name: str) -> str:
    """Write the model card's commands to use the model."""
    command = "classify" if card.head == "classifier" else "embed"
    flags = " -o masks" if card.task == "segment" else ""
    note = "\n\nFOLDER is the folder of this file." if name == "FOLDER" else ""
    python = f'import vitreous\n\nmodel = vitreous.load("{name}")\n'
    if command == "classify":
        python += f'for answer in vitreous.classify(["photo.jpg"], model):\n    {USAGE[card.task]}'
    else:
        python += 'features = vitreous.embed(["photo.jpg"], model)'
    return (
        f"## Use\n\n```bash\nvitreous {command} photo.jpg --model {name}{flags}\n```\n\n```python\n{python}\n```{note}"
    )


def _training_section(training: dict[str, Any]) -> str:
    """Write the model card's table of training settings."""
    result = training["result"]
    settings = {key: value for key, value in training["config"].items() if key not in NOT_OF_THE_MODEL}
    rows = [f"| {key} | {_format_value(value)} |" for key, value in settings.items()]
    summary = []
    if "training_images" in training:
        summary.append(f"Trained on {count(training['training_images'], 'image')} of {_data_name(training)}.")
    if {"epochs", "seconds"} <= set(result):
        hardware = f" on {training['hardware']}" if "hardware" in training else ""
        summary.append(f"{count(result['epochs'], 'epoch')} took {result['seconds']:,.0f} s{hardware}.")
    table = "\n".join(["| setting | value |", "|---|---|", *rows])
    return "\n\n".join(filter(None, ("## Training", " ".join(summary), table)))


def _results_section(model: Model, card: Card, training: dict[str, Any]) -> str:
    """Write the model card's accuracy with its interval, or the figures of another task."""
    config, date = training["config"], f" on {training['date']}" if "date" in training else ""
    title, text = "Accuracy", ""
    if card.task == "classify":
        text = _accuracy(training, date, model.config.classes)
    else:
        title = "Results"
        images = f"{count(int(training['result']['images']), 'held-out image')} of {_data_name(training)}"
        rows = "\n".join(f"| {name} | {value} |" for name, value in training_figures(card))
        text = f"Measured on {images}{date}:\n\n| figure | value |\n|---|---|\n{rows}\n\n"
    if card.thresholds is not None:
        text += "The thresholds of the labels were chosen on the same images: F1 at them is a little too high. "
    if config.get("validation"):
        text += "They are a share of the training images, held out to choose settings: test accuracy may be lower. "
    return f"## {title}\n\n{text}The model is the last epoch's, not the best epoch's."


def _accuracy(training: dict[str, Any], date: str, classes: int) -> str:
    """Write the model card's sentences on accuracy; of five classes or fewer, each is among the first five."""
    from scipy.stats import binomtest

    result = training["result"]
    images, top1 = int(result["images"]), float(result["top1"])
    low, high = binomtest(round(top1 * images), images).proportion_ci(method="wilson") if images else (0.0, 1.0)
    measured = f"{count(images, 'held-out image')} of {_data_name(training)} {'is' if images == 1 else 'are'}"
    text = f"**{top1:.2%}** of {measured} classified correctly, measured{date}; "
    text += f"95 % interval: {low:.2%} to {high:.2%} (Wilson). "
    if "top5" in result and classes > 5:
        text += f"The correct class is among the top five for {result['top5']:.2%}. "
    return text


def _limits_section(card: Card, training: dict[str, Any]) -> str:
    """Write what the model card says the model does not do."""
    lines = []
    if card.head == "classifier":
        lines.append(LIMITS[card.task])
    what = "accuracy" if card.task == "classify" else "how well it does"
    if training:
        lines.append(f"It was evaluated on {_data_name(training)} only: {what} on other images is unknown.")
        if card.task == "classify":
            lines.append("Calibration and accuracy for each class were not measured.")
    else:
        no = "no accuracy" if card.task == "classify" else "no figures"
        lines.append(f"The model's files state {no}: measure it with `vitreous evaluate`.")
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
