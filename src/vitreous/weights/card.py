"""What a loaded model knows of itself: where it came from, what was done to load it, and how to feed and read it."""

import re
from dataclasses import dataclass, field
from typing import Any

from vitreous.data.preprocess import Preprocess


@dataclass
class LoadReport:
    """What loading did; `vitreous doctor` prints it."""

    format: str = ""
    """The format that the keys were recognised as."""
    tensors: int = 0
    """How many tensors went into the model."""
    stored_as: str = ""
    """The data types in the file, such as `float32`."""
    wrappers: tuple[str, ...] = ()
    """What had to be peeled off, such as `state_dict` or `module.`."""
    assumed: dict[str, str] = field(default_factory=dict)
    """What neither the keys nor a config file told: field → the value taken, and why."""
    resized: list[str] = field(default_factory=list)
    reinitialised: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Keys that are known and not needed."""
    unexpected: list[str] = field(default_factory=list)
    """Keys that no rule knows."""
    nonfinite: dict[str, int] = field(default_factory=dict)
    """Tensors that hold NaN or infinity, and how many."""

    def remarks(self) -> list[str]:
        """What a careful user should read, one line each; empty when all was told by the files."""
        lines = [f"assumed {name} = {why}" for name, why in self.assumed.items()]
        averaged = [wrapper for wrapper in self.wrappers if re.search("ema|teacher|average", wrapper)]
        lines += [f"took the averaged weights ({wrapper}) of several in the file" for wrapper in averaged]
        lines += [f"resized {line}" for line in self.resized]
        lines += [f"re-initialised {key}" for key in self.reinitialised]
        lines += [f"not used: {key}" for key in self.unexpected]
        lines += [f"{key} holds {count} NaN or infinite values" for key, count in self.nonfinite.items()]
        return lines


@dataclass
class Card:
    """Everything beside the weights that is needed to use them."""

    name: str
    """As the user asked for it."""
    preprocess: Preprocess
    class_names: tuple[str, ...] | None = None
    """One name a class, or None where they are unknown."""
    head: str = "classifier"
    """What the outputs are: `classifier`, `projection` (CLIP's embedding) or `none` (pooled features)."""
    origin: str = "memory"
    revision: str | None = None
    files: tuple[str, ...] = ()
    family: str = "ViT"
    report: LoadReport = field(default_factory=LoadReport)
    training: dict[str, Any] | None = None
    """How it was trained and how good it became, where it was trained here."""

    def label(self, index: int) -> str:
        """A class's name, or its number where names are unknown."""
        return self.class_names[index] if self.class_names else f"class {index}"

    def described(self) -> dict[str, Any]:
        """What goes into our own `config.json`."""
        return {
            "preprocess": self.preprocess.to_dict(),
            "class_names": list(self.class_names) if self.class_names else None,
            "head": self.head,
            "source": {"name": self.name, "origin": self.origin, "revision": self.revision},
            "training": self.training,
            "assumed": {k: v for k, v in self.report.assumed.items() if k in ("preprocessing", "class names")},
        }
