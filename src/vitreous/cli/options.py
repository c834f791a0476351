"""Define the flags that several commands share: the model and how it is loaded, images, device, precision, output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.cli.console import say_doubts

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.weights.load import Model


def optional(metavar: str, *aliases: str) -> Any:
    """Define a shared flag that may be left out: how to write its value, short forms, and no `(default: None)`."""
    return tyro.conf.arg(metavar=metavar, aliases=aliases or None, help_behavior_hint="")


Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Precision = Literal["fp32", "bf16", "fp16", "int8", "fp8"]
Device = Annotated[str, tyro.conf.arg(metavar="DEVICE")]
Text = Annotated[str | None, optional("NAME")]
Number = Annotated[int | None, optional("N")]
Sides = Annotated[tuple[int, int] | int | None, optional("HEIGHT [WIDTH]")]
Assume = tyro.conf.UseAppendAction[Annotated[tuple[str, ...], optional("FIELD=VALUE")]]
Words = Annotated[tuple[str, ...], optional("WORDS …|FILE")]
Template = Annotated[str, tyro.conf.arg(metavar="SENTENCE")]
Folder = Annotated[Path | None, optional("FOLDER")]
OutputFolder = Annotated[Path | None, optional("FOLDER", "-o")]
Images = Annotated[tuple[str, ...], tyro.conf.Positional, optional("IMAGE …")]
MODEL = (
    "A name (`vit_base_patch16_224.augreg2_in21k_ft_in1k`, `google/vit-base-patch16-224`, `torchvision:vit_b_16`, "
    "`ViT-B_16.npz`, …), a file or a folder. Without it, the ViT-Ti/16 inside the package."
)


@dataclass(frozen=True)
class ModelOptions:
    """The flags that name a model, and say what its files do not."""

    model: Annotated[str | None, tyro.conf.arg(help=MODEL), optional("NAME")] = None
    revision: Text = None
    """Branch, tag or commit of a Hub repository."""
    image_size: Sides = None
    """Height and width to run at (or one number); positions are resized as the checkpoint's library does."""
    resize: Text = None
    """Another resizing convention: google, timm, torchvision, huggingface, dinov2 or dinov2-registers."""
    assume: Assume = ()
    """What the files do not say, or say wrongly, such as heads=6 or pool=mean; may be repeated."""
    statistics: Annotated[Literal["half", "imagenet", "clip", "unit"] | None, optional("{half,imagenet,clip,unit}")] = (
        None
    )
    """Normalise images by these statistics instead of the checkpoint's own."""
    fit: Annotated[Literal["crop", "squash", "pad"] | None, optional("{crop,squash,pad}")] = None
    """Crop, squash or pad images of other sides than the model's; by default as it was trained."""

    def load(self, console: Console | None = None) -> Model:
        """Load the model that a command's options name, and print on `console` what makes its answers doubtful."""
        from dataclasses import replace

        from vitreous.data.preprocess import STATISTICS
        from vitreous.weights.assume import parse_assumptions
        from vitreous.weights.load import load

        model = load(
            self.model,
            revision=self.revision,
            image_size=self.image_size,
            resize=self.resize,
            assume=parse_assumptions(self.assume),
        )
        if self.statistics is not None:
            mean, std = STATISTICS[self.statistics]
            if len(mean) != len(model.card.preprocess.mean):
                raise ValueError(
                    f"the statistics {self.statistics!r} are for colour, and this model takes grey images: leave "
                    "--statistics out"
                )
            model.card.preprocess = replace(model.card.preprocess, mean=mean, std=std)
        model.card.preprocess = model.card.preprocess.with_fit(self.fit)
        if console is not None:
            say_doubts(console, model)
        return model


SharedModel = Annotated[ModelOptions, tyro.conf.arg(name="")]  # flags without a prefix


def is_folder(output: Path) -> bool:
    """Return whether a command's option `-o` names a folder: a name without a suffix, or an existing folder."""
    return not output.suffix or output.is_dir()
