"""`TimmClassifier`: any classifier of timm with the interface of `ViT`, to stand beside one in a study.

timm is an optional dependency, and nothing of it is imported before a model of it is built. What a ViT shows of its
inside is not known of other networks: they are trained, compared, evaluated, and classify; views are not drawn of them.
"""

import difflib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.vit import check_batch

PREFIX = "timm:"
"""What the name of a model of timm's begins with: `timm:NAME`, or `timm:NAME@WEIGHTS`."""


@dataclass(frozen=True)
class TimmConfig:
    """The shape of a classifier that timm builds."""

    timm: str
    """timm's name of the architecture."""
    classes: int = 1000
    """Outputs of the head."""
    image_size: int | tuple[int, int] | None = None
    """Height and width of images; None: those of timm's own configuration."""
    channels: int = 3
    """Colour channels of an image."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image; a `TimmClassifier`'s config states them."""
        assert self.image_size is not None
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size


class TimmClassifier(nn.Module):
    """A classifier of timm: images `[b c H W]` → logits `[b classes]`. Its `network` is timm's own module."""

    card: Any = None

    def __init__(self, config: TimmConfig) -> None:
        super().__init__()
        timm = import_timm()
        if not timm.is_model(config.timm.partition(".")[0]):
            close = difflib.get_close_matches(config.timm, timm.list_models(), n=2)
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"timm {timm.__version__} has no model called {config.timm!r}{hint}")
        settings = timm.models.get_pretrained_cfg(config.timm)
        self.settings: dict[str, Any] = settings.to_dict() if settings is not None else {}
        own = tuple(self.settings.get("input_size", (3, 224, 224))[1:])
        self.fixed_size = bool(self.settings.get("fixed_input_size", False))
        asked = own if config.image_size is None else replace(config).size
        options: dict[str, Any] = {"img_size": asked} if self.fixed_size and asked != own else {}
        try:
            self.network: Any = timm.create_model(
                config.timm, num_classes=config.classes, in_chans=config.channels, **options
            )
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            what = f"images of {asked[0]}×{asked[1]} px, {config.channels} channels and {config.classes} classes"
            raise ValueError(f"timm cannot build {config.timm} for {what}: {' '.join(str(error).split())}") from error
        if not hasattr(self.network, "reset_classifier") or not hasattr(self.network, "forward_head"):
            raise ValueError(f"{config.timm} is no classifier of timm's: it has no head to replace")
        self.config = replace(config, image_size=asked)
        self._drop_nothing()

    def _drop_nothing(self) -> None:
        """Set the dropout and stochastic depth that a timm classifier may have to 0.

        A study's table says that no model has any.
        """
        for module in self.modules():
            for name in ("p",) if isinstance(module, nn.modules.dropout._DropoutNd) else ("drop_prob", "drop_rate"):
                if isinstance(getattr(module, name, None), float | int):
                    setattr(module, name, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        check_batch(x)
        logits: Tensor = self.network(x)
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Compute a timm classifier's pooled features, without the head: `[b c H W]` → `[b d]`."""
        features: Tensor = self.network.forward_head(self.network.forward_features(x), pre_logits=True)
        return features.flatten(1)

    def feature_map(self, x: Tensor) -> Tensor | None:
        """Compute a timm classifier's last feature map `[b d rows columns]`; None for a network that has tokens."""
        found: Tensor = self.network.forward_features(x)
        if found.dim() != 4:
            return None
        return found.permute(0, 3, 1, 2) if getattr(self.network, "output_fmt", "NCHW") == "NHWC" else found

    def read_map(self, features: Tensor) -> Tensor:
        """Compute a timm classifier's logits from what `feature_map` returns: `[b d rows columns]` → `[b classes]`."""
        last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        logits: Tensor = self.network.forward_head(features.permute(0, 2, 3, 1) if last else features)
        return logits

    @torch.no_grad()
    def grid(self) -> tuple[int, int] | None:
        """Return rows and columns of a timm classifier's last feature map; None for a network that has tokens."""
        like, training = next(self.parameters()), self.training
        found = self.eval().feature_map(torch.zeros(1, self.config.channels, *self.config.size).to(like))
        self.train(training)
        return None if found is None else (found.shape[2], found.shape[3])

    def reset_classifier(self, classes: int) -> None:
        """Replace a timm classifier's head by a new one of timm's own kind, drawn anew."""
        like = next(self.parameters())
        self.network.reset_classifier(classes)
        self.network.to(like)
        self.config, self.card = replace(self.config, classes=classes), self.card and self.card.with_new_head(classes)

    def head_names(self) -> list[str]:
        """List the names of the parameters of a timm classifier's head."""
        head = self.network.get_classifier()
        parts = head if isinstance(head, tuple | list) else [head]
        held = {id(parameter) for part in parts for parameter in part.parameters()}
        names = [name for name, parameter in self.named_parameters() if id(parameter) in held]
        if not names:
            raise ValueError(f"the head of {self.config.timm} has no parameters of its own: train it in full")
        return names

    def has_batch_norm(self) -> bool:
        """Return whether a timm classifier has batch norms, as ResNets have."""
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.modules())

    def first_filters(self) -> Tensor | None:
        """Return a timm classifier's weights of the first convolution, `[d c p q]`; None if there is none."""
        convolutions = (module for module in self.modules() if isinstance(module, nn.Conv2d))
        return next((each.weight for each in convolutions if each.in_channels == self.config.channels), None)


def import_timm() -> Any:
    """Import timm, or raise an error that says how to get it."""
    try:
        import timm
    except ImportError as error:
        raise ImportError("timm:NAME needs timm: pip install 'vitreous[timm]'") from error
    return timm


def split_timm(name: str) -> tuple[str, str] | None:
    """Read which timm classifier `timm:NAME@WEIGHTS` is: its architecture and weights; None for any other name.

    >>> split_timm("timm:resnet18@mine.safetensors"), split_timm("timm:resnet18"), split_timm("resnet18")
    (('resnet18', 'mine.safetensors'), ('resnet18', ''), None)
    """
    if not name.startswith(PREFIX):
        return None
    architecture, at, weights = name.removeprefix(PREFIX).partition("@")
    if not architecture or (at and not weights):
        raise ValueError(f"{name!r} is not complete: write timm:NAME, or timm:NAME@FILE for its weights")
    return architecture, weights


def flops_by_torch(model: nn.Module, image: Tensor) -> int:
    """Count the floating-point operations of a timm classifier's forward pass, by torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode  # it imports torch's compiler

    counter, training = FlopCounterMode(display=False), model.training
    with counter, torch.no_grad():
        model.eval()(image)
    model.train(training)
    return int(counter.get_total_flops())
