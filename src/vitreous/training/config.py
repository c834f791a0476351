"""`TrainConfig`: all settings of a run. Defaults, `--help`, `config.json` and the run's page are made from it.

A recipe is a value of it (`recipes.py`). Two runs with the same config, data and machine give the same bits.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin

from vitreous.runtime.files import spell_path

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of a training run; invalid values raise `ValueError`."""

    # --- model ------------------------------------------------------------------------------------------------------
    model: str = "vit_pico_patch2_8"
    """A variant (`vitreous models`), `NAME:field=value,…` or `timm:NAME`; with `pretrained`, what `load` reads."""
    pretrained: bool = False
    """Start from the checkpoint's weights and a new head, instead of random weights."""
    readout: Literal["own", "attention", "linear", "decoder"] = "own"
    """What reads the tokens: own (the model's pooling), a new attention pool; for masks a linear layer or a decoder."""
    head: Literal["zero", "text"] = "zero"
    """How the new head begins: zero, or text (a CLIP or SigLIP): with the text features of the class names."""
    template: str = "{}"
    """With `head` text, the sentence around each class name, such as "a photo of a {}"."""
    policy: str = "full"
    """Which parameters learn: full, head, attention (attention layers and head), last:N (blocks) or lora."""
    train_norms: bool = False
    """Train the layer norms of the blocks too, if the policy does not."""
    lora_rank: int = 8
    """Rank of LoRA's updates to the attention layers."""
    initial: Literal["normal", "local"] = "normal"
    """First weights of a fresh ViT: normal, or local, with which each head attends to one neighbour of every patch."""
    image_size: int | None = None
    """Height and width of images in pixels; None: the model's own."""

    # --- data -------------------------------------------------------------------------------------------------------
    data: str = "digits"
    """A dataset's name (`vitreous datasets`), a folder, a table, parquet files or a Hub id."""
    task: Literal["auto", "classify", "multilabel", "regress", "segment"] = "auto"
    """What is learned: one class of an image, several labels, numbers, or a class for each pixel; auto: by the data."""
    train_split: str = "train"
    """The split to train on: train, or train+validation for a dataset that has both."""
    held_out: float = 0.2
    """Share of the images held out for testing, if the dataset has no test split."""
    validation: float = 0.0
    """Share of the training images to evaluate on instead of the test images: for choosing a recipe."""
    channels: int | None = None
    """1 for grey images, 3 for colour; None: the model's own."""
    statistics: Literal["half", "imagenet", "clip", "unit"] | None = None
    """Mean and std of the normalisation; None: the checkpoint's own, or `half` from scratch."""
    balance: Literal["none", "sampling", "loss"] = "none"
    """For classes of unequal size: draw each equally often (sampling), or weigh the loss of rare ones more (loss)."""
    stream: bool = False
    """Stream images from parquet files or the Hub, for datasets that are too large to open as a whole."""
    epoch_images: int | None = None
    """Images in an epoch of a stream; None: as many as its metadata says."""
    resident: Literal["auto", "yes", "no"] = "auto"
    """Keep all decoded images in the device's memory; auto: if they take at most a quarter of it."""
    workers: int | None = None
    """Threads that decode images that are not resident; None: one for each core, at most eight."""

    # --- budget -----------------------------------------------------------------------------------------------------
    epochs: int = 60
    """Passes over the training images."""
    batch_size: int | Literal["auto"] = 64
    """Images in each step; auto: the largest power of two that fits into the device's memory."""
    accumulate: int = 1
    """Compute each step in this many parts (gradient accumulation), for a batch that does not fit into memory."""
    evaluate_every: int = 0
    """Epochs from one evaluation to the next (0: one, or more with few training images); the last is evaluated too."""

    # --- optimisation -----------------------------------------------------------------------------------------------
    loss: Literal["auto", "mse", "huber"] = "auto"
    """The loss of numbers, in units of their standard deviation; auto: huber. Other tasks have cross-entropy."""
    optimizer: Literal["adamw", "adam", "muon", "sgd"] = "adamw"
    """adam is without weight decay; muon updates the matrices of the blocks, and adamw the rest."""
    learning_rate: float = 1e-3
    """The largest learning rate; Muon's updates are scaled to suit the same value."""
    weight_decay: float = 0.05
    """Decoupled weight decay of matrices; norms, biases, tokens and positions have none."""
    beta2: float = 0.999
    """Decay of the squared gradients' average (Adam's beta2)."""
    warmup: float = 0.0
    """Epochs of linear warm-up."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """How the learning rate falls after the warm-up: by half a cosine, or by a straight line."""
    final_rate: float = 0.0
    """Learning rate at the end of the schedule, as a share of the largest."""
    clip: float = 0.0
    """Largest norm of the gradient; 0: no clipping."""
    layer_decay: float = 1.0
    """Each block's learning rate is this times the next block's: below 1, early layers change less."""
    average: float = 0.0
    """Decay of an exponential moving average of the weights (EMA), which is evaluated and saved; 0: none."""

    # --- augmentation and regularisation ----------------------------------------------------------------------------
    shift: float = 0.0
    """Shift images by up to this share of their side, by whole pixels."""
    flip: bool = False
    """Flip half of the images horizontally."""
    crop: Range | None = None
    """Random resized crop: the range of its area, as a share of the image."""
    augment: Literal["none", "trivial", "rand"] = "none"
    """TrivialAugment or RandAugment."""
    magnitude: int = 9
    """RandAugment's strength, from 0 to 30."""
    erasing: float = 0.0
    """Probability of random erasing."""
    mixup: float = 0.0
    """Alpha of MixUp; 0: off."""
    cutmix: float = 0.0
    """Alpha of CutMix; 0: off. If MixUp is on too, each image gets one of the two at random."""
    mix_share: float = 1.0
    """Probability that an image is mixed, if MixUp or CutMix is on."""
    mix_until: float = 1.0
    """Share of the epochs after which images are mixed no more, so that a run ends on whole images."""
    repeats: int = 1
    """Repeated augmentation: an epoch has fewer images, each this often with different augmentations."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    dropout: float = 0.0
    """Probability of dropping an activation."""
    stochastic_depth: float = 0.0
    """Probability of skipping a branch of the last block (drop path); it rises linearly from the first block."""

    # --- distillation -----------------------------------------------------------------------------------------------
    teacher: str | None = None
    """A checkpoint with the same classes to learn from (DeiT)."""
    distillation: Literal["hard", "soft"] = "hard"
    """Learn the teacher's top class, or its distribution."""
    distillation_share: float = 0.5
    """Share of the loss that comes from the teacher."""
    temperature: float = 3.0
    """Temperature of soft distillation."""

    # --- device and run ---------------------------------------------------------------------------------------------
    seed: int = 0
    """Seed of the initial weights, the order of images, augmentation and dropout."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; each of several processes takes its own GPU."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes (`torchrun`): ddp keeps a replica of the model on each, fsdp a shard (FSDP2)."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of matrix products; weights stay in fp32."""
    residual: Literal["fp32", "bf16"] = "fp32"
    """Precision of the tokens between blocks; bf16 (with precision bf16) saves time and memory on a GPU."""
    fused: bool = False
    """On CUDA, train a ViT with fused kernels, above all backward; for GELU networks without dropout and LoRA."""
    recompute: bool = False
    """Activation checkpointing: keep only each block's input and recompute the rest: less memory, more time."""
    compile: bool = False
    """Compile the step with torch.compile (needs a C++ compiler on a CPU)."""
    deterministic: bool = False
    """On CUDA, use only deterministic operations; CPUs always do."""
    save_every: float = 60.0
    """Seconds between two checkpoints; 0: after every step."""
    keep: int = 2
    """Number of checkpoints to keep."""
    snapshots: int = 12
    """How often positions, filters and attention distance are recorded for the run's page; 0: never."""
    log: Literal["none", "tensorboard"] = "none"
    """Also write TensorBoard's event files (needs the `log` extra)."""

    def __post_init__(self) -> None:
        for field in fields(TrainConfig):  # a subclass describes them for the command line
            if not _suits(value := getattr(self, field.name), field.type):
                raise ValueError(f"{field.name} is {_spell(field.type)}, got {value!r}")
        for name in ("epochs", "accumulate", "repeats", "keep", "lora_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.head == "text" and not self.pretrained:
            raise ValueError("head=text needs the weights of a CLIP or SigLIP: use finetune, or pretrained")
        if self.template != "{}" and self.head != "text":
            raise ValueError("a template is for head=text: name it too, or leave the template out")
        if self.initial != "normal" and self.pretrained:
            raise ValueError(f"initial={self.initial} is for fresh weights, and this run starts from a checkpoint's")
        if self.mix_until < 1 and not (self.mixup or self.cutmix):
            raise ValueError("mix_until says when mixing ends, and this run mixes nothing: pass mixup or cutmix too")
        if self.residual == "bf16" and self.precision != "bf16":
            raise ValueError("residual=bf16 needs precision=bf16")
        if asked := self.forward_options():
            options = f"{' and '.join(asked)} {'does' if len(asked) == 1 else 'do'} not work"
            if self.parallel == "fsdp":
                raise ValueError(f"{options} with parallel=fsdp, which gathers blocks itself: use ddp or one process")
            if self.teacher is not None:
                raise ValueError(f"{options} with a teacher: leave out one or the other")
        if self.fused and self.dropout:
            raise ValueError("fused does not work with dropout: leave out one or the other")
        if self.fused and self.policy == "lora":
            raise ValueError("fused does not work with LoRA's layers: leave out one or the other")
        if self.batch_size != "auto" and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 or auto, got {self.batch_size}")
        if self.batch_size != "auto" and self.batch_size % self.accumulate:
            raise ValueError(f"accumulate must divide batch_size, got {self.accumulate} and {self.batch_size}")
        for name in (
            "validation",
            "erasing",
            "label_smoothing",
            "dropout",
            "stochastic_depth",
            "average",
            "beta2",
        ):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must lie between 0 and 1, got {self.held_out}")
        for name in ("shift", "final_rate", "distillation_share", "mix_share", "mix_until"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        not_negative = ("weight_decay", "warmup", "clip", "mixup", "cutmix", "magnitude")
        for name in (*not_negative, "evaluate_every", "save_every", "snapshots"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("learning_rate", "layer_decay", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2⁶³), got {self.seed}")
        if self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ValueError(f"crop is a range of areas such as 0.3 1.0, got {self.crop}")
        if self.epoch_images is not None and (self.epoch_images < 1 or not self.stream):
            raise ValueError(f"epoch_images must be at least 1 and needs stream, got {self.epoch_images}")
        if self.stream and (self.repeats > 1 or self.validation or self.balance != "none"):
            raise ValueError("repeats, validation and balance do not work with a stream: leave them out")
        if self.balance == "sampling" and self.repeats > 1:
            raise ValueError("balance=sampling does not work with repeats: use balance=loss, or leave repeats out")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels is 1 for grey or 3 for colour, got {self.channels}")

    def check_task(self, task: str) -> None:
        """Raise for settings in a run's config that do not work for its task.

        The task is known when the data is open.

        >>> TrainConfig(mixup=0.4).check_task("segment")
        Traceback (most recent call last):
        ...
        ValueError: mixup does not work for segment: leave it out
        """
        off: dict[str, Any] = {
            "label_smoothing": 0.0,
            "balance": "none",
            "teacher": None,
            "head": "zero",
        }
        unfit = {
            "classify": {"loss": "auto"},
            "multilabel": off | {"loss": "auto"},
            "regress": off,
            "segment": off | {"loss": "auto", "mixup": 0.0, "stream": False},
        }[task]
        dense = ("own", "linear", "decoder") if task == "segment" else ("own", "attention")
        if asked := [name for name, value in unfit.items() if getattr(self, name) != value]:
            they, them = ("does", "it") if len(asked) == 1 else ("do", "them")
            raise ValueError(f"{' and '.join(asked)} {they} not work for {task}: leave {them} out")
        if self.readout not in dense:
            raise ValueError(f"readout={self.readout} does not work for {task}: choose {' or '.join(dense)}")

    def forward_options(self) -> list[str]:
        """Return the settings of a run in use that change the forward pass through a ViT's blocks.

        >>> TrainConfig(recompute=True).forward_options()
        ['recompute']
        """
        off = {"residual": "fp32", "fused": False, "recompute": False}
        return [name for name, default in off.items() if getattr(self, name) != default]

    def with_settings(self, **settings: Any) -> Self:
        """Return a copy of a run's config with some fields changed; an unknown name raises with the nearest ones.

        So does a field that has no effect. A warm-up that would take more than a quarter of the new `epochs` keeps its
        share of them.

        >>> config = TrainConfig(epochs=40, warmup=4).with_settings(epochs=2)
        >>> config.epochs, config.warmup
        (2, 0.2)
        """
        names = [field.name for field in fields(self)]
        for name in settings:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=2)
                hint = f": did you mean {' or '.join(close)}?" if close else ""
                raise ValueError(f"training has no setting {name!r}{hint}")
        if "data" in settings:
            settings["data"] = spell_path(settings["data"])
        changed = dataclasses.replace(self, **settings)
        if "epochs" in settings and "warmup" not in settings and changed.warmup > changed.epochs / 4:
            changed = dataclasses.replace(changed, warmup=round(self.warmup * changed.epochs / self.epochs, 4))
        for name, (works, need) in changed._needs().items():
            if name in settings and not works and settings[name] != getattr(type(self), name):
                raise ValueError(f"{name} has no effect without {need}: pass that too, or leave {name} out")
        return changed

    def _needs(self) -> dict[str, tuple[bool, str]]:
        """Return the settings of a run that depend on others: name → whether it has an effect, and what it needs."""
        taught = (self.teacher is not None, "a teacher")
        return {
            "mix_share": (bool(self.mixup or self.cutmix), "mixup or cutmix"),
            "mix_until": (self.mix_share > 0, "a mix_share"),
            "lora_rank": (self.policy == "lora", "policy=lora"),
            "magnitude": (self.augment == "rand", "augment=rand"),
            **dict.fromkeys(("distillation", "distillation_share", "temperature"), taught),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of a `TrainConfig` as `config.json` holds them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Self:
        """Build a training config from the fields in a run's `config.json`; unknown fields raise."""
        names = {field.name for field in fields(cls)}
        if strange := sorted(set(described) - names):
            raise ValueError(f"written by another version: unknown fields {', '.join(strange)}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in described.items()}
        return cls(**values)

    def differences(self, other: Self) -> list[str]:
        """Return the settings in which configs differ and which change the result. A batch size of auto equals any."""
        free = NEUTRAL | {"batch_size"} if self.batch_size == "auto" else NEUTRAL
        names = [field.name for field in fields(self) if field.name not in free]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


def _suits(value: object, kind: Any) -> bool:
    """Return whether a value is one that a setting of a run may have, by the field's type."""
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_suits(value, part) for part in parts)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_suits, value, parts))
    if get_origin(kind) is Literal:
        return value in parts
    if kind in (int, float):  # a bool is an int in Python, but no number of epochs
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _spell(kind: Any) -> str:
    """Write in words what a setting of a run may be, by the field's type.

    >>> _spell(int | Literal["auto"]), _spell(Range | None), _spell(Literal["mse", "huber"] | None)
    ('a whole number or auto', 'two numbers or None', 'mse, huber or None')
    """
    *most, last = _options(kind)
    return f"{', '.join(most)} or {last}" if most else last


def _options(kind: Any) -> list[str]:
    """List what a setting of a run may be, by the field's type."""
    if get_origin(kind) in (Union, UnionType):
        return [option for part in get_args(kind) for option in _options(part)]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", NoneType: "None"}
    return [words.get(kind, "two numbers")]


NEUTRAL = frozenset({"save_every", "keep", "workers", "log", "device", "parallel", "evaluate_every", "snapshots"})
"""Fields that may change when a run resumes: they do not change the trained weights, except for rounding (`device`,
`parallel`)."""


def balanced_interval(learned: int, held_out: int) -> int:
    """Return the epochs that the setting `evaluate_every=0` of a training config means; at least one.

    In so many a run learns from about as many images as an evaluation answers.

    >>> balanced_interval(2040, 6149), balanced_interval(50_000, 10_000)
    (3, 1)
    """
    return max(1, round(held_out / learned))


def evaluation_interval(epochs: int, evaluations: int, balanced: int = 1) -> int:
    """Choose the setting `evaluate_every` of a training config from `epochs`, `balanced` and a number of evaluations.

    It is at least `balanced`, and for a long run gives about `evaluations` in all.

    >>> evaluation_interval(40, 8), evaluation_interval(15, 8), evaluation_interval(15, 8, balanced=3)
    (5, 1, 3)
    """
    return max(balanced, epochs // evaluations if epochs >= 2 * evaluations else 1)
