"""An entrant: one model of a study, how it begins, and what learns in it.

`MODEL` or `MODEL@POLICY`: `vit_micro_patch4_32`, `resnet18_small`, `torchvision:vit_b_16@attention`. A variant's name,
and `resnet18` to `resnet152_small`, begin from scratch; anything else is a checkpoint for `load`, and is fine-tuned.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from vitreous.models.resnet import resnet_config
from vitreous.models.variants import VARIANTS, variant
from vitreous.models.vit import ViTConfig
from vitreous.training.policies import POLICIES
from vitreous.weights.load import load
from vitreous.weights.names import parse

Kind = Literal["ViT", "ResNet"]


@dataclass(frozen=True)
class Entrant:
    """One model of a study, before anything is known of the training."""

    label: str
    """As it was asked for: the name in every table."""
    model: str
    """What `TrainConfig.model` gets."""
    kind: Kind
    pretrained: bool
    policy: str
    image_size: int | None
    """The size that the model was made for; None where it takes any."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What a reader of the table must know."""

    @property
    def start(self) -> str:
        """How it begins, in words.

        >>> enter("resnet18_small").start
        'from scratch'
        """
        return f"fine-tuned ({self.policy})" if self.pretrained else "from scratch"

    @property
    def slug(self) -> str:
        """The label as a folder's name."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.label).strip("-.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, described: dict[str, Any]) -> Self:
        return cls(**{**described, "notes": tuple(described["notes"])})


def enter(asked: str, say: Callable[[str], object] = lambda line: None) -> Entrant:
    """What a word of the command line means; a checkpoint is opened to see what it is.

    A variant's name with a policy that freezes something is the checkpoint of that name. A ResNet of torchvision whose
    weights cannot be had enters from scratch, and says so.

    >>> enter("vit_pico_patch2_8").start, enter("packaged@head").start
    ('from scratch', 'fine-tuned (head)')
    """
    name, policy = split_policy(asked)
    freezes = policy not in (None, "full")  # from scratch everything learns, else what is frozen would be noise
    if resnet_config(name) is not None:
        if freezes:
            raise ValueError(f"{asked} would freeze fresh weights: name a checkpoint, such as torchvision:{asked}")
        return Entrant(asked, name, "ResNet", False, "full", None)
    if not freezes and (name in VARIANTS or re.fullmatch(r"(Ti|S|B|L|H|g|G)/\d+", name)):
        return Entrant(asked, name, "ViT", False, "full", variant(name).size[0])
    try:
        model = load(name)
    except OSError as error:
        parsed = parse(name)
        if parsed.kind != "torchvision" or resnet_config(parsed.target) is None:
            raise
        note = f"its pre-trained weights are not at hand, so it begins from scratch: {error}"
        say(f"{asked}: {note}")
        return Entrant(asked, parsed.target, "ResNet", False, "full", None, (note,))
    if isinstance(shape := model.config, ViTConfig):
        return Entrant(asked, name, "ViT", True, policy or "attention", shape.size[0])
    return Entrant(asked, name, "ResNet", True, policy or "full", None)


def split_policy(asked: str) -> tuple[str, str | None]:
    """A model's name and the policy after its last @; a word there that is no policy is a revision of the Hub.

    >>> split_policy("B/16@last:2"), split_policy("google/vit-base-patch16-224@main")
    (('B/16', 'last:2'), ('google/vit-base-patch16-224@main', None))
    """
    name, at, policy = asked.rpartition("@")
    return (name, policy) if at and policy.partition(":")[0] in POLICIES else (asked, None)
