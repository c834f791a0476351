"""`Entrant` and `Budget`: the models of a study, the config that the budget gives each, and where configs differ.

`MODEL` or `MODEL@POLICY`: `vit_micro_patch4_32`, `resnet18_small`, `torchvision:vit_b_16@attention`. A variant's name,
and `resnet14` to `resnet152_small`, begin from scratch; anything else is a checkpoint for `load`, and is fine-tuned.
Fields may follow a variant's or ResNet's name (`vit_femto_patch4_32:position=sine-1d`, `resnet14_small:width=9`).
`timm:NAME` is any classifier of timm's from scratch, `timm:NAME@WEIGHTS` one with weights, which is fine-tuned.

All models of a study share images, augmentation, batch size and budget, which come from one recipe. What depends on
the kind of model (the optimiser, above all) is decided in `configure` alone; `differing` finds it again for the page.
"""

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from vitreous.data.image_dataset import ImageDataset
from vitreous.models.resnet import DEPTHS, ResNetConfig, resnet_config
from vitreous.models.timm_classifier import TimmClassifier, TimmConfig, split_timm
from vitreous.models.variants import VARIANTS, split_changes, variant
from vitreous.models.vit_config import ViTConfig
from vitreous.training.config import NEUTRAL, TrainConfig, evaluation_interval
from vitreous.training.data_check import typical_image
from vitreous.training.policies import POLICIES
from vitreous.training.recipes import FINETUNE, POLICY_RATES, RECIPES, finetune_config, for_task, scratch_config
from vitreous.weights.load import load
from vitreous.weights.names import DEFAULT_TAGS, PACKAGED, TORCHVISION_MODELS, parse
from vitreous.weights.unsupported import unsupported_family

EVALUATIONS = 50
"""About how often a run evaluates the held-out images; a shorter one after each epoch, or as its data allow."""
SMALL = 64
"""Pixels up to which the default is the recipe for small images."""
RESNET: dict[str, Any] = {
    # the optimiser of He et al. (2016); its rate is for 256 images and grows with the batch (Goyal et al., 2017)
    "optimizer": "sgd",
    "clip": 0.0,
    "average": 0.0,  # batch norm's statistics would not be those of the averaged weights
    "layer_decay": 1.0,
    "dropout": 0.0,  # a ResNet has neither dropout
    "stochastic_depth": 0.0,  # nor stochastic depth
}
RESNET_RATE, RESNET_DECAY = 0.1, 5e-4
RESNET_TUNING_RATE, RESNET_TUNING_DECAY = 0.04, 1e-4
TIMM: dict[str, Any] = {"layer_decay": 1.0, "dropout": 0.0, "stochastic_depth": 0.0}
"""For a classifier of timm's without batch norms: AdamW, and what is not known of all networks is off."""
SCRATCH: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05}
"""For a ViT from scratch in a study of models that are fine-tuned, and for timm's networks without batch norms."""


@dataclass(frozen=True)
class Budget:
    """The settings that are equal for all models of a study; None: what the recipe says."""

    data: str
    epochs: int | None = None
    minutes: float | None = None
    recipe: str | None = None
    image_size: int | None = None
    batch_size: int | None = None
    precision: Literal["fp32", "bf16"] | None = None
    compile: Literal["yes", "no"] | None = None
    train_split: str | None = None
    learning_rates: tuple[float, ...] = ()
    """One for each model, in their order; none: the usual one for its kind."""
    task: Literal["classify", "multilabel", "regress", "segment"] | None = None
    """What is learned; None: by the data."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise ValueError("the budget is --epochs or --minutes, not both: leave one out")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"--minutes must be above 0, got {self.minutes:g}")


def with_epochs(config: TrainConfig, epochs: int, balanced: int = 1) -> TrainConfig:
    """Give an entrant's config another number of epochs; the warm-up keeps its share of them.

    A long run is evaluated `EVALUATIONS` times, but not more often than every `balanced` epochs.

    >>> with_epochs(TrainConfig(epochs=40, warmup=4), 20).warmup
    2.0
    """
    warmup = round(config.warmup * epochs / config.epochs, 4)
    every = evaluation_interval(epochs, EVALUATIONS, balanced) if epochs >= 2 * EVALUATIONS else 0
    return replace(config, epochs=epochs, warmup=warmup, evaluate_every=every)


@dataclass(frozen=True)
class Entrant:
    """One model of a study: its name, weights, policy and recipe."""

    label: str
    """The name that was asked for; `display_names` shortens it for tables, pages and folders."""
    model: str
    """What `TrainConfig.model` gets."""
    kind: Literal["ViT", "ResNet", "timm"]
    pretrained: bool
    policy: str
    image_size: int | None
    """The size that the model was made for; None if it takes any."""
    notes: tuple[str, ...] = ()
    """What a reader of the table must know."""
    batch_norm: bool = False
    """Whether it has batch norms: then it gets the optimiser of a ResNet, unless its head alone learns."""

    @property
    def start(self) -> str:
        """How an entrant begins: fine-tuned or from scratch.

        >>> find_entrant("resnet18_small").start
        'from scratch'
        """
        return f"fine-tuned ({self.policy})" if self.pretrained else "from scratch"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**{**values, "notes": tuple(values["notes"])})


def find_entrant(label: str, say: Callable[[str], object] = lambda line: None) -> Entrant:
    """Find out what the name of a study's entrant stands for; a checkpoint is opened for that.

    A variant's name with a policy that freezes something is the checkpoint of that name. If a ResNet of torchvision
    has no weights on this machine and they cannot be downloaded, it begins from scratch, with a note.

    >>> find_entrant("vit_pico_patch2_8").start, find_entrant("packaged:cifar10@head").start
    ('from scratch', 'fine-tuned (head)')
    """
    name, policy = split_policy(label)
    if policy is None:
        _check_policy(label)
    freezes = policy not in (None, "full")  # from scratch everything learns: frozen weights would stay noise
    if resnet_config(name) is not None:
        if freezes:
            raise ValueError(f"{label} would freeze fresh weights: name a checkpoint, such as torchvision:{label}")
        return Entrant(label, name, "ResNet", False, "full", None, batch_norm=True)
    if (timm := split_timm(name)) is not None:
        return _find_timm(label, name, *timm, policy)
    base = split_changes(name, ViTConfig)[0]
    if not freezes and (base in VARIANTS or re.fullmatch(r"(Ti|S|B|L|H|g|G)/\d+", base)):
        return Entrant(label, name, "ViT", False, "full", variant(name).size[0])
    try:
        parse(name)
    except ValueError as error:
        if close := _suggest_models(name):
            hint = f"did you mean {' or '.join(close)}? A timm name needs its tag: {name}.<tag>"
            raise ValueError(f"no model is known by the name {name!r}: {hint}") from error
        raise
    try:
        model = load(name)
    except OSError as error:
        parsed = parse(name)
        if parsed.kind != "torchvision" or resnet_config(parsed.target) is None:
            raise
        note = f"its pre-trained weights are not available, so it begins from scratch: {error}"
        say(f"{label}: {note}")
        return Entrant(label, parsed.target, "ResNet", False, "full", None, (note,), batch_norm=True)
    if isinstance(config := model.config, ViTConfig):
        return Entrant(label, name, "ViT", True, policy or "attention", config.size[0])
    if isinstance(model, TimmClassifier):  # the folder of a run
        size = model.config.size[0] if model.fixed_size else None
        return Entrant(label, name, "timm", True, policy or "full", size, batch_norm=model.has_batch_norm())
    return Entrant(label, name, "ResNet", True, policy or "full", None, batch_norm=True)


def _check_policy(label: str) -> None:
    """Raise if the name of a study's entrant ends in a misspelled policy; a Hub revision or a file is none."""
    _, at, word = label.rpartition("@")
    close = difflib.get_close_matches(word.partition(":")[0], POLICIES, n=1)
    if at and close and not os.path.exists(os.path.expanduser(label)) and not os.path.exists(os.path.expanduser(word)):
        raise ValueError(f"{label}: no policy is called {word!r}: did you mean {close[0].replace('last', 'last:N')}?")


def _suggest_models(name: str) -> list[str]:
    """Suggest names that a study's entrant may have, from scratch or with weights, for a misspelled one."""
    base = name.partition(":")[0]
    resnets = [f"resnet{depth}{stem}" for stem in ("", "_small") for depth in DEPTHS]
    known = dict.fromkeys([*VARIANTS, *resnets, *DEFAULT_TAGS, *TORCHVISION_MODELS, *PACKAGED])
    if base in known or unsupported_family(base) is not None:
        return []
    return difflib.get_close_matches(base, known, n=3)


def _find_timm(label: str, name: str, architecture: str, weights: str, policy: str | None) -> Entrant:
    """Find out what a study has to know of an entrant that is a classifier of timm's, which is built for that."""
    if policy not in (None, "full", "head"):
        raise ValueError(f"{label}: a timm classifier takes full or head, not {policy}")
    if policy == "head" and not weights:
        raise ValueError(f"{label} would freeze fresh weights: name a file, timm:{architecture}@FILE@head")
    model: Any = load(name) if weights else TimmClassifier(TimmConfig(architecture))
    size = model.config.size[0] if model.fixed_size else None
    return Entrant(label, name, "timm", bool(weights), policy or "full", size, batch_norm=model.has_batch_norm())


def split_policy(label: str) -> tuple[str, str | None]:
    """Split the policy off the name of a study's entrant, after the last @; another word there is a Hub revision.

    >>> split_policy("B/16@last:2"), split_policy("google/vit-base-patch16-224@main")
    (('B/16', 'last:2'), ('google/vit-base-patch16-224@main', None))
    """
    name, at, policy = label.rpartition("@")
    return (name, policy) if at and policy.partition(":")[0] in POLICIES else (label, None)


def display_names(labels: Sequence[str]) -> dict[str, str]:
    """Shorten the names of a study's entrants to the last parts of their paths, as few as keep them different.

    Local paths are not written to files that may be shared.

    >>> display_names(["resnet18", "/home/me/weights/vit_tiny"])
    {'resnet18': 'resnet18', '/home/me/weights/vit_tiny': 'vit_tiny'}
    >>> list(display_names(["/home/me/one/model", "/home/me/other/model"]).values())
    ['one/model', 'other/model']
    """
    for parts in range(2 + max(label.count("/") + label.count("\\") for label in labels)):
        names = {label: short_model(label, parts) for label in labels}
        if len({slug(name) for name in names.values()}) == len(labels):
            break
    return names


def short_model(label: str, parts: int = 1) -> str:
    """Shorten the name of a study's entrant to the last parts of its path; of timm's weights, perhaps none.

    >>> short_model("timm:resnet18@/home/me/mine.safetensors@head")
    'timm:resnet18@mine.safetensors@head'
    >>> short_model("timm:resnet18@/home/me/mine.safetensors@head", 0), short_model("/home/me/vit", 0)
    ('timm:resnet18@head', 'vit')
    """
    name, policy = split_policy(label)
    timm, end = split_timm(name), f"@{policy}" * (policy is not None)
    if timm and timm[1]:
        return f"timm:{timm[0]}" + f"@{_last_parts(timm[1], parts)}" * (parts > 0) + end
    return f"{_last_parts(name, max(parts, 1))}{end}"


def _last_parts(path: str, count: int) -> str:
    """Return the last parts of a path to a study's entrant."""
    return "/".join(path.rstrip("/\\").replace("\\", "/").split("/")[-count:]) or path


def slug(name: str) -> str:
    """Write the name of a study's entrant as a folder's name.

    >>> slug("torchvision:vit_b_16@attention")
    'torchvision-vit_b_16-attention'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")


def choose_recipe(
    budget: Budget, entrants: Sequence[Entrant], learned: ImageDataset | None = None
) -> tuple[str, TrainConfig]:
    """Choose the recipe that all entrants share: the one asked for, or the usual one for these entrants and the data.

    `learned` are the training images, if they matter: those of another task than classify, and those that a checkpoint
    is fine-tuned on. Without a recipe, the defaults of `finetune` or `train` suit so many images of their size; with
    one, it is used without what would falsify their targets.
    """
    if budget.recipe is not None:
        if budget.recipe not in RECIPES:
            raise ValueError(f"no recipe is called {budget.recipe!r}: the recipes are {', '.join(RECIPES)}")
        config = RECIPES[budget.recipe].config
        return budget.recipe, config if learned is None or config.task == learned.task else for_task(
            config, learned.task
        )
    if any(entrant.pretrained for entrant in entrants):
        if learned is None:
            return "finetune", FINETUNE
        usual = finetune_config(images=len(learned), task=learned.task)
        if learned.task == "classify":  # targets are smoothed alike, however few images there are
            usual = replace(FINETUNE, batch_size=usual.batch_size, epochs=usual.epochs, warmup=usual.warmup)
        return "finetune", usual
    if learned is not None:
        width, height, colour = typical_image(learned)
        return "train", scratch_config(len(learned), width, height, colour=colour, task=learned.task)
    if budget.data in ("digits", "mnist", "cifar10", "cifar100", "imagenet"):
        return budget.data, RECIPES[budget.data].config
    name = "cifar10" if shared_size(budget, entrants) <= SMALL else "imagenet"
    return name, RECIPES[name].config


def shared_size(budget: Budget, entrants: Sequence[Entrant]) -> int:
    """Choose the image size of a study's entrants that take any: the one asked for, the first ViT's, or a ResNet's.

    >>> shared_size(Budget("images"), [find_entrant("resnet14_small:width=9"), find_entrant("resnet18_small")])
    32
    """
    sizes = [entrant.image_size for entrant in entrants if entrant.image_size is not None]
    resnets = (resnet_config(entrant.model) or ResNetConfig() for entrant in entrants)
    return budget.image_size or (sizes[0] if sizes else max(config.size[0] for config in resnets))


def configure(budget: Budget, entrants: Sequence[Entrant], learned: ImageDataset | None = None) -> list[TrainConfig]:
    """Give each entrant of a study its config, for seed 0; with a budget of minutes, the epochs are still the recipe's.

    `learned` are the training images, as for `choose_recipe`; a model that cannot learn their task raises.

    >>> entrants = [find_entrant("vit_pico_patch2_8"), find_entrant("resnet18_small")]
    >>> vit, resnet = configure(Budget("digits"), entrants)
    >>> (vit.optimizer, resnet.optimizer), (vit.mixup, resnet.mixup), (vit.image_size, resnet.image_size)
    (('muon', 'sgd'), (0.4, 0.4), (8, 8))
    """
    if budget.learning_rates and len(budget.learning_rates) != len(entrants):
        given = len(budget.learning_rates)
        raise ValueError(f"--learning-rates takes one for each of the {len(entrants)} models, got {given}")
    task: Any = budget.task or ("auto" if learned is None else learned.task)
    if task == "segment" and (unfit := [entrant.label for entrant in entrants if entrant.kind != "ViT"]):
        raise ValueError(f"{unfit[0]} is no ViT, and masks are read from the patch tokens of a ViT: compare ViTs")
    _, recipe = choose_recipe(budget, entrants, learned)
    common = replace(
        with_epochs(recipe, budget.epochs or recipe.epochs),
        data=budget.data,
        task=task,
        train_split=budget.train_split or recipe.train_split,
        batch_size=budget.batch_size or recipe.batch_size,
        precision=budget.precision or recipe.precision,
        compile=recipe.compile if budget.compile is None else budget.compile == "yes",
        statistics=None,
        image_size=budget.image_size,
        snapshots=12,
        seed=0,
    )
    if any(entrant.pretrained for entrant in entrants):
        common = replace(common, channels=None)  # colour for all: pre-trained models take nothing else
    rates = budget.learning_rates or (None,) * len(entrants)
    size = shared_size(budget, entrants)
    return [_configure(common, entrant, size, rate) for entrant, rate in zip(entrants, rates, strict=True)]


def _configure(common: TrainConfig, entrant: Entrant, size: int, rate: float | None) -> TrainConfig:
    """Change the shared config of a study for one entrant: size, batch, learning rate, weights."""
    own: dict[str, Any] = {"model": entrant.model, "pretrained": entrant.pretrained, "policy": entrant.policy}
    batch = 256 if common.batch_size == "auto" else common.batch_size
    if entrant.batch_norm:
        usual, decay = (RESNET_TUNING_RATE, RESNET_TUNING_DECAY) if entrant.pretrained else (RESNET_RATE, RESNET_DECAY)
        own |= RESNET | {"learning_rate": usual * batch / 256, "weight_decay": decay}
        if entrant.policy == "head":  # a new head on frozen features is the same task for every model
            own |= {"optimizer": "adamw", "clip": common.clip, "weight_decay": common.weight_decay}
            own |= {"learning_rate": POLICY_RATES["head"]}
        own |= {} if entrant.pretrained else {"image_size": common.image_size or entrant.image_size or size}
    elif entrant.pretrained:
        own |= {"optimizer": "adamw", "learning_rate": POLICY_RATES[entrant.policy.partition(":")[0]]}
        own |= TIMM if entrant.kind == "timm" else {}
    elif entrant.kind == "timm":
        own |= TIMM | SCRATCH | {"image_size": common.image_size or entrant.image_size or size}
    else:
        own |= {"image_size": common.image_size or entrant.image_size}  # written out, so that `differing` compares it
        own |= SCRATCH if common.pretrained else {}
    if rate is not None:
        own["learning_rate"] = rate
    return replace(common, **own)


def differing(configs: Sequence[TrainConfig]) -> list[tuple[str, list[Any]]]:
    """List the fields in which the entrants' configs differ, with each entrant's value.

    >>> differing([TrainConfig(epochs=1), TrainConfig(epochs=2)])
    [('epochs', [1, 2])]
    """
    names = [field.name for field in fields(TrainConfig) if field.name not in NEUTRAL | {"model", "seed"}]
    values = [(name, [getattr(config, name) for config in configs]) for name in names]
    return [(name, each) for name, each in values if any(value != each[0] for value in each)]
