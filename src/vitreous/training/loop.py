"""`train`: a config in, a run folder out, top to bottom; resuming, stopping on signals, the check for NaN.

An unfinished run, however it ended, resumes when `train` is called again with the same config and folder. It ends with
the same bits as a run that was never interrupted: on a CPU with the same number of threads, on CUDA with
`deterministic`.
"""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitreous.predict.scores import best_thresholds, class_accuracies
from vitreous.runtime.distributed import join_world
from vitreous.runtime.files import write_json
from vitreous.training import checkpoint
from vitreous.training.config import TrainConfig
from vitreous.training.data_check import changed_data
from vitreous.training.listeners import Listener, Listeners
from vitreous.training.optimisers import rate_factor
from vitreous.training.policies import merge_lora
from vitreous.training.run_folder import RunFolder
from vitreous.training.setup import TrainingParts, set_up_device, set_up_run
from vitreous.training.stream_batches import StreamSource
from vitreous.weights.card import fold_standard
from vitreous.weights.model_card import write_model_card
from vitreous.weights.save import describe_model, save

TRAINING_FIGURES = {
    "classify": "top1",
    "multilabel": "label_accuracy",
    "regress": "score",
    "segment": "pixel_accuracy",
}
"""Task → the name of the share of correct answers on the training images in `metrics.jsonl`; for numbers, 1 − the mean
absolute error in units of their standard deviation."""
STEP_EVENT_SECONDS = 0.5  # between two `step` events: reading the running loss waits for the device


def train(
    config: TrainConfig, output: str | Path, *, data_root: Path | None = None, listeners: Sequence[Listener] = ()
) -> dict[str, Any]:
    """Train in the folder `output`, or resume the run there, top to bottom; return the content of `result.json`.

    If `torchrun` started several processes, all call this with the same arguments and train one model.
    """
    with join_world(set_up_device(config)) as world, stop_on_signal(ignore_repeats=world.distributed) as stop_flag:
        folder, listener = RunFolder(world.broadcast(output)), Listeners(listeners)
        with folder.explain_errors(), folder.lock() if world.first else nullcontext():
            # rank 0 reads the folder for all: a shared disk may show each rank something else
            config, result, resumed = world.broadcast(
                (folder.check(config), folder.read_result(), checkpoint.exists(folder.checkpoints))
                if world.first
                else (config, None, False)
            )
            if result is not None:
                listener.log(f"{folder.path} is already finished: nothing to do; for a new run choose another --output")
                return result
            if world.first and not resumed and folder.config.is_file():
                listener.log(f"{folder.path} has no complete checkpoint yet: starting from the beginning")
            started = time.monotonic()
            parts = set_up_run(config, data_root, listener, world, resumed=resumed)
            parts.setup_seconds = time.monotonic() - started
            if world.first:
                folder.begin(config, parts.config)
                write_json(folder.model_json, describe_model(parts.model))  # so that any checkpoint can be loaded
            seconds_before = resume(parts, folder, listener)
            run(parts, folder, listener, stop_flag, started - seconds_before)
            return finish(parts, folder, listener)


def run(parts: TrainingParts, folder: RunFolder, listener: Listener, stop_flag: "StopFlag", started: float) -> None:
    """Run the training loop from `parts.state` to the last epoch; `started` is the clock at second 0 of the run."""
    config, state, steps, world = parts.config, parts.state, parts.steps_per_epoch, parts.world
    total, warmup = config.epochs * steps, round(config.warmup * steps)
    last_event = last_saved = time.monotonic()
    factor = partial(rate_factor, steps=total, warmup=warmup, final=config.final_rate, schedule=config.schedule)

    def seconds() -> float:
        return time.monotonic() - started

    def save_now() -> float:
        raise_if_not_finite(parts, folder)
        number = state.epoch * steps + state.step
        position = checkpoint.RunPosition(number, state.epoch, state.step, seconds(), parts.data_hash)
        checkpoint.write(folder.checkpoints, state, position, config.keep, world)
        return time.monotonic()

    def save_is_due() -> bool:
        return time.monotonic() - last_saved >= config.save_every

    def stop_if(signal_number: int) -> None:
        if signal_number:
            raise Stopped(signal_number, f"stopped and saved at epoch {state.epoch + 1}, step {state.step} of {steps}")

    listener.begin(parts, config, folder)
    stop_flag.in_loop = True
    while state.epoch < config.epochs:
        for batch in parts.train_source.epoch(state.epoch, int(config.batch_size), first=state.step):
            number = state.epoch * steps + state.step
            parts.train_step(batch, state.epoch, number, factor(number))
            state.step += 1
            # clocks and signals differ between ranks, and all ranks must do the same
            event_due = time.monotonic() - last_event > STEP_EVENT_SECONDS
            stop, save_due, event = world.maximum(stop_flag.signal_number, save_is_due(), event_due)
            if event:
                raise_if_not_finite(parts, folder)
                listener.step(parts, seconds())
                last_event = time.monotonic()
            stop = stop if number + 1 < total else 0  # after the last step the run is finished instead
            if stop or (save_due and state.step < steps):  # the end of an epoch is saved with its metrics, below
                last_saved = save_now()
            stop_if(stop)
        raise_if_not_finite(parts, folder)
        loss, correct, images, _ = world.sum(state.totals).tolist()
        row = {"epoch": state.epoch + 1, "loss": loss / images}
        row[TRAINING_FIGURES[parts.train_data.task]] = correct / images
        row["batch_size"] = int(config.batch_size)  # which may be smaller than the one asked for
        row["learning_rate"] = config.learning_rate * factor((state.epoch + 1) * steps - 1)
        state.epoch, state.step = state.epoch + 1, 0
        state.totals.zero_()
        if state.epoch % parts.evaluate_every == 0 or state.epoch == config.epochs:
            row |= {f"test_{name}": value for name, value in parts.evaluate().items()}
        row["seconds"] = round(seconds(), 3)
        if world.first:
            folder.add_metrics(row)
        listener.epoch(row, parts)
        stop, save_due = world.maximum(stop_flag.signal_number, save_is_due())
        if stop or save_due or state.epoch == config.epochs:
            last_saved = save_now()
        if state.epoch < config.epochs:
            stop_if(stop)


def resume(parts: TrainingParts, folder: RunFolder, listener: Listener) -> float:
    """Bring the training loop to where an interrupted run was; return its seconds so far, 0 for a new run.

    The newest undamaged checkpoint says where that is.
    """
    state, world, seconds = parts.state, parts.world, 0.0
    data_hash = parts.data_hash  # before the first step, as it reads the masks
    # rank 0 checks the hashes for all
    if (found := world.broadcast(checkpoint.latest(folder.checkpoints) if world.first else None)) is not None:
        position, path, problems = found
        for problem in problems:
            listener.log(problem)
        if position.data and (changed := changed_data(position.data, data_hash)):
            raise ValueError(
                f"the {changed} or their classes are not those that the run began with: restore them, or choose "
                f"another --output than {folder.path} for a new run"
            )
        checkpoint.read(path, state, world, parts.config.seed + position.update)
        state.epoch, state.step, seconds = position.epoch, position.step, position.seconds
        if state.epoch < parts.config.epochs:
            listener.log(f"resuming at epoch {state.epoch + 1}, step {state.step} of {parts.steps_per_epoch}")
    if world.first:
        checkpoint.remove_incomplete(folder.checkpoints)  # before the next one is written: this frees space
        folder.drop_metrics_after(state.epoch)
    return seconds


def raise_if_not_finite(parts: TrainingParts, folder: RunFolder) -> None:
    """Check a run for NaN: raise if the loss or a weight is NaN or infinite, before it is saved."""
    state = parts.state
    bad_step, bad_weight = parts.world.maximum(int(state.totals[3].item()), not state.is_finite())
    if not bad_step and not bad_weight:
        return
    what = "the loss" if bad_step else "a weight"
    bad_step = bad_step or state.epoch * parts.steps_per_epoch + state.step  # the loss would show it one step later
    epoch, step = divmod(bad_step - 1, parts.steps_per_epoch)
    size = int(parts.config.batch_size)
    span = slice(step * size, (step + 1) * size)
    if isinstance(parts.train_source, StreamSource):
        indices = list(range(len(parts.train_data)))[span]
    else:
        indices = parts.train_source.order(epoch)[0][span].tolist()
    names = [parts.train_data.describe(i) for i in indices]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    saved = (
        "the saved checkpoints are from before" if checkpoint.exists(folder.checkpoints) else "no checkpoint was saved"
    )
    raise FloatingPointError(
        f"{what} is no longer finite in epoch {epoch + 1}, step {step + 1} (images: {shown}). Try a smaller "
        f"--learning-rate than {parts.config.learning_rate:g}, --clip 1, --warmup 5 or --precision fp32; {saved}"
    )


def finish(parts: TrainingParts, folder: RunFolder, listener: Listener) -> dict[str, Any]:
    """Finish after the training loop: write the model and the result."""
    if not len(parts.evaluate.answers):  # in a run that was resumed after its last epoch
        parts.evaluate()  # before LoRA is merged, which changes the evaluator's model
    row = parts.world.broadcast(folder.read_metrics()[-1] if parts.world.first else {})
    result = {name.removeprefix("test_"): value for name, value in row.items() if name.startswith("test_")}
    if "balanced" in result:
        found = class_accuracies(parts.test_data.labels, parts.evaluate.answers[:, 0].int().tolist())
        result["classes"] = {parts.test_data.class_names[i]: list(counts) for i, counts in found.items()}
    result |= {"epochs": parts.config.epochs, "seconds": row["seconds"], "memory": parts.peak_memory}
    result["ready"] = round(parts.setup_seconds, 3)
    model = merge_lora(parts.evaluate.current_model())
    card = parts.model.card
    if card.task == "multilabel" and parts.test_data.targets is not None:
        card = replace(card, thresholds=best_thresholds(parts.evaluate.answers, parts.test_data.targets))
    training = {"config": parts.config.to_dict(), "result": result, "training_images": len(parts.train_data)}
    training["date"] = time.strftime("%Y-%m-%d")
    if card.standard is not None:
        training["standard"] = [list(each) for each in card.standard]  # the spread of the numbers that were learned
    model.card = replace(card, name=folder.path.resolve().name, training=training)
    fold_standard(model)
    if parts.world.first:
        save(model, folder.model)
        write_model_card(model, folder.model)
        write_json(folder.result, result)
    parts.world.barrier()
    listener.end(result, folder)
    return result


# --- signals ----------------------------------------------------------------------------------------------------------


class Stopped(BaseException):  # like KeyboardInterrupt, it must not be caught as an error on its way out
    """The error that a run was stopped by a signal, and everything is saved."""

    folder: Path | None = None
    """The folder of a run that can be resumed; `vitreous.train` sets it."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class StopFlag:
    """The signal that a run received, 0 if none."""

    signal_number = 0
    in_loop = False
    """Whether the loop reads the flag between steps. Before that, a signal ends the run at once."""


@contextmanager
def stop_on_signal(*, ignore_repeats: bool = False) -> Iterator[StopFlag]:
    """Stop the training loop on a signal: turn the first SIGINT or SIGTERM into a flag; a second has its usual effect.

    Unless `ignore_repeats`: Ctrl-C reaches the ranks of a run twice, from the terminal and again through `torchrun`,
    which ends a rank that takes too long.
    """
    flag = StopFlag()
    before: dict[int, Any] = {}

    def receive(number: int, frame: object) -> None:
        flag.signal_number = number
        for each, handler in before.items():
            signal.signal(each, signal.SIG_IGN if ignore_repeats else handler)
        if not flag.in_loop:
            raise Stopped(number, "stopped while setting up")

    if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
        before |= {each: signal.signal(each, receive) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
