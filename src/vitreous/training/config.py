"""`TrainConfig`: everything that decides a run. Its defaults, `--help`, `config.json` and the run's page are this file.

A recipe is a value of it (`recipes.py`). Two runs with the same config, data and machine give the same bits.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What is trained, on what, for how long and how; it checks itself."""

    # --- what -------------------------------------------------------------------------------------------------------
    model: str = "vit_pico_patch2_8"
    """A variant's name (`vitreous models`), or with `pretrained` any checkpoint that `load` reads."""
    pretrained: bool = False
    """Begin with the checkpoint's weights and a fresh head, instead of fresh weights throughout."""
    policy: str = "full"
    """What learns: full, head, attention (the attention layers and the head), last:N (blocks) or lora."""
    train_norms: bool = False
    """Let the layer norms of the blocks learn too where the policy leaves them alone."""
    lora_rank: int = 8
    """Rank of LoRA's updates to the attention layers."""
    image_size: int | None = None
    """Height and width of images in pixels; None takes the model's own."""

    # --- on what ----------------------------------------------------------------------------------------------------
    data: str = "digits"
    """A dataset's name (`vitreous datasets`), a folder, parquet files or a Hub id."""
    train_split: str = "train"
    """What is learned from: train, or train+validation where a set keeps the two apart."""
    held_out: float = 0.2
    """Share held out for testing where the data has no test images of its own."""
    validation: float = 0.0
    """Share of the training images to report on instead of the test images: for choosing a recipe."""
    channels: int | None = None
    """1 for grey images, 3 for colour; None takes the model's own."""
    statistics: Literal["half", "imagenet", "clip", "unit"] | None = None
    """Mean and std of the normalisation; None: the checkpoint's own, or `half` from scratch."""
    stream: bool = False
    """Read images as they come, from parquet files or the Hub: for sets that are too large to open as a whole."""
    epoch_images: int | None = None
    """Images that count as an epoch of a stream; None: as many as it says it has."""
    resident: Literal["auto", "yes", "no"] = "auto"
    """Keep all decoded images in the device's memory: auto does so where they take a quarter of it at the most."""
    workers: int | None = None
    """Threads that decode images which are not resident; None: one a core, eight at the most."""

    # --- how long ---------------------------------------------------------------------------------------------------
    epochs: int = 60
    """Passes over the training images."""
    batch_size: int | Literal["auto"] = 64
    """Images for each update; auto finds the largest power of two that fits the device."""
    accumulate: int = 1
    """Compute each update in so many parts, for a batch that does not fit the memory at once."""
    evaluate_every: int = 1
    """Epochs between two looks at the held-out images; the last epoch always looks."""

    # --- how --------------------------------------------------------------------------------------------------------
    optimizer: Literal["adamw", "adam", "muon", "sgd"] = "adamw"
    """adam has no weight decay; muon moves the matrices of the blocks and leaves the rest to adamw."""
    learning_rate: float = 1e-3
    """The largest step size; Muon's steps are scaled so that the same number suits it."""
    weight_decay: float = 0.05
    """Pull of matrices towards zero; norms, biases, tokens and positions have none."""
    beta2: float = 0.999
    """Memory of the squared gradients."""
    warmup: float = 0.0
    """Epochs in which the step size grows from zero, linearly."""
    final_rate: float = 0.0
    """Where the cosine ends, as a share of the largest step size."""
    clip: float = 0.0
    """Largest norm of all gradients together; 0 means no limit."""
    layer_decay: float = 1.0
    """Each block's step size is this times the next one's: below 1, early layers move less."""
    average: float = 0.0
    """Decay of a moving average of the weights, which is then what is evaluated and saved; 0 means none."""

    # --- against learning by heart ----------------------------------------------------------------------------------
    shift: float = 0.0
    """Move images by up to this share of their side, by whole pixels."""
    flip: bool = False
    """Mirror half of the images."""
    crop: Range | None = None
    """Cut out a random part with a share of the area in this range, and resize it."""
    augment: Literal["none", "trivial", "rand"] = "none"
    """TrivialAugment or RandAugment."""
    magnitude: int = 9
    """RandAugment's strength, from 0 to 30."""
    erasing: float = 0.0
    """Chance to blot out a box."""
    mixup: float = 0.0
    """Alpha of MixUp: two images shine through each other; 0 means never."""
    cutmix: float = 0.0
    """Alpha of CutMix: a box of one image in another; 0 means never. With MixUp too, each image tosses a coin."""
    mix_share: float = 1.0
    """Chance that an image is mixed at all, where MixUp or CutMix is on."""
    repeats: int = 1
    """Repeated augmentation: an epoch shows fewer images, each so often in a row and each time changed otherwise."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    dropout: float = 0.0
    """Share of activations dropped."""
    stochastic_depth: float = 0.0
    """Chance to skip a branch of the last block; earlier blocks less."""

    # --- from a teacher ---------------------------------------------------------------------------------------------
    teacher: str | None = None
    """A checkpoint with the same classes to learn from (DeiT)."""
    distillation: Literal["hard", "soft"] = "hard"
    """Learn the teacher's first guess, or its whole distribution."""
    distillation_share: float = 0.5
    """Share of the loss that comes from the teacher."""
    temperature: float = 3.0
    """How far soft targets are flattened."""

    # --- where ------------------------------------------------------------------------------------------------------
    seed: int = 0
    """Decides fresh weights, order, augmentation and dropout."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; each process of several takes a GPU of its own."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Among several processes (`torchrun`): ddp keeps the model whole on each, fsdp a part of it (FSDP2)."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of the products; weights stay in fp32."""
    residual: Literal["fp32", "bf16"] = "fp32"
    """Number format of the tokens between blocks where products are bf16; bf16 saves time and memory on a GPU."""
    fused: bool = False
    """On CUDA, take a ViT's backward pass in fewer trips to memory; for GELU networks, without dropout and LoRA."""
    recompute: bool = False
    """Keep only what goes into each block, and work its inside out again going backward: less memory, more time."""
    compile: bool = False
    """Compile the step (needs a C++ compiler on a CPU)."""
    deterministic: bool = False
    """On CUDA, use only operations that give the same bits each time; CPUs always do."""
    save_every: float = 60.0
    """Seconds between two checkpoints; 0 saves after every step."""
    keep: int = 2
    """Checkpoints to keep."""
    snapshots: int = 12
    """Moments at which positions, filters and attention distance are recorded for the run's page; 0 means none."""
    log: Literal["none", "tensorboard"] = "none"
    """Write TensorBoard's files too (needs the `log` extra)."""

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "evaluate_every", "repeats", "keep", "lora_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.residual == "bf16" and self.precision != "bf16":
            raise ValueError("residual=bf16 needs precision=bf16: tokens are no narrower than the products")
        if asked := self.means():
            message = f"{' and '.join(asked)} {'works' if len(asked) == 1 else 'work'}"
            if self.parallel == "fsdp":
                raise ValueError(f"{message} in one process and with parallel=ddp: FSDP2 puts blocks together itself")
            if self.teacher is not None:
                raise ValueError(f"{message} without a teacher alone: leave out one or the other")
        if self.fused and self.dropout:
            raise ValueError("fused works without dropout alone: leave out one or the other")
        if self.fused and self.policy == "lora":
            raise ValueError(
                "fused works on plain layers, and LoRA puts its own around them: leave out one or the other"
            )
        if self.batch_size != "auto" and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 or auto, got {self.batch_size}")
        if self.batch_size != "auto" and self.batch_size % self.accumulate:
            message = f"batch_size {self.batch_size} cannot be computed in {self.accumulate} equal parts"
            raise ValueError(f"{message}: accumulate has to divide it")
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
        for name in ("shift", "final_rate", "distillation_share", "mix_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("weight_decay", "warmup", "clip", "mixup", "cutmix", "save_every", "snapshots", "magnitude"):
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
            raise ValueError(f"epoch_images is a number from 1 on, for streams alone, got {self.epoch_images}")
        if self.stream and (self.repeats > 1 or self.validation):
            raise ValueError("a stream shows each image once, as it comes: leave out repeats and validation")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels is 1 for grey or 3 for colour, got {self.channels}")

    def means(self) -> list[str]:
        """Fields that ask for another way through a ViT's blocks.

        >>> TrainConfig(recompute=True).means()
        ['recompute']
        """
        off = {"residual": "fp32", "fused": False, "recompute": False}
        return [name for name, usual in off.items() if getattr(self, name) != usual]

    def to_dict(self) -> dict[str, Any]:
        """As it is saved in `config.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Self:
        """Back from `config.json`; a field of another version is an error."""
        names = {field.name for field in fields(cls)}
        if strange := sorted(set(described) - names):
            raise ValueError(f"the run was made by another version: it has {', '.join(strange)}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in described.items()}
        return cls(**values)

    def differs(self, other: Self) -> list[str]:
        """Fields whose change makes another run: those that alter what is computed. A batch size of auto fits any."""
        free = NEUTRAL | {"batch_size"} if self.batch_size == "auto" else NEUTRAL
        names = [field.name for field in fields(self) if field.name not in free]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


NEUTRAL = frozenset({"save_every", "keep", "workers", "log", "device", "parallel", "evaluate_every", "snapshots"})
"""Fields that may change when a run goes on: they do not touch what the weights become, but for rounding (`device` and
`parallel`; as little does the number of processes)."""
