"""`View`: how a view is computed, what it needs, and the texts that stand with it, whoever draws it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vitreous.figures.kinds import Result, Results
from vitreous.inside.text_similarity import why_no_text_similarity
from vitreous.models.vit import ViT
from vitreous.views.inspection import Inspection

Group = Literal["Why", "Where", "Inside", "Model"]
GROUPS: dict[Group, str] = {
    "Why": "evidence for a class",
    "Where": "who attends to what",
    "Inside": "blocks, heads, tokens",
    "Model": "architecture, input, trust",
}
"""The page's tabs, and what each holds."""
ONE_CLASS = "the model gives one class, which predictions shows"
NO_CHOICE = "the model gives labels or numbers, which outputs shows"
Need = Literal["image", "vit", "classes", "choice", "positions", "sentences", "task"]


@dataclass(frozen=True)
class View:
    """One way to look at a model: `vitreous views` lists them all."""

    title: str
    read: str
    """How to read it, in a sentence or two that fit both drawings."""
    beware: str
    """What it does not show."""
    compute: Callable[[Inspection], Result | Results]
    """A result of one of the kinds in `figures/kinds.py`, or several by name."""
    group: Group = "Inside"
    """The page's tab that shows it."""
    needs: frozenset[Need] = frozenset({"image", "vit"})
    """What there must be: an `image`, a `vit` (not a ResNet), `classes` (a classifier), a `choice` among classes, learned
    `positions`, `sentences` as classes with which patches can be compared, another `task` than to choose one class."""
    slow: bool = False
    """Whether it takes many forward passes, and so has to be asked for by name."""
    more: bool = False
    """Whether the page shows it behind “More” in its tab."""

    def missing(self, inspection: Inspection) -> str | None:
        """Return why a `View` cannot be computed of an inspection, or None."""
        if "vit" in self.needs and not isinstance(inspection.model, ViT):
            return "a ResNet has no tokens"
        if "image" in self.needs and inspection.image is None:
            return "it needs an image"
        if "classes" in self.needs and inspection.model.card.head != "classifier":
            return "the model has no classifier"
        if "choice" in self.needs and inspection.asked.card.task in ("multilabel", "regress"):
            return NO_CHOICE
        if "positions" in self.needs and getattr(inspection.model.config, "position", "none") == "none":
            return "the model has no position embeddings"
        if "task" in self.needs and inspection.asked.card.task == "classify":
            return ONE_CLASS
        if "sentences" in self.needs:
            return why_no_text_similarity(inspection.vit)
        return None

    def results(self, inspection: Inspection) -> dict[str, Result]:
        """Compute a `View`: its results by name; one alone has the name ''."""
        found = self.compute(inspection)
        return dict(found) if isinstance(found, dict) else {"": found}  # type: ignore[dict-item]


ANY: frozenset[Need] = frozenset()
VIT: frozenset[Need] = frozenset({"vit"})
VIT_CLASSES: frozenset[Need] = frozenset({"image", "vit", "classes"})
IMAGE_CLASSES: frozenset[Need] = frozenset({"image", "classes"})
