"""Make the `Card` of a model that is loaded from what its files state: a ViT's (`vit_card`), a ResNet's or timm's."""

from collections.abc import Mapping
from typing import Any

from vitreous.data.preprocess import Preprocess
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card, LoadReport, stated_task
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
