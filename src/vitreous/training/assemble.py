"""A config and its data to everything that the loop turns: model, optimisers, images, the update and the measure."""

import copy
import ctypes
import os
import random
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from vitreous.data.augment.pipeline import Augment
from vitreous.data.counter_random import permutation
from vitreous.data.image_dataset import ImageDataset, digest
from vitreous.data.preprocess import Preprocess
from vitreous.data.split import open_split
from vitreous.models.resnet import ResNet
from vitreous.runtime.device import lacks_compiler, pick_device
from vitreous.runtime.distributed import World, this_rank
from vitreous.training.batch_size import settle_batch
from vitreous.training.batches import Source
from vitreous.training.build import build_model
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener
from vitreous.training.measure import Measure
from vitreous.training.objective import Objective, Teacher
from vitreous.training.optimisers import build, materialise
from vitreous.training.parallel import is_sharded, spread
from vitreous.training.policies import learn
from vitreous.training.state import State, seed_rank
from vitreous.training.stream import Streamed, StreamSource, open_stream
from vitreous.training.update import Update
from vitreous.weights.load import Model, load


@dataclass
class Parts:
    """What a run is made of."""

    config: TrainConfig
    """With the batch size that was settled on."""
    model: Model
    learning: list[str]
    """Names of the parameters that learn."""
    learned: ImageDataset | Streamed
    tested: ImageDataset
    source: Source | StreamSource
    held_out: Source
    state: State
    update: Update
    measure: Measure
    world: World = field(default_factory=World)
    ready: float = 0.0
    """Seconds that opening, decoding and compiling took in this sitting."""
    peak: int | None = None
    """The most bytes that an update takes on a GPU, beside the images that are kept there; None elsewhere."""

    @property
    def steps(self) -> int:
        """Updates in an epoch."""
        return len(self.learned) // int(self.config.batch_size)

    @property
    def data(self) -> str:
        """What is learned from, as a hash of classes and labels."""
        return digest([*self.learned.class_names, " ".join(map(str, self.learned.labels))])[:16]


def assemble(config: TrainConfig, data_root: Path | None, tell: Listener, world: World | None = None) -> Parts:
    """Open the data, build the model, and put both where they are to run."""
    world = world or World(device=set_up(config))
    device = world.device
    if config.compile and lacks_compiler(device):
        tell.say("there is no C++ compiler here, so nothing is compiled, and the run is slower")
        config = replace(config, compile=False)
    learned, tested = open_data(config, data_root)
    model = build_model(config, learned, tell.say)
    if not is_sharded(config, world):  # else a block at a time goes there
        model = model.to(device)
    if isinstance(model, ResNet) and device.type == "cuda" and not world.distributed:
        model = model.to(memory_format=torch.channels_last)  # how a GPU's convolutions want it
    learning = learn(model, config.policy, train_norms=config.train_norms, lora_rank=config.lora_rank)
    config = settle_batch(config, model, len(learned), device, tell.say, world)
    view = model.card.preprocess
    with world.first_of_each_machine():
        source: Source | StreamSource
        if isinstance(learned, Streamed):
            source = StreamSource(learned, view, config, device, world.this)
        else:
            source = Source(learned, view, config, device, training=True, place=world.this, progress=tell.decoding)
        held_out = Source(tested, view, config, device, training=False, place=world.this, progress=tell.decoding)
    augment = make_augment(config, source, len(learned.class_names)).to(device)
    measured = copy.deepcopy(model)
    if config.compile:
        torch.compiler.reset()  # what an earlier run in this process compiled counts towards torch's limit
    objective = spread(Objective(model, config, make_teacher(config, view, model, device)), model, config, world)
    optimisers = build(model, config)
    materialise(optimisers)
    kept = [(n, p) for n, p in model.named_parameters() if p.requires_grad and config.average]
    average = {name: parameter.detach().clone() for name, parameter in kept}
    state = State(model, optimisers, device, average, torch.zeros(4, dtype=torch.float64, device=device))
    update = Update(state, source, augment, config, objective, world)
    measure = Measure(measured, state, held_out, augment, config, world)
    if not world.first:
        seed_rank(config.seed, world.this)
    peak = None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        first = next(source.epoch(0, int(config.batch_size)))
        if world.distributed:
            update.warm_up(first)
        else:
            update.capture(first)  # from here on Python only says which images are next
        peak = torch.cuda.max_memory_allocated(device)
        peak -= sum(each.pixels.nbytes for each in (source, held_out) if each.pixels is not None)
    elif config.compile:
        update.warm_up(next(source.epoch(0, int(config.batch_size))))
    return Parts(config, model, learning, learned, tested, source, held_out, state, update, measure, world, peak=peak)


def set_up(config: TrainConfig) -> torch.device:
    """Choose the device and seed every source of chance."""
    place = this_rank()
    device = pick_device(config.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", place.local_rank)
    if device.type == "mps":  # augmentation draws in float64, for the same bits everywhere
        if config.device != "auto":
            raise ValueError("Apple's GPUs have no float64, which training needs: pass --device cpu")
        device = torch.device("cpu")
    if config.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)
    if device.type == "cpu":
        keep_freed_memory()
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # noqa: NPY002  # a library may draw from it
    torch.manual_seed(config.seed)
    return device


def keep_freed_memory() -> None:
    """Tell glibc to keep large blocks that are freed instead of handing them back: the next update wants them again.

    Getting them anew costs page faults, a fifth of a small model's update. Elsewhere than on Linux nothing happens.
    """
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):  # another C library
            return
        for parameter in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            mallopt(parameter, 1 << 30)


def open_data(config: TrainConfig, data_root: Path | None) -> tuple[ImageDataset | Streamed, ImageDataset]:
    """The images to learn from and those to report on."""
    if config.stream:
        return open_stream(config, data_root)
    learned, tested = open_split(config.data, data_root, config.held_out, train=config.train_split)
    if config.validation:
        shuffled = permutation(0, 0, len(learned)).tolist()  # the same images for every seed
        count = max(1, round(config.validation * len(learned)))
        if count == len(learned):
            raise ValueError(
                f"--validation {config.validation} leaves none of {count} images to learn from: take a smaller share"
            )
        learned, tested = learned.take(sorted(shuffled[count:])), learned.take(sorted(shuffled[:count]))
    return learned, tested


def make_augment(config: TrainConfig, source: Source | StreamSource, classes: int) -> Augment:
    """What is done to images at random, of what the config asks for and the source has not done."""
    view = source.preprocess
    return Augment(
        size=view.size,
        mean=view.mean,
        std=view.std,
        classes=classes,
        shift=config.shift,
        flip=config.flip,
        crop=config.crop if source.resident else None,  # else the images come cropped
        policy=config.augment,
        magnitude=config.magnitude,
        erasing=config.erasing,
        mixup=config.mixup,
        cutmix=config.cutmix,
        mix_share=config.mix_share,
        label_smoothing=config.label_smoothing,
    )


def make_teacher(config: TrainConfig, view: Preprocess, model: Model, device: torch.device) -> Teacher | None:
    """The model to learn from, where one was named; its classes have to be the data's."""
    if config.teacher is None:
        return None
    teacher = load(config.teacher)
    if teacher.card.head != "classifier" or teacher.config.classes != model.config.classes:
        message = f"knows {teacher.config.classes} classes, the data has {model.config.classes}"
        raise ValueError(f"teacher {config.teacher} {message}: choose another teacher")
    names, own = teacher.card.class_names, model.card.class_names
    if names is not None and names != own:
        raise ValueError(f"teacher {config.teacher} has other classes than the data: {names[0]!r} for {own[0]!r} first")
    return Teacher(teacher, view.mean, view.std).to(device)
