"""`train`: a config in, a run folder out. The whole of training, top to bottom.

A run that ended early, however it ended, goes on where it was when `train` is called again with the same config and
folder, and ends with the same bits as one that was never interrupted: on a CPU with as many threads, on CUDA with
`deterministic`.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.train import checkpoint
from vitreous.train.assemble import Parts, assemble
from vitreous.train.config import TrainConfig
from vitreous.train.folder import RunFolder
from vitreous.train.interrupt import asked_to_stop
from vitreous.train.listen import Everyone, Listener
from vitreous.train.policy import merge
from vitreous.train.schedule import rate
from vitreous.train.source import epoch_order
from vitreous.weights.save import describe, save, write_json

TELL_EVERY = 0.5  # seconds between two looks at the running loss, each of which waits for the device


def train(
    config: TrainConfig, output: str | Path, *, data_root: Path | None = None, listeners: Sequence[Listener] = ()
) -> dict[str, Any]:
    """Train in folder `output`, or go on training there; returns what `result.json` holds."""
    folder, tell = RunFolder(output), Everyone(listeners)
    with folder.claimed(), folder.full_disk_explained(), asked_to_stop() as asked:
        config = folder.check(config)
        if (result := folder.read_result()) is not None:
            tell.say(f"{folder.path} is finished already: choose another --output for another run")
            return result
        started = time.monotonic()
        parts = assemble(config, data_root, tell)
        folder.begin(config, parts.config)
        write_json(folder.described, describe(parts.model))  # so that any checkpoint can be loaded
        config, state, steps = parts.config, parts.state, parts.steps
        before = resume(parts, folder, tell)
        total, warm = config.epochs * steps, round(config.warmup * steps)
        last_told = last_saved = time.monotonic()

        def seconds() -> float:
            return before + time.monotonic() - started

        def save_now() -> float:
            refuse_nonfinite(parts)
            update = state.epoch * steps + state.step
            moment = checkpoint.Moment(update, state.epoch, state.step, seconds(), parts.data)
            checkpoint.write(folder.checkpoints, state.copy(), moment, config.keep)
            return time.monotonic()

        tell.begin(parts, config, folder)
        asked.watched = True
        while state.epoch < config.epochs:
            for batch in parts.source.epoch(state.epoch, int(config.batch_size), first=state.step):
                number = state.epoch * steps + state.step
                factor = rate(number, total, warm, config.final_rate)
                parts.update(batch, state.epoch, number, factor)
                state.step += 1
                if time.monotonic() - last_told > TELL_EVERY:
                    refuse_nonfinite(parts)
                    tell.step(parts, seconds())
                    last_told = time.monotonic()
                if state.step < steps:  # the end of an epoch is saved with its metrics, below
                    if asked.number or time.monotonic() - last_saved >= config.save_every:
                        last_saved = save_now()
                    asked.raise_if_set(state.epoch, state.step, steps)
            refuse_nonfinite(parts)
            loss, right, pictures, _ = state.totals.tolist()
            row = {"epoch": state.epoch + 1, "loss": loss / pictures, "top1": right / pictures}
            row["learning_rate"] = factor * config.learning_rate
            state.epoch, state.step = state.epoch + 1, 0
            state.totals.zero_()
            if state.epoch % config.evaluate_every == 0 or state.epoch == config.epochs:
                row |= {f"test_{name}": value for name, value in parts.measure().items()}
            row["seconds"] = round(seconds(), 3)
            folder.add_metrics(row)
            tell.epoch(row, parts)
            if asked.number or time.monotonic() - last_saved >= config.save_every or state.epoch == config.epochs:
                last_saved = save_now()
            if state.epoch < config.epochs:
                asked.raise_if_set(state.epoch, 0, steps)

        return finish(parts, folder, tell)


def resume(parts: Parts, folder: RunFolder, tell: Listener) -> float:
    """Go back to the newest whole checkpoint, where there is one; returns the seconds that were spent before it."""
    state, seconds = parts.state, 0.0
    if (found := checkpoint.latest(folder.checkpoints)) is not None:
        moment, saved, problems = found
        for problem in problems:
            tell.say(problem)
        if moment.data and moment.data != parts.data:
            told = "the pictures to learn from, or their classes, are not those that the run began with"
            raise ValueError(f"{told}: put them back, or choose another --output for a new run than {folder.path}")
        state.restore(saved)
        state.epoch, state.step, seconds = moment.epoch, moment.step, moment.seconds
        if state.epoch < parts.config.epochs:
            tell.say(f"goes on in epoch {state.epoch + 1} after {state.step} of {parts.steps} updates")
    folder.forget_after(state.epoch)
    return seconds


def refuse_nonfinite(parts: Parts) -> None:
    """Stop where the loss or a weight is NaN or infinite, before anything of it is saved."""
    state = parts.state
    if bad := int(state.totals[3].item()):
        what = "the loss"
    elif not state.finite():
        what, bad = "a weight", state.epoch * parts.steps + state.step  # the loss would tell at the next update
    else:
        return
    epoch, step = divmod(bad - 1, parts.steps)
    size = int(parts.config.batch_size)
    indices = epoch_order(parts.config.seed, epoch, len(parts.learned), parts.config.repeats)[0]
    names = [parts.learned.describe(i) for i in indices[step * size : (step + 1) * size].tolist()]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    raise FloatingPointError(
        f"{what} is not a finite number any more, in epoch {epoch + 1}, update {step + 1} (pictures: {shown}). "
        f"Try a smaller --learning-rate than {parts.config.learning_rate:g}, --clip 1, --warmup 5 or --precision fp32; "
        "what is saved is from before"
    )


def finish(parts: Parts, folder: RunFolder, tell: Listener) -> dict[str, Any]:
    """Write the model and what it achieved."""
    row = folder.read_metrics()[-1]
    result = {name: row[f"test_{name}"] for name in ("top1", "top5", "loss", "pictures")}
    result |= {"epochs": parts.config.epochs, "seconds": row["seconds"], "memory": parts.peak}
    model = merge(parts.measure.refresh())
    model.card = replace(
        parts.model.card, name=folder.path.resolve().name, training={"config": parts.config.to_dict(), "result": result}
    )
    save(model, folder.model)
    write_json(folder.result, result)
    tell.end(result, folder)
    return result
