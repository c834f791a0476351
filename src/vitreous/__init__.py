"""Vision Transformers you can see through.

The public names are imported when they are first used: `import vitreous` is instant and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {  # public name → its module
    "load": "vitreous.weights.load",
    "classify": "vitreous.predict.classify",
    "explain": "vitreous.api.explain",
    "explore": "vitreous.api.explore",
    "find_concepts": "vitreous.api.concepts",
    "embed": "vitreous.predict.embed",
    "embed_text": "vitreous.predict.words",
    "similarity": "vitreous.predict.words",
    "evaluate": "vitreous.predict.evaluate",
    "train": "vitreous.api.train",
    "finetune": "vitreous.api.train",
    "compare": "vitreous.api.compare",
    "benchmark": "vitreous.api.benchmark",
    "convert": "vitreous.weights.convert",
    "export": "vitreous.speed.export",
    "push": "vitreous.weights.push",
    "inspect": "vitreous.weights.inspect",
    "optimize": "vitreous.speed.optimize",
    "capture": "vitreous.inside.capture",
    "intervene": "vitreous.inside.intervene",
    "save": "vitreous.weights.save",
    "open_dataset": "vitreous.data.datasets",
    "open_split": "vitreous.data.splits",
    "read_image": "vitreous.data.images",
    "samples": "vitreous.data.sample_photos",
    "Preprocess": "vitreous.data.preprocess",
    "TokenLayout": "vitreous.models.token_layout",
    "ViT": "vitreous.models.vit",
    "ViTConfig": "vitreous.models.vit_config",
    "ResNet": "vitreous.models.resnet",
    "VARIANTS": "vitreous.models.variants",
    "variant": "vitreous.models.variants",
    "TrainConfig": "vitreous.training.config",
    "RECIPES": "vitreous.training.recipes",
}
__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:  # so that editors and type checkers see what the lazy import gives
    from vitreous.api.benchmark import benchmark
    from vitreous.api.compare import compare
    from vitreous.api.concepts import find_concepts
    from vitreous.api.explain import explain
    from vitreous.api.explore import explore
    from vitreous.api.train import finetune, train
    from vitreous.data.datasets import open_dataset
    from vitreous.data.images import read_image
    from vitreous.data.preprocess import Preprocess
    from vitreous.data.sample_photos import samples
    from vitreous.data.splits import open_split
    from vitreous.inside.capture import capture
    from vitreous.inside.intervene import intervene
    from vitreous.models.resnet import ResNet
    from vitreous.models.token_layout import TokenLayout
    from vitreous.models.variants import VARIANTS, variant
    from vitreous.models.vit import ViT
    from vitreous.models.vit_config import ViTConfig
    from vitreous.predict.classify import classify
    from vitreous.predict.embed import embed
    from vitreous.predict.evaluate import evaluate
    from vitreous.predict.words import embed_text, similarity
    from vitreous.speed.export import export
    from vitreous.speed.optimize import optimize
    from vitreous.training.config import TrainConfig
    from vitreous.training.recipes import RECIPES
    from vitreous.weights.convert import convert
    from vitreous.weights.inspect import inspect
    from vitreous.weights.load import load
    from vitreous.weights.push import push
    from vitreous.weights.save import save


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"vitreous has no {name!r}: its names are {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
