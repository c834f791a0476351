"""`Card` and `LoadReport`: what a model knows besides its weights: origin, preprocessing, class names, assumptions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from vitreous.data.preprocess import Preprocess, default_preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet

Rows = list[tuple[str, str]]  # pairs of label and text, in reading order


def rows_to_text(rows: Rows, width: int = 16) -> str:
    """Lay pairs of label and text of a card out as lines.

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


def shorten(names: Sequence[str], limit: int = 6) -> list[str]:
    """Shorten a load report's list of tensor names: the first ones, and how many more there are.

    >>> shorten(["a", "b", "c"], limit=2)
    ['a', 'b', '… and 1 more']
    """
    return list(names) if len(names) <= limit else [*names[:limit], f"… and {len(names) - limit} more"]


SAID = " (as you said)"
"""How the report marks what the user assumed."""


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
    nonfinite: dict[str, int] = field(default_factory=dict)  # tensors that hold NaN or infinity, and how many values
    registers: str = ""  # test-time registers that were added, or why there are none, if they were asked for

    def remarks(self) -> list[str]:
        """Return what a careful user should read, one line each; empty if the files stated everything."""
        lines = [f"assumed {name} = {why}" for name, why in self.assumed.items()]
        averaged = [wrapper for wrapper in self.wrappers if re.search("ema|teacher|average", wrapper)]
        lines += [f"took the averaged weights ({wrapper}) of several in the file" for wrapper in averaged]
        lines += [f"resized {line}" for line in self.resized]
        lines += [f"re-initialised {key}" for key in self.reinitialised]
        lines += [f"{key} holds {count} NaN or infinite values" for key, count in self.nonfinite.items()]
        return lines + [f"test-time registers: {self.registers}"] * bool(self.registers)

    def flags(self) -> str:
        """Write what the user assumed as flags of the command line, with which the model loads again.

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
        """Return the whole report as pairs of label and text."""
        return [
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
    """What the outputs are: `classifier`, `projection` (CLIP's embedding) or `none` (pooled features)."""
    independent: bool = False
    """Whether a class is true or false by itself (sentences of a SigLIP): probabilities do not sum to 1."""
    origin: str = "memory"
    revision: str | None = None
    files: tuple[str, ...] = ()
    family: str = "ViT"
    report: LoadReport = field(default_factory=LoadReport)
    training: dict[str, Any] | None = None  # how the model was trained and its accuracy, if vitreous trained it

    def label(self, index: int) -> str:
        """Return a class's name, or `class 3` if names are unknown."""
        return self.class_names[index] if self.class_names else f"class {index}"

    def to_dict(self) -> dict[str, Any]:
        """Return what our own `config.json` stores of the card."""
        return {
            "preprocess": self.preprocess.to_dict(),
            "class_names": list(self.class_names) if self.class_names else None,
            "head": self.head,
            "source": {"name": self.name, "origin": self.origin, "revision": self.revision},
            "training": self.training,
            "assumed": {k: v for k, v in self.report.assumed.items() if k in ("preprocessing", "class names")},
        }

    def rows(self) -> Rows:
        """Return a model's most useful facts as pairs of label and text."""
        rows = [
            ("family", self.family),
            ("image size", "×".join(str(side) for side in self.preprocess.size)),
            ("preprocessing", self.preprocess.describe()),
        ]
        if self.head != "classifier":
            rows.append(("head", self.head))
        elif self.class_names:
            shown = ", ".join(self.class_names[:4]) + (", …" if len(self.class_names) > 4 else "")
            rows.append(("classes", f"{len(self.class_names)}: {shown}"))
        else:
            rows.append(("classes", "without names"))
        assumed = [f"{name} = {why}" for name, why in self.report.assumed.items()]
        return rows + [("assumed", line) for line in assumed or ["nothing"]]

    def __repr__(self) -> str:
        return f"Card: {self.name}\n{rows_to_text(self.rows())}"

    def _repr_html_(self) -> str:
        return rows_to_html(f"Card: {self.name}", self.rows())


def card_of(model: "ViT | ResNet", name: str = "model") -> Card:
    """Return the model's card; for a ViT made in memory, one with the usual preprocessing."""
    card: Card | None = model.card
    if card is not None:
        return card
    if not isinstance(model.config, ViTConfig):
        raise ValueError("a ResNet is saved with its preprocessing: set model.card")
    return Card(name=name, preprocess=default_preprocess(model.config))
