"""A run killed at random moments ends with the bits of one that was left alone: `python benchmarks/resume.py`.

A whole run comes first; its bits are the truth. Then the same run again and again in a process of its own, ended by
SIGKILL at a random moment, and called once more until it finishes. A checkpoint is written after every update, so that
kills fall into writes too. Compared are the model's file and every tensor of the last checkpoint: weights,
optimiser, average of weights, random states.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHANGES = {"epochs": 3, "average": 0.99, "stochastic_depth": 0.1, "dropout": 0.1, "flip": True, "augment": "trivial"}


def child(output: str, changes: str) -> None:
    """One sitting of the run."""
    from dataclasses import replace

    import torch

    from vitreous.train.loop import train
    from vitreous.train.recipes import RECIPES

    torch.set_num_threads(1)
    config = replace(RECIPES["digits"].config, snapshots=0, **json.loads(changes))
    train(config, output)


def bits(folder: Path) -> dict[str, str]:
    """What has to be equal, as hashes."""
    from vitreous.train.checkpoint import digest

    newest = max((folder / "checkpoints").glob("step-*.safetensors"))
    return {"model": digest(folder / "model/model.safetensors"), "checkpoint": digest(newest), "name": newest.name}


def start(folder: Path, changes: dict[str, object], log: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, __file__, "--child", str(folder), json.dumps(changes)]
    return subprocess.Popen(words, stdout=log.open("ab"), stderr=subprocess.STDOUT)


def reached(folder: Path) -> int:
    """The update of the newest checkpoint."""
    return max((int(path.stem[5:]) for path in (folder / "checkpoints").glob("step-*.json")), default=0)


def wait_until(folder: Path, update: int, process: subprocess.Popen[bytes]) -> None:
    """Until the run has come so far, or has ended."""
    while process.poll() is None and reached(folder) < update:
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--changes", default="{}", help="fields of TrainConfig, as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child)
        return
    changes = {**CHANGES, "device": given.device, "deterministic": given.device != "cpu", "save_every": 0.0}
    changes |= json.loads(given.changes)
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        root, log = Path(name), Path(name) / "log.txt"
        os.environ["VITREOUS_CACHE"] = str(root / "cache")
        whole = root / "whole"
        begun = time.monotonic()
        if start(whole, changes, log).wait():
            sys.exit(log.read_text())
        spent = time.monotonic() - begun
        truth = bits(whole)
        updates = int(truth["name"][5:14])
        kills = equal = runs = writing = 0
        while kills < given.kills:
            runs += 1
            folder, where = root / f"killed-{runs}", []
            while not (folder / "result.json").exists():
                process = start(folder, changes, log)
                if kills < given.kills and len(where) < 5:
                    first = min(
                        reached(folder) + 1, updates
                    )  # killed after the last update, it has its result to write
                    wait_until(folder, chance.randint(first, updates), process)
                    time.sleep(chance.uniform(0, 0.1))
                    process.kill()
                if process.wait() == -9:
                    kills += 1
                    where.append(reached(folder))
                    writing += any((folder / "checkpoints").glob(".step-*"))
                elif process.returncode:
                    sys.exit(log.read_text())
            same = bits(folder) == truth
            equal += same
            told = "the same bits" if same else "OTHER BITS"
            print(f"run {runs}: killed after updates {where} of {updates}: {told}", flush=True)
        print(
            f"{kills} kills in {runs} runs on {given.device}, {writing} of them in the middle of writing a checkpoint: "
            f"{equal} of {runs} runs ended bit-identical to the uninterrupted one ({spent:.0f} s)"
        )
        sys.exit(equal != runs)


if __name__ == "__main__":
    main()
