"""A run killed at random moments ends with the bits of an uninterrupted run: `python benchmarks/resume.py`.

First an uninterrupted run. Then the same run again and again, each attempt in a process of its own that is killed
(SIGKILL) at a random moment and started again until the run finishes. A checkpoint is written after every step, and
half of the kills wait until a file is being written. Compared are the model's file, every tensor of the last checkpoint
(weights, optimiser, average of the weights, random states) and the metrics except for their seconds. Each attempt must
start at the newest checkpoint, and no incomplete file may remain at the end. `--ranks 2` runs two processes (gloo) and
kills one of them at random; the other then fails. `--parallel fsdp` shards the weights over them.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener
from vitreous.training.loop import train
from vitreous.training.recipes import RECIPES
from vitreous.training.run_folder import RunFolder
from vitreous.training.setup import TrainingParts

FORKED = multiprocessing.get_context("fork")  # torch is imported once: an attempt starts at once

CHANGES = {"epochs": 3, "average": 0.99, "stochastic_depth": 0.1, "dropout": 0.1, "flip": True, "augment": "trivial"}

STARTING = 0.1  # share of kills at any moment from the process's start on


def child(output: Path, changes: dict[str, object], log: Path, environment: dict[str, str]) -> None:
    """Run one attempt, in a process of its own."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    config = replace(RECIPES["digits"].config, snapshots=0, **changes)
    train(config, output, listeners=[FirstStep(output)] if environment.get("RANK", "0") == "0" else [])


class FirstStep(Listener):
    """Write the step that an attempt starts with."""

    def __init__(self, output: Path) -> None:
        self.path = Path(f"{output}.first")

    def begin(self, parts: TrainingParts, config: TrainConfig, folder: RunFolder) -> None:
        self.path.write_text(str(parts.state.epoch * parts.steps_per_epoch + parts.state.step))


def bits(folder: Path) -> dict[str, object]:
    """What has to be equal, as hashes: each tensor of the model and of the last checkpoint, as it lies in its file."""
    from safetensors import safe_open

    newest = max((folder / "checkpoints").glob("step-*.json"))
    files = [folder / "model/model.safetensors", *sorted(newest.parent.glob(f"{newest.stem}/*.safetensors"))]
    files += newest.parent.glob(f"{newest.stem}.safetensors")
    found: dict[str, object] = {}
    for file in files:
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118  # no mapping
                data = opened.get_tensor(name).tobytes()
                found[f"{file.relative_to(folder)}:{name}"] = hashlib.sha256(data).hexdigest()
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found |= {f"metrics.jsonl:{row['epoch']}:{name}": value for name, value in row.items() if name != "seconds"}
    return found


def left_over(folder: Path) -> list[str]:
    """What a killed process left that is not whole: temporary files, and weights without their description."""
    hidden = [path for path in folder.rglob("*") if path.name.startswith(".")]
    bare = [
        path for path in (folder / "checkpoints").glob("step-*") if not path.with_name(f"{path.stem}.json").exists()
    ]
    return sorted(str(path.relative_to(folder)) for path in hidden + bare)


class Attempt:
    """The processes of one attempt at a run."""

    def __init__(self, folder: Path, changes: dict[str, object], log: Path, ranks: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if ranks > 1 else {}
        self.processes = []
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            process = FORKED.Process(target=child, args=(folder, changes, log, common | own))
            process.start()
            self.processes.append(process)

    def going(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()

    def wait(self) -> list[int]:
        """How each ended; whoever still waits for a killed one after 20 s is ended too."""
        while self.going():
            time.sleep(0.005)
        for process in self.processes:
            process.join(20 if any(each.exitcode for each in self.processes) else None)
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in self.processes]


def reached(folder: Path) -> int:
    """The update of the newest checkpoint."""
    return max((int(path.stem[5:]) for path in (folder / "checkpoints").glob("step-*.json")), default=0)


def wait_until(folder: Path, update: int, attempt: Attempt) -> None:
    """Until the run has come so far, or has ended."""
    while attempt.going() and reached(folder) < update:
        time.sleep(0.005)


def wait_for_a_write(folder: Path, attempt: Attempt) -> None:
    """Until a part of a checkpoint lies there half written, or the run has ended."""
    while attempt.going() and not any((folder / "checkpoints").glob(".step-*")):
        time.sleep(0.0005)  # a write takes a few milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--parallel", default="ddp")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into-writes", type=float, default=0.5, help="share of kills that wait for a write")
    parser.add_argument("--changes", default="{}", help="fields of TrainConfig, as JSON")
    given = parser.parse_args()
    changes = {**CHANGES, "device": given.device, "deterministic": given.device != "cpu", "save_every": 0.0}
    changes |= {"parallel": given.parallel} | json.loads(given.changes)
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        root, log = Path(name), Path(name) / "log.txt"
        os.environ["VITREOUS_CACHE"] = str(root / "cache")
        whole = root / "whole"
        started = time.monotonic()
        if any(Attempt(whole, changes, log, given.ranks).wait()):
            sys.exit(log.read_text())
        spent = time.monotonic() - started
        truth = bits(whole)
        updates = reached(whole)
        kills = equal = runs = writing = lost = most_files = 0
        started = time.monotonic()
        while kills < given.kills:
            runs += 1
            folder, where = root / f"killed-{runs}", []
            note = Path(f"{folder}.first")
            while not (folder / "result.json").exists():
                note.unlink(missing_ok=True)
                newest = reached(folder)
                attempt = Attempt(folder, changes, log, given.ranks)
                if kills < given.kills and len(where) < 5:
                    if chance.random() < STARTING:
                        time.sleep(chance.uniform(0, spent / 2))
                    else:  # killed after the last update, it has its result to write
                        first = min(newest + 1, updates)
                        wait_until(folder, chance.randint(first, min(first + updates // 4, updates)), attempt)
                        time.sleep(chance.uniform(0, 0.1))
                        if chance.random() < given.into_writes:
                            wait_for_a_write(folder, attempt)
                    attempt.kill(chance.randrange(given.ranks))
                codes = attempt.wait()
                begins = note.read_text() if note.exists() else ""
                lost += begins not in ("", str(newest))  # nothing where it was killed before it began
                most_files = max(most_files, len(left_over(folder)))
                if -signal.SIGKILL in codes:
                    kills += 1
                    where.append(reached(folder))
                    writing += any((folder / "checkpoints").glob(".step-*"))
                elif any(codes):
                    sys.exit(log.read_text())
            found = bits(folder)
            found |= {f"left over: {name}": "" for name in left_over(folder)}
            other = [name for name in found.keys() | truth.keys() if found.get(name) != truth.get(name)]
            equal += not other
            verdict = f"OTHER BITS in {len(other)} values, such as {min(other)}" if other else "the same bits"
            print(f"run {runs}: killed after steps {where} of {updates}: {verdict}", flush=True)
        print(
            f"{kills} kills in {runs} runs on {given.ranks} × {given.device}, {writing} of them in the middle of "
            f"writing a checkpoint: "
            f"{equal} of {runs} runs ended bit-identical to the uninterrupted one ({spent:.0f} s), metrics too, with "
            f"nothing left over; {lost} attempts started elsewhere than at the newest checkpoint; at most {most_files} "
            f"unfinished files lay there after a kill; {time.monotonic() - started:.0f} s in all"
        )
        sys.exit(equal != runs or lost > 0)


if __name__ == "__main__":
    main()
