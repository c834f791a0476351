"""`train`: a config in, a run folder out. The whole of training, top to bottom.

A run that ended early, however it ended, goes on where it was when `train` is called again with the same config and
folder, and ends with the same bits as one that was never interrupted: on a CPU with as many threads, on CUDA with
`deterministic`.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.runtime.distributed import join_world
from vitreous.runtime.files import write_json
from vitreous.training import checkpoint
from vitreous.training.assemble import Parts, assemble, set_up
from vitreous.training.batches import epoch_order
from vitreous.training.config import TrainConfig
from vitreous.training.folder import RunFolder
from vitreous.training.interrupt import Flag, asked_to_stop, stop_if
from vitreous.training.listeners import Everyone, Listener
from vitreous.training.policies import merge
from vitreous.training.schedule import rate
from vitreous.training.stream import Streamed
from vitreous.weights.formats.vitreous import describe_model
from vitreous.weights.model_card import write_model_card
from vitreous.weights.save import save

TELL_EVERY = 0.5  # seconds between two looks at the running loss, each of which waits for the device


def train(
    config: TrainConfig, output: str | Path, *, data_root: Path | None = None, listeners: Sequence[Listener] = ()
) -> dict[str, Any]:
    """Train in folder `output`, or go on training there; returns what `result.json` holds.

    Started by `torchrun`, all processes call this with the same arguments and train one model together.
    """
    with join_world(set_up(config)) as world, asked_to_stop(patient=world.distributed) as asked:
        folder, tell = RunFolder(world.broadcast(output)), Everyone(listeners)
        with folder.trouble_explained(), folder.claimed() if world.first else nullcontext():
            # one rank looks, and the others take its word: a shared disk may show each something else
            config, result = world.broadcast(
                (folder.check(config), folder.read_result()) if world.first else (config, None)
            )
            if result is not None:
                tell.say(f"{folder.path} is finished already: choose another --output for another run")
                return result
            started = time.monotonic()
            parts = assemble(config, data_root, tell, world)
            parts.ready = time.monotonic() - started
            if world.first:
                folder.begin(config, parts.config)
                write_json(folder.described, describe_model(parts.model))  # so that any checkpoint can be loaded
            before = resume(parts, folder, tell)
            return run(parts, folder, tell, asked, started - before)


def run(parts: Parts, folder: RunFolder, tell: Listener, asked: Flag, started: float) -> dict[str, Any]:
    """The loop itself, from where `parts.state` is to the end; `started` is when the clock would have read 0."""
    config, state, steps, world = parts.config, parts.state, parts.steps, parts.world
    total, warm = config.epochs * steps, round(config.warmup * steps)
    last_told = last_saved = time.monotonic()

    def seconds() -> float:
        return time.monotonic() - started

    def save_now() -> float:
        refuse_nonfinite(parts)
        moment = checkpoint.Moment(state.epoch * steps + state.step, state.epoch, state.step, seconds(), parts.data)
        checkpoint.write(folder.checkpoints, state, moment, config.keep, world)
        return time.monotonic()

    def saving_is_due() -> bool:
        return time.monotonic() - last_saved >= config.save_every

    tell.begin(parts, config, folder)
    asked.watched = True
    while state.epoch < config.epochs:
        for batch in parts.source.epoch(state.epoch, int(config.batch_size), first=state.step):
            number = state.epoch * steps + state.step
            factor = rate(number, total, warm, config.final_rate)
            parts.update(batch, state.epoch, number, factor)
            state.step += 1
            # clocks and signals differ between ranks, and all have to do the same
            stop, save, look = world.maximum(asked.number, saving_is_due(), time.monotonic() - last_told > TELL_EVERY)
            if look:
                refuse_nonfinite(parts)
                tell.step(parts, seconds())
                last_told = time.monotonic()
            stop = stop if number + 1 < total else 0  # so near the end the run is finished
            if stop or (save and state.step < steps):  # the end of an epoch is saved with its metrics, below
                last_saved = save_now()
            stop_if(stop, state.epoch, state.step, steps)
        refuse_nonfinite(parts)
        loss, right, images, _ = world.sum(state.totals).tolist()
        row = {"epoch": state.epoch + 1, "loss": loss / images, "top1": right / images}
        row["batch_size"] = int(config.batch_size)  # which may be less than was asked for
        row["learning_rate"] = config.learning_rate * rate(
            (state.epoch + 1) * steps - 1, total, warm, config.final_rate
        )
        state.epoch, state.step = state.epoch + 1, 0
        state.totals.zero_()
        if state.epoch % config.evaluate_every == 0 or state.epoch == config.epochs:
            row |= {f"test_{name}": value for name, value in parts.measure().items()}
        row["seconds"] = round(seconds(), 3)
        if world.first:
            folder.add_metrics(row)
        tell.epoch(row, parts)
        stop, save = world.maximum(asked.number, saving_is_due())
        if stop or save or state.epoch == config.epochs:
            last_saved = save_now()
        if state.epoch < config.epochs:
            stop_if(stop, state.epoch, 0, steps)
    return finish(parts, folder, tell)


def resume(parts: Parts, folder: RunFolder, tell: Listener) -> float:
    """Go back to the newest whole checkpoint, where there is one; returns the seconds that were spent before it."""
    state, world, seconds = parts.state, parts.world, 0.0
    # one rank checks the hashes, and the others take its word
    if (found := world.broadcast(checkpoint.latest(folder.checkpoints) if world.first else None)) is not None:
        moment, path, problems = found
        for problem in problems:
            tell.say(problem)
        if moment.data and moment.data != parts.data:
            message = "the images to learn from, or their classes, are not those that the run began with"
            raise ValueError(f"{message}: put them back, or choose another --output for a new run than {folder.path}")
        checkpoint.read(path, state, world, parts.config.seed + moment.update)
        state.epoch, state.step, seconds = moment.epoch, moment.step, moment.seconds
        if state.epoch < parts.config.epochs:
            tell.say(f"goes on in epoch {state.epoch + 1} after {state.step} of {parts.steps} updates")
    if world.first:
        checkpoint.sweep(folder.checkpoints)  # before the next one is written: on a full disk that is room
        folder.forget_after(state.epoch)
    return seconds


def refuse_nonfinite(parts: Parts) -> None:
    """Stop where the loss or a weight is NaN or infinite, before anything of it is saved."""
    state = parts.state
    bad, lost = parts.world.maximum(int(state.totals[3].item()), not state.finite())
    if not bad and not lost:
        return
    what = "the loss" if bad else "a weight"
    bad = bad or state.epoch * parts.steps + state.step  # the loss would tell at the next update
    epoch, step = divmod(bad - 1, parts.steps)
    size = int(parts.config.batch_size)
    span = slice(step * size, (step + 1) * size)
    if isinstance(parts.learned, Streamed):
        indices = list(range(len(parts.learned)))[span]
    else:
        indices = epoch_order(parts.config.seed, epoch, len(parts.learned), parts.config.repeats)[0][span].tolist()
    names = [parts.learned.describe(i) for i in indices]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    raise FloatingPointError(
        f"{what} is not a finite number any more, in epoch {epoch + 1}, update {step + 1} (images: {shown}). "
        f"Try a smaller --learning-rate than {parts.config.learning_rate:g}, --clip 1, --warmup 5 or --precision fp32; "
        "what is saved is from before"
    )


def finish(parts: Parts, folder: RunFolder, tell: Listener) -> dict[str, Any]:
    """Write the model and what it achieved."""
    row = parts.world.broadcast(folder.read_metrics()[-1] if parts.world.first else {})
    result = {name: row[f"test_{name}"] for name in ("top1", "top5", "loss", "images")}
    result |= {"epochs": parts.config.epochs, "seconds": row["seconds"], "memory": parts.peak}
    result["ready"] = round(parts.ready, 3)
    model = merge(parts.measure.whole())
    message = {"config": parts.config.to_dict(), "result": result, "training_images": len(parts.learned)}
    message["date"] = time.strftime("%Y-%m-%d")
    model.card = replace(parts.model.card, name=folder.path.resolve().name, training=message)
    if parts.world.first:
        save(model, folder.model)
        write_model_card(model, folder.model)
        write_json(folder.result, result)
    parts.world.barrier()
    tell.end(result, folder)
    return result
