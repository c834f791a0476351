"""Make the `Card` of a model that is loaded from what its files state: a ViT's (`vit_card`), a ResNet's or timm's."""

import math
from collections.abc import Mapping
from typing import Any

from vitreous.data.image_dataset import NOUNS, TASKS
from vitreous.data.preprocess import Preprocess
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import PROBLEM_TYPES, Card, LoadReport
from vitreous.weights.class_names import class_names, imagenet_names
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.preprocessing import preprocessing
from vitreous.weights.safety import CheckpointError
from vitreous.weights.saved_config import own_config, read_own


def vit_card(
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    inside: Mapping[str, Any],
    report: LoadReport,
    config: ViTConfig,
    *,
    kept: bool,
) -> Card:
    """Make the card of a loaded ViT, whose head was `kept`, or another number of classes asked for.

    `inside` is what a training script says in the weights' file.
    """
    own = read_own(sidecar)
    if "config" in own and "preprocess" not in own:
        raise CheckpointError("config.json states no preprocessing of the model: get it again")
    if "preprocess" in own:
        preprocess, names = Preprocess.from_dict(own["preprocess"]), own.get("class_names")
        if "config" in own and (stated := own_config(own).size) != preprocess.size:
            raise CheckpointError(
                f"config.json contradicts itself: its model takes images of {stated}, its preprocessing makes "
                f"{preprocess.size}: get it again"
            )
        head = own.get("head", "classifier")
        names = tuple(names) if names and len(names) == config.classes else None
        if "class names" in report.assumed and names != imagenet_names():  # assumed of the model it was fine-tuned from
            del report.assumed["class names"]
    else:
        preprocess = preprocessing(files, sidecar, config.size, config.channels, report, inside)
        shared = "clip" in report.format or "aimv2" in report.format
        usual = "projection" if shared and not config.head_bias and config.classes else "classifier"
        head = own.get("head", usual)
        names = class_names(files, sidecar, config.classes, report) if head == "classifier" else None
    answers = stated_task(sidecar, own, config) if kept else {}
    if any(key.startswith("head") for key in report.reinitialised):
        names, head, own, answers = None, "classifier", {}, {}  # the accuracy of the old head does not apply
        report.assumed.pop("class names", None)
    return Card(
        name=str(files.name),
        preprocess=preprocess if preprocess.size == config.size else preprocess.with_size(config.size),
        class_names=names,
        head=head if config.classes else "none",
        origin=files.origin,
        revision=files.revision,
        files=tuple(str(path) for path in files.weights),
        report=report,
        training=own.get("training"),
        **answers,
    )


def classifier_card(
    family: str,
    files: CheckpointFiles,
    sidecar: Mapping[str, Any],
    own: Mapping[str, Any],
    preprocess: Preprocess,
    report: LoadReport,
    config: Any,
    stored: int,
    *,
    replaced: bool,
) -> Card:
    """Make the card of a loaded ResNet or timm classifier of `stored` classes; nothing of a head that was `replaced`.

    `own` is the `"vitreous"` section of the config file, `config` the model's.
    """
    names = None if replaced else class_names(files, sidecar, stored, report)
    return Card(
        name=str(files.name),
        preprocess=preprocess,
        class_names=names,
        head="classifier" if config.classes else "none",
        origin=files.origin,
        revision=files.revision,
        files=tuple(str(path) for path in files.weights),
        family=family,
        report=report,
        training=None if replaced else own.get("training"),
        **({} if replaced else stated_task(sidecar, own, config)),
    )


def stated_task(sidecar: Mapping[str, Any], own: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the task, thresholds and standard for a loaded model's `Card`, as a config file states them, checked.

    `own` is the `"vitreous"` section of the config file `sidecar`; transformers' files state `problem_type`.
    """
    if "config" in own and (missing := [name for name in ("task", "thresholds", "standard") if name not in own]):
        raise CheckpointError(f"config.json does not state the {missing[0]} of the model: get it again")
    dense, problem = getattr(config, "dense", "none") != "none", sidecar.get("problem_type")
    if not isinstance(problem, str | None) or problem not in PROBLEM_TYPES:
        raise CheckpointError(f"config.json says problem_type={problem!r:.40}, which is not one of transformers'")
    alone = problem is None and config.classes == 1 and "model_type" in sidecar  # transformers takes its sigmoid
    task = own.get("task", "segment" if dense else "multilabel" if alone else PROBLEM_TYPES[problem])
    if task not in TASKS:
        raise CheckpointError(f"config.json says task={task!r:.40}, expected one of {', '.join(TASKS)}: get it again")
    if (task == "segment") != dense:
        kind = "a dense head" if dense else "no dense head"
        raise CheckpointError(f"config.json contradicts itself: it says task={task!r}, and its model has {kind}")
    thresholds, standard = own.get("thresholds"), own.get("standard")
    for name, value, of in (("thresholds", thresholds, "multilabel"), ("standard", standard, "regress")):
        if value is not None and (task != of or not isinstance(value, list) or len(value) != config.classes):
            wanted = f"one entry for each of {config.classes} {NOUNS[of]}" if task == of else f"none for task={task!r}"
            raise CheckpointError(f"config.json says {name}={value!r:.60}, expected {wanted}: get it again")
    if not all(_is_number(each, 0) and each <= 1 for each in thresholds or ()):
        raise CheckpointError(f"config.json says thresholds={thresholds!r:.60}, expected probabilities: get it again")
    pairs = [pair for pair in standard or () if isinstance(pair, list) and len(pair) == 2]
    if len(pairs) < len(standard or ()) or not all(_is_number(mean) and _is_number(std, 0) for mean, std in pairs):
        wanted = "a mean and a deviation of each number"
        raise CheckpointError(f"config.json says standard={standard!r:.60}, expected {wanted}: get it again")
    return {
        "task": task,
        "thresholds": None if thresholds is None else tuple(float(each) for each in thresholds),
        "standard": None if standard is None else tuple((float(mean), float(std)) for mean, std in pairs),
    }


def _is_number(value: object, smallest: float = -math.inf) -> bool:
    """Return whether a value stated for a loaded model's card is a finite number, and not below the smallest."""
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value) and value >= smallest
