"""What `test_two_ranks.py` runs on two processes, in one sitting, since processes are slow to start.

`python two_ranks.py DATA ROOT`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; each run is a folder of ROOT.
"""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tiny_runs import LogKeeper, break_off, plain, tiny

from vitreous.data.image_dataset import TASKS
from vitreous.training.listeners import Listener
from vitreous.training.loop import train
from vitreous.training.snapshots import SnapshotRecorder

ENGINES = ("ddp", "fsdp")
EQUAL = {"epochs": 2, "learning_rate": 1e-3}  # what is compared between one process and two


class Statistics(Listener):
    """Sees that all ranks have the same running statistics, and not those of their own images alone."""

    def epoch(self, row, parts):
        held = parts.model.bn1.running_mean.clone()
        assert held.abs().max() > 0
        assert all(torch.equal(held, other) for other in parts.world.gather(held))


def tuned(root: Path) -> dict:
    """A checkpoint of one process, gone on with by LoRA."""
    return {"model": str(root / "single-start/model"), "pretrained": True, "policy": "lora", "epochs": 2}


def task_data(root: Path, task: str) -> Path:
    """Where `make_task` wrote images with labels, numbers or masks."""
    return root / task if task == "segment" else root / task / "table.csv"


STOPPED = 4  # the update after which a run is broken off


def main(data: Path, root: Path) -> None:
    dist.init_process_group("gloo")  # for all runs
    rank = dist.get_rank()
    patch = pytest.MonkeyPatch()
    for engine in ENGINES:
        train(plain(data, parallel=engine, **EQUAL), root / f"adamw-{engine}")
        train(plain(data, parallel=engine, optimizer="muon", **EQUAL), root / f"muon-{engine}")
        train(plain(data, parallel=engine, accumulate=2, clip=0.5, **EQUAL), root / f"parts-{engine}")
        whole = tiny(data, parallel=engine, snapshots=3)  # everything on that keeps a state or draws numbers
        train(whole, root / f"whole-{engine}", listeners=[SnapshotRecorder()])
        often = tiny(data, parallel=engine, snapshots=3, save_every=0)
        for name in ("broken", "half"):
            break_off(often, root / f"{name}-{engine}", patch, STOPPED, listeners=[SnapshotRecorder()])
        listener = LogKeeper()
        train(often, root / f"broken-{engine}", listeners=[listener, SnapshotRecorder()])
        assert "resuming at epoch 2, step 0 of 3" in listener.lines, listener.lines
        with patch.context() as traced:
            if engine == "fsdp":  # block by block: traced with their backward passes, but C++ is compiled for DDP alone
                traced.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
            train(plain(data, parallel=engine, compile=True, **EQUAL), root / f"compiled-{engine}")
        resnet = {"model": "resnet18_small", "optimizer": "sgd", "image_size": 8, "epochs": 1}
        train(plain(data, parallel=engine, **resnet), root / f"resnet-{engine}", listeners=[Statistics()])
        if find_spec("peft"):
            train(plain(data, parallel=engine, **tuned(root)), root / f"lora-{engine}")
        for task in TASKS[1:]:
            train(plain(task_data(root, task), parallel=engine, **EQUAL), root / f"{task}-{engine}")
        single = root / f"single-{engine}"  # broken off by one process before we began
        train(plain(data, parallel=engine, save_every=0), single)
    if find_spec("datasets"):
        patch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.1, raising=False)  # 5 s after each epoch
        stream = tiny(root / "shards", stream=True, save_every=0)
        train(stream, root / "whole-stream")
        break_off(stream, root / "broken-stream", patch, STOPPED + 1)
        train(stream, root / "broken-stream")
    (root / f"done-{rank}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
