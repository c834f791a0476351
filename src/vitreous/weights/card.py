"""`Card` and `LoadReport`: what a model knows besides its weights: origin, preprocessing, class names, assumptions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

import torch

from vitreous.data.image_dataset import NOUNS
from vitreous.data.preprocess import Preprocess, default_preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet
    from vitreous.models.timm_classifier import TimmClassifier

Rows = list[tuple[str, str]]  # pairs of label and text, in reading order


def rows_to_text(rows: Rows, width: int = 16) -> str:
    """Lay the rows of a `Card` or `LoadReport` out as lines: pairs of label and text.

    >>> print(rows_to_text([("family", "ViT"), ("", "no label")]))
      family          ViT
      no label
    """
    width = max([width, *(len(label) + 2 for label, _ in rows)])
    return "\n".join(f"  {label:<{width}}{text}" if label else f"  {text}" for label, text in rows)


def rows_to_html(title: str, rows: Rows) -> str:
    """Lay pairs of label and text of a card out as an HTML table."""
    cells = (f"<tr><th style='text-align:left'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table><caption>{escape(title)}</caption>{''.join(cells)}</table>"


def shorten(names: Sequence[str], limit: int = 6, rest: str = "") -> list[str]:
    """Shorten a list in the rows of a `Card`: the first names, and how many more, or what stands for the `rest`.

    >>> shorten(["a", "b", "c"], limit=2)
    ['a', 'b', '… and 1 more']
    """
    return list(names) if len(names) <= limit else [*names[:limit], rest or f"… and {len(names) - limit} more"]


SAID = " (as you said)"
"""How the report marks what the user assumed."""
HEADS = ("classifier", "projection", "none")
"""What a model's outputs are: logits of classes, CLIP's embedding, or pooled features."""


@dataclass(repr=False)
class LoadReport:
    """What loading did to a checkpoint; `vitreous doctor` prints it.

    >>> LoadReport(format="timm", tensors=152, stored_as="float32", assumed={"heads": "3 (as vit_tiny has)"})
    LoadReport
      format          timm
      tensors         152, stored as float32
      assumed         heads = 3 (as vit_tiny has)
    """

    format: str = ""  # the format that the keys were recognised as
    tensors: int = 0  # the number of tensors in the model
    stored_as: str = ""  # the data types in the file, such as `float32`
    wrappers: tuple[str, ...] = ()  # containers and prefixes around the weights, such as `state_dict` or `module.`
    assumed: dict[str, str] = field(default_factory=dict)
    """What neither the keys nor a config file state: field → the value assumed, and the reason."""
    resized: list[str] = field(default_factory=list)
    reinitialised: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # known keys that the model does not need
    left_out: list[str] = field(default_factory=list)  # of `ignored`, parts beside the model that may belong to it
    nonfinite: dict[str, int] = field(default_factory=dict)  # tensors that hold NaN or infinity, and how many values
    unfinished: str = ""  # of a run that goes on: which epoch the weights are from
    registers: str = ""  # test-time registers that were added, or why there are none, if they were asked for

    def remarks(self) -> list[str]:
        """Return what a careful user should read of a card's load report, one line each; empty if files stated all."""
        lines = [self.unfinished] if self.unfinished else []
        lines += [f"assumed {name} = {why}" for name, why in self.assumed.items()]
        averaged = [wrapper for wrapper in self.wrappers if re.search("ema|teacher|average", wrapper)]
        lines += [f"took the averaged weights ({wrapper}) of several in the file" for wrapper in averaged]
        lines += [f"left out {name}, which lies beside the model in the file" for name in self.left_out]
        lines += [f"resized {line}" for line in self.resized]
        lines += [f"re-initialised {key}" for key in self.reinitialised]
        lines += [f"{key} holds {count} NaN or infinite values" for key, count in self.nonfinite.items()]
        return lines + [f"test-time registers: {self.registers}"] * bool(self.registers)

    def flags(self) -> str:
        """Return the `--assume` flags by which the model of a `Card` was loaded, to load it with them again.

        They are what the user assumed, as the load report lists it.

        >>> LoadReport(assumed={"heads": "4 (as you said)", "pool": "token (as vit_tiny has)"}).flags()
        ' --assume heads=4'
        """
        said = {name: why.partition(SAID.removesuffix(")")) for name, why in self.assumed.items()}
        words = [f"{name}={value}" for name, (value, by_user, _) in said.items() if by_user]
        words += [
            f"ignored={key.removesuffix(' (as you said)')}" for key in self.ignored if key.endswith("(as you said)")
        ]
        return "".join(f" --assume {word}" for word in words)

    def rows(self) -> Rows:
        """Return a `Card`'s report as pairs of label and text: format, tensors, what was ignored or resized."""
        return [
            *([("unfinished", self.unfinished)] if self.unfinished else []),
            ("format", self.format),
            ("tensors", f"{self.tensors}, stored as {self.stored_as}"),
            *(("unwrapped", wrapper) for wrapper in self.wrappers),
            *(("ignored", key) for key in shorten(self.ignored)),
            *(("resized", line) for line in self.resized),
            *(("re-initialised", key) for key in self.reinitialised),
            *(("assumed", f"{name} = {why}") for name, why in self.assumed.items()),
            *(("NaN or infinite", f"{key}: {count} values") for key, count in self.nonfinite.items()),
            *([("registers", self.registers)] if self.registers else []),
        ]

    def __repr__(self) -> str:
        return f"LoadReport\n{rows_to_text(self.rows())}"

    def _repr_html_(self) -> str:
        return rows_to_html("LoadReport", self.rows())


@dataclass(repr=False)
class Card:
    """Everything besides the weights that is needed to use a model.

    >>> from vitreous.weights.load import load
    >>> load("packaged:cifar10").card
    Card: packaged:cifar10
      family          ViT
      image size      32×32
      preprocessing   shorter side to 32 (bicubic), centre crop 32×32, mean 0.5 0.5 0.5, std 0.5 0.5 0.5
      classes         10: airplane, automobile, bird, cat, …
      assumed         nothing
    """

    name: str  # as the user asked for it
    preprocess: Preprocess
    class_names: tuple[str, ...] | None = None  # one name for each class, or None if they are unknown
    head: str = "classifier"
    """What the outputs are, one of `HEADS`."""
    task: str = "classify"
    """What the outputs answer, one of `TASKS`: a class, several labels, numbers, or a class for each pixel."""
    thresholds: tuple[float, ...] | None = None
    """For each of several labels the probability from which on it counts as present; None means 0.5."""
    standard: tuple[tuple[float, float], ...] | None = None
    """Mean and standard deviation of each number while they are learned: the outputs are in units of them. A finished
    model's head is folded (`fold_standard`), so that its outputs are in their own units, and this is None."""
    independent: bool = False
    """Whether a class is true or false by itself (several labels, sentences of a SigLIP): probabilities do not sum to
    1."""
    resize: str | None = "timm"
    """The convention by which a ViT's position embeddings are resized, one of `CONVENTIONS`; None: it is not known."""
    origin: str = "memory"
    revision: str | None = None
    files: tuple[str, ...] = ()
    family: str = "ViT"
    report: LoadReport = field(default_factory=LoadReport)
    training: dict[str, Any] | None = None  # how the model was trained and its accuracy, if vitreous trained it

    def __post_init__(self) -> None:
        self.independent = self.independent or self.task == "multilabel"

    def label(self, index: int) -> str:
        """Return a class's name on a card, or `class 3` if names are unknown."""
        return self.class_names[index] if self.class_names else f"class {index}"

    def threshold(self, index: int) -> float:
        """Return from a card the probability from which on one of several labels counts as present."""
        return self.thresholds[index] if self.thresholds else 0.5

    def with_new_head(self, classes: int, task: str = "classify") -> "Card":
        """Return the card of a model whose head was replaced by a new one, whose classes have no names yet."""
        head = "classifier" if classes else "none"
        unknown: dict[str, Any] = dict.fromkeys(("class_names", "thresholds", "standard", "training"))
        return replace(self, head=head, task=task, independent=False, **unknown)

    def to_dict(self) -> dict[str, Any]:
        """Return the card as a dict: the part of it that a saved model's `config.json` stores."""
        return {
            "preprocess": self.preprocess.to_dict(),
            "class_names": list(self.class_names) if self.class_names else None,
            "head": self.head,
            "task": self.task,
            "thresholds": None if self.thresholds is None else list(self.thresholds),
            "standard": None if self.standard is None else [list(pair) for pair in self.standard],
            "resize": self.resize,
            "source": {"name": self.name, "origin": self.origin, "revision": self.revision},
            "training": self.training,
            "assumed": {k: v for k, v in self.report.assumed.items() if k in ("preprocessing", "class names")},
        }

    def rows(self) -> Rows:
        """Return the most useful facts on a model's card as pairs of label and text."""
        rows = [
            ("family", self.family),
            ("image size", "×".join(str(side) for side in self.preprocess.size)),
            ("preprocessing", self.preprocess.describe()),
        ]
        if self.task != "classify":
            rows.append(("task", self.task))
        if self.head != "classifier":
            rows.append(("head", self.head))
        elif self.class_names:
            rows.append((NOUNS[self.task], f"{len(self.class_names)}: {', '.join(shorten(self.class_names, 4, '…'))}"))
        else:
            rows.append((NOUNS[self.task], "without names"))
        if self.thresholds is not None:
            pairs = [f"{self.label(i)} {threshold:.2g}" for i, threshold in enumerate(self.thresholds)]
            rows.append(("thresholds", ", ".join(shorten(pairs, 4, "…"))))
        assumed = [f"{name} = {why}" for name, why in self.report.assumed.items()]
        return rows + [("assumed", line) for line in assumed or ["nothing"]]

    def __repr__(self) -> str:
        return f"Card: {self.name}\n{rows_to_text(self.rows())}"

    def _repr_html_(self) -> str:
        return rows_to_html(f"Card: {self.name}", self.rows())


def card_of(model: "ViT | ResNet | TimmClassifier", name: str = "model") -> Card:
    """Return a model's `Card`; for a ViT made in memory, which has none, one with the usual preprocessing."""
    card: Card | None = model.card
    if card is not None:
        return card
    if not isinstance(model.config, ViTConfig):
        raise ValueError("a ResNet or timm model is saved with its preprocessing: set model.card")
    task = "classify" if model.config.dense == "none" else "segment"
    return Card(name=name, preprocess=default_preprocess(model.config), task=task)


PROBLEM_TYPES = {
    None: "classify",
    "single_label_classification": "classify",
    "multi_label_classification": "multilabel",
    "regression": "regress",
}
"""What transformers' config files call a task."""


@torch.no_grad()
def fold_standard(model: "ViT | ResNet | TimmClassifier") -> None:
    """Take the `standard` off a model's `Card` and into its last layer, so that its outputs are in their own units.

    A model without one does not change.
    """
    if (standard := card_of(model).standard) is None:
        return
    parts: Any = model
    if not isinstance(model, ViT) and not hasattr(model, "fc"):
        raise ValueError("a timm classifier learns classes, not numbers: choose a ViT")
    heads = [model.head, model.head_dist] if isinstance(model, ViT) else [parts.fc]
    for head in (head for head in heads if head is not None):
        weight, bias = head.weight, head.bias
        if not isinstance(weight, torch.Tensor) or not isinstance(bias, torch.Tensor):
            raise ValueError("numbers need a head whose last layer has a bias: give the model a new one")
        mean, std = torch.tensor(standard, dtype=torch.float64).T  # on the CPU: Apple's GPUs have no double precision
        bias.copy_(bias.cpu().double() * std + mean)
        weight.copy_(weight.cpu().double() * std[:, None])
    model.card.standard = None
