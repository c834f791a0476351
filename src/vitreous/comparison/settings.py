"""A study's models to their configs: the same images, augmentation, batch and budget; an optimiser that suits each.

What all have in common comes from one recipe. What differs by the model's kind is decided here, and only here:
`differing` finds it again for the page, field by field.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from vitreous.comparison.entrant import Entrant
from vitreous.training.config import NEUTRAL, TrainConfig
from vitreous.training.recipes import FINETUNE, POLICY_RATES, RECIPES

SMALL = 64
"""Pixels up to which the recipe for small images is taken, where none was named."""
RESNET: dict[str, Any] = {
    # the optimiser of He et al. (2016); its rate is for 256 images and grows with the batch (Goyal et al., 2017)
    "optimizer": "sgd",
    "clip": 0.0,
    "average": 0.0,  # batch norm's statistics would not be those of the averaged weights
    "layer_decay": 1.0,
    "dropout": 0.0,  # a ResNet has neither this
    "stochastic_depth": 0.0,  # nor this
}
RESNET_RATE, RESNET_DECAY = 0.1, 5e-4
RESNET_TUNING_RATE, RESNET_TUNING_DECAY = 0.04, 1e-4
SCRATCH: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05}
"""For a ViT from scratch beside models that are fine-tuned."""


@dataclass(frozen=True)
class Budget:
    """What was asked for beside the models: equal for all of them."""

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
    """One for each model, in their order; none: what suits the kind."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise ValueError("the budget is --epochs or --minutes, not both: leave one out")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"--minutes must be above 0, got {self.minutes:g}")


def choose_recipe(budget: Budget, entrants: Sequence[Entrant]) -> tuple[str, TrainConfig]:
    """The recipe that all have in common, with its name: the one asked for, or what suits data and models."""
    if budget.recipe is not None:
        if budget.recipe not in RECIPES:
            raise ValueError(f"no recipe is called {budget.recipe!r}: the recipes are {', '.join(RECIPES)}")
        return budget.recipe, RECIPES[budget.recipe].config
    if any(entrant.pretrained for entrant in entrants):
        return "finetune", FINETUNE
    if budget.data in ("digits", "mnist", "cifar10", "cifar100", "imagenet"):
        return budget.data, RECIPES[budget.data].config
    small = shared_size(budget, entrants) <= SMALL
    return ("cifar10", RECIPES["cifar10"].config) if small else ("imagenet", RECIPES["imagenet"].config)


def shared_size(budget: Budget, entrants: Sequence[Entrant]) -> int:
    """The size of image for models that take any: the one asked for, the first ViT's, or 32 for small ResNets."""
    sizes = [entrant.image_size for entrant in entrants if entrant.image_size is not None]
    small = all(entrant.model.endswith("_small") for entrant in entrants)
    return budget.image_size or (sizes[0] if sizes else 32 if small else 224)


def configure(budget: Budget, entrants: Sequence[Entrant]) -> list[TrainConfig]:
    """A config for each model, of seed 0; with a budget of minutes the epochs are still the recipe's.

    >>> from vitreous.comparison.entrant import enter
    >>> vit, resnet = configure(Budget("digits"), [enter("vit_pico_patch2_8"), enter("resnet18_small")])
    >>> (vit.optimizer, resnet.optimizer), (vit.mixup, resnet.mixup), (vit.image_size, resnet.image_size)
    (('muon', 'sgd'), (0.4, 0.4), (8, 8))
    """
    if budget.learning_rates and len(budget.learning_rates) != len(entrants):
        given = len(budget.learning_rates)
        raise ValueError(f"--learning-rates takes one for each of the {len(entrants)} models, got {given}")
    _, recipe = choose_recipe(budget, entrants)
    common = replace(
        with_epochs(recipe, budget.epochs or recipe.epochs),
        data=budget.data,
        train_split=budget.train_split or recipe.train_split,
        batch_size=budget.batch_size or recipe.batch_size,
        precision=budget.precision or recipe.precision,
        compile=recipe.compile if budget.compile is None else budget.compile == "yes",
        statistics=None,
        image_size=budget.image_size,
        snapshots=12,
        seed=0,
    )
    if any(entrant.kind == "ResNet" or entrant.pretrained for entrant in entrants):
        common = replace(common, channels=None)  # colour for all: a ResNet takes nothing else
    rates = budget.learning_rates or (None,) * len(entrants)
    size = shared_size(budget, entrants)
    return [_configure(common, entrant, size, rate) for entrant, rate in zip(entrants, rates, strict=True)]


def with_epochs(config: TrainConfig, epochs: int) -> TrainConfig:
    """The same for another number of epochs, its warm-up as long a share of them, with about fifty looks.

    >>> with_epochs(TrainConfig(epochs=40, warmup=4), 20).warmup
    2.0
    """
    warmup = round(config.warmup * epochs / config.epochs, 4)
    return replace(config, epochs=epochs, warmup=warmup, evaluate_every=max(1, epochs // 50))


def _configure(common: TrainConfig, entrant: Entrant, size: int, rate: float | None) -> TrainConfig:
    own: dict[str, Any] = {"model": entrant.model, "pretrained": entrant.pretrained, "policy": entrant.policy}
    batch = 256 if common.batch_size == "auto" else common.batch_size
    if entrant.kind == "ResNet":
        usual, decay = (RESNET_TUNING_RATE, RESNET_TUNING_DECAY) if entrant.pretrained else (RESNET_RATE, RESNET_DECAY)
        own |= RESNET | {"learning_rate": usual * batch / 256, "weight_decay": decay}
        own |= {} if entrant.pretrained else {"image_size": size}
    elif entrant.pretrained:
        own |= {"optimizer": "adamw", "learning_rate": POLICY_RATES[entrant.policy.partition(":")[0]]}
    else:
        own |= {"image_size": common.image_size or entrant.image_size}  # said, so that it can be compared
        own |= SCRATCH if common.pretrained else {}
    if rate is not None:
        own["learning_rate"] = rate
    return replace(common, **own)


def differing(configs: Sequence[TrainConfig]) -> list[tuple[str, list[Any]]]:
    """The fields in which not all configs agree, with each one's value, in the order of `TrainConfig`.

    >>> differing([TrainConfig(epochs=1), TrainConfig(epochs=2)])
    [('epochs', [1, 2])]
    """
    names = [field.name for field in fields(TrainConfig) if field.name not in NEUTRAL | {"model", "seed"}]
    values = [(name, [getattr(config, name) for config in configs]) for name in names]
    return [(name, each) for name, each in values if any(value != each[0] for value in each)]
