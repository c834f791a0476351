"""Set up a run from its config (`TrainingParts`): device, data, model, augmentation, teacher, optimisers, step."""

import copy
import os
import random
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from vitreous.data.augment.pipeline import Augment
from vitreous.data.counter_random import permutation
from vitreous.data.image_dataset import NOUNS, ImageDataset, count_nouns, list_some
from vitreous.data.preprocess import Preprocess
from vitreous.data.splits import check_targets, open_split
from vitreous.runtime.device import lacks_compiler, pick_device, quieten_compiler
from vitreous.runtime.distributed import World, this_rank
from vitreous.runtime.memory import keep_freed_memory
from vitreous.speed.training_forward import caching_gradients
from vitreous.training.batch_size import settle_batch_size
from vitreous.training.batches import BatchSource
from vitreous.training.checkpoint import TrainingState
from vitreous.training.config import TrainConfig, balanced_interval
from vitreous.training.data_check import are_unequal, check_images_left, check_size, data_remarks, hash_data
from vitreous.training.evaluation import Evaluator, check_measurable
from vitreous.training.listeners import Listener
from vitreous.training.loss import Objective, Teacher, balancing_weights, standardised
from vitreous.training.model import build_model, choose_forward, is_convolutional
from vitreous.training.optimisers import build_optimisers, create_states
from vitreous.training.parallel import is_sharded, parallelise, seed_rank
from vitreous.training.policies import apply_policy
from vitreous.training.step import TrainStep
from vitreous.training.stream_batches import StreamedData, StreamSource, open_stream
from vitreous.weights.load import Model, load


@dataclass
class TrainingParts:
    """The parts of a run: data, model, optimisers, training step, evaluation, state."""

    config: TrainConfig
    """With the settled batch size."""
    model: Model
    trainable: list[str]
    """Names of the parameters that learn."""
    train_data: ImageDataset | StreamedData
    test_data: ImageDataset
    train_source: BatchSource | StreamSource
    test_source: BatchSource
    state: TrainingState
    train_step: TrainStep
    evaluate: Evaluator
    world: World = field(default_factory=World)
    setup_seconds: float = 0.0
    """Time of opening, decoding and compiling in this process."""
    peak_memory: int | None = None
    """Peak bytes of a step on a GPU, without the resident images; None on a CPU."""
    step_seconds: float | None = None
    """Time of a step, for an estimate; None if it was not measured."""

    @property
    def steps_per_epoch(self) -> int:
        return len(self.train_data) // int(self.config.batch_size)

    @property
    def evaluate_every(self) -> int:
        """Epochs between two evaluations of the run that is set up: as asked for, or `balanced_interval`."""
        return self.config.evaluate_every or self.balanced_interval

    @property
    def balanced_interval(self) -> int:
        """Epochs in which the run that is set up learns from about as many images as are held out."""
        return balanced_interval(len(self.train_data), len(self.test_data))

    @cached_property
    def data_hash(self) -> str:
        """Hashes of the data that the set-up of a run opened, joined by `-`: of training images, of held-out images."""
        return f"{hash_data(self.train_data)}-{hash_data(self.test_data)}"


def set_up_run(
    config: TrainConfig,
    data_root: Path | None,
    listener: Listener,
    world: World | None = None,
    *,
    resumed: bool = False,
) -> TrainingParts:
    """Open a run's data, build its model, and move both to the device.

    The weights that a `resumed` run started with are not spoken of again: those of its checkpoint replace them.
    """
    world = world or World()
    device = world.device or set_up_device(config)
    if config.compile and lacks_compiler(device):
        listener.log("there is no C++ compiler: the model is not compiled, and the run is slower")
        config = replace(config, compile=False)
    if config.fused and device.type == "cpu":
        listener.log("fused is for CUDA: on a CPU it gives the same results in more time")
    train_data, test_data = open_data(config, data_root)
    config.check_task(train_data.task)
    model = build_model(config, train_data, Listener().log if resumed else listener.log)
    sharded = is_sharded(config, world)
    if not sharded:  # else one block at a time moves there
        model = model.to(device)
    if is_convolutional(model) and device.type == "cuda" and not world.distributed:
        model = model.to(memory_format=torch.channels_last)  # the fastest layout for a GPU's convolutions
    trainable = apply_policy(
        model,
        config.policy,
        train_norms=config.train_norms,
        train_pool=config.readout == "attention",
        lora_rank=config.lora_rank,
    )
    preprocess = model.card.preprocess
    source_of = partial(BatchSource, config=config, device=device, rank=world, progress=listener.decoding)
    with world.first_of_each_machine():
        train_source: BatchSource | StreamSource
        if isinstance(train_data, StreamedData):
            if train_data.task != "classify":
                learned = count_nouns(train_data.task, len(train_data.class_names))
                listener.log(f"task: {train_data.task} ({learned}: {list_some(train_data.class_names, 4)})")
            train_source = StreamSource(train_data, preprocess, config, device, world)
        else:
            check_size(config, model, train_data, listener.log)
            train_source = source_of(train_data, preprocess, training=True)
        test_source = source_of(test_data, preprocess, training=False)
    train_data, test_data = train_source.data, test_source.data  # without unreadable images
    if (standard := model.card.standard) is not None:
        test_source.labels = standardised(test_source.labels, standard)
        if isinstance(train_source, StreamSource):
            train_source.standardise = partial(standardised, standard=standard)
        else:
            train_source.labels = standardised(train_source.labels, standard)
    unequal, class_weights = False, None
    if isinstance(train_source, BatchSource) and isinstance(train_data, ImageDataset):
        unreadable = [*train_source.unreadable, *test_source.unreadable]
        check_images_left(train_data, test_data, unreadable)
        for line in data_remarks(train_data, test_data, unreadable, config.balance):
            listener.log(line)
        classes = train_data.task == "classify"
        unequal = classes and (are_unequal(train_data.labels) or are_unequal(test_data.labels))
        if config.balance == "loss":
            class_weights = balancing_weights(train_data.labels, len(train_data.class_names)).to(device)
    check_measurable(test_source)
    config = settle_batch_size(config, model, len(train_data), device, listener.log, world)
    augment = make_augment(config, train_source, len(train_data.class_names)).to(device)
    evaluated = copy.deepcopy(model)
    if config.compile:
        quieten_compiler()
        torch.compiler.reset()  # graphs of an earlier run in this process count towards torch's limit
    forward = choose_forward(model, device, config, sharded=sharded)
    teacher = make_teacher(config, preprocess, model, device)
    objective = Objective(model, config, forward, teacher, class_weights, train_data.task)
    wrapped = parallelise(objective, model, config, world)
    optimisers = build_optimisers(model, config)
    create_states(optimisers)
    averaged = [(n, p) for n, p in model.named_parameters() if p.requires_grad and config.average]
    average = {name: parameter.detach().clone() for name, parameter in averaged}
    state = TrainingState(model, optimisers, device, average, torch.zeros(4, dtype=torch.float64, device=device))
    train_step = TrainStep(state, train_source, augment, config, wrapped, world)
    evaluate = Evaluator(evaluated, state, test_source, augment, config, world, unequal=unequal)
    if not world.first:
        seed_rank(config.seed, world)
    peak_memory = step_seconds = None
    if device.type == "cuda" or config.compile or not (world.distributed or config.stream):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        first = next(train_source.epoch(0, int(config.batch_size)))
        with caching_gradients():
            if device.type == "cuda" and not world.distributed:
                train_step.capture(first)
            step_seconds = train_step.warm_up(first)
    if device.type == "cuda":
        peak_memory = torch.cuda.max_memory_allocated(device)
        peak_memory -= sum(each.pixels.nbytes for each in (train_source, test_source) if each.pixels is not None)
    return TrainingParts(
        config,
        model,
        trainable,
        train_data,
        test_data,
        train_source,
        test_source,
        state,
        train_step,
        evaluate,
        world,
        peak_memory=peak_memory,
        step_seconds=step_seconds,
    )


def set_up_device(config: TrainConfig) -> torch.device:
    """Set up a run's device, and seed every random generator."""
    rank = this_rank()
    device = pick_device(config.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", rank.local_rank)
    if device.type == "mps":  # augmentation computes in float64, for the same bits on every device
        if config.device != "auto":
            raise ValueError("Apple's GPUs have no float64, which training needs: pass --device cpu")
        device = torch.device("cpu")
    if config.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first use
        torch.use_deterministic_algorithms(True)
    if device.type == "cpu":
        keep_freed_memory()
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # noqa: NPY002  # for libraries that use it
    torch.manual_seed(config.seed)
    return device


def open_data(config: TrainConfig, data_root: Path | None) -> tuple[ImageDataset | StreamedData, ImageDataset]:
    """Set up a run's data: open the training images and the test images."""
    if config.stream:
        return open_stream(config, data_root)
    task = None if config.task == "auto" else config.task
    train_data, test_data = open_split(config.data, data_root, config.held_out, train=config.train_split, task=task)
    if config.validation:
        shuffled = permutation(0, 0, len(train_data)).tolist()  # the same images for every seed
        count = max(1, round(config.validation * len(train_data)))
        if count == len(train_data):
            raise ValueError(
                f"--validation {config.validation} leaves none of {count} images for training: choose a smaller share"
            )
        train_data, test_data = train_data.take(sorted(shuffled[count:])), train_data.take(sorted(shuffled[:count]))
        check_targets(train_data)
    return train_data, test_data


def make_augment(config: TrainConfig, source: BatchSource | StreamSource, classes: int) -> Augment:
    """Set up the augmentation that a run's config asks for, without the crop if the source has done it."""
    preprocess, task = source.preprocess, source.data.task
    return Augment(
        size=preprocess.size,
        mean=preprocess.mean,
        std=preprocess.std,
        classes=classes,
        shift=config.shift,
        flip=config.flip,
        crop=config.crop if source.resident else None,  # else the source crops
        policy=config.augment,
        magnitude=config.magnitude,
        erasing=config.erasing,
        mixup=config.mixup,
        cutmix=config.cutmix,
        mix_share=config.mix_share,
        label_smoothing=config.label_smoothing,
        masks=task == "segment",
        soft=task in ("multilabel", "regress"),
    )


def make_teacher(config: TrainConfig, preprocess: Preprocess, model: Model, device: torch.device) -> Teacher | None:
    """Set up a run's teacher, if the config names one; its classes must be those of the data."""
    if config.teacher is None:
        return None
    teacher = load(config.teacher)
    if teacher.card.task != "classify":
        raise ValueError(
            f"teacher {config.teacher} answers with {NOUNS[teacher.card.task]}: choose one that has classes"
        )
    if teacher.card.head != "classifier" or teacher.config.classes != model.config.classes:
        classes = f"{teacher.config.classes} classes, the data has {model.config.classes}"
        raise ValueError(f"teacher {config.teacher} has {classes}: choose another teacher")
    names, own = teacher.card.class_names, model.card.class_names
    if names is not None and names != own:
        raise ValueError(f"teacher {config.teacher} has other classes than the data: {names[0]!r} for {own[0]!r} first")
    return Teacher(teacher, preprocess.mean, preprocess.std).to(device)
