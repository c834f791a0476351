"""One run on two processes (gloo): the same losses as on one, the same bits after a break, any number of ranks next."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tiny_runs import break_off, make_images, make_shards, make_task, parts_of, plain, tiny
from two_ranks import ENGINES, EQUAL, STOPPED, task_data, tuned

from vitreous.data.image_dataset import TASKS
from vitreous.predict.scores import SCORES
from vitreous.training import checkpoint
from vitreous.training.loop import train

pytestmark = pytest.mark.slow  # each starts processes

SUPPORT = Path(__file__).parents[1] / "support"


def start(words, ranks=2, **environment):
    """The same command on each rank; returns the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    common |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env=os.environ | common | environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("zoo") / "zoo", each=11)  # 33 images: not a multiple of two


@pytest.fixture(scope="module")
def root(data, tmp_path_factory):
    """Run everything in `two_ranks.py`."""
    root = tmp_path_factory.mktemp("ranks")
    make_shards(root / "shards")
    for task in TASKS[1:]:
        make_task(root / task, task, images=33)  # 11 test images: not a multiple of two
    patch = pytest.MonkeyPatch()
    train(plain(data, epochs=1), root / "single-start")
    for engine in ENGINES:
        break_off(plain(data, parallel=engine, save_every=0), root / f"single-{engine}", patch, STOPPED)
    processes = start([SUPPORT / "two_ranks.py", str(data), str(root)])
    try:
        ended = [process.communicate(timeout=280)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # one that is late would slow down every test after
    assert all((root / f"done-{rank}").exists() for rank in range(2)), "\n".join(ended)
    return root


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """The same on one process."""
    root = tmp_path_factory.mktemp("alone")
    train(plain(data, **EQUAL), root / "adamw")
    train(plain(data, optimizer="muon", **EQUAL), root / "muon")
    train(plain(data, clip=0.5, **EQUAL), root / "parts")
    return root


def rows(folder, *names):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([[row[name] for name in names] for row in found], dtype=torch.float64)


def tensors(path):
    """What a checkpoint holds, whatever it was written by: names to tensors, as slices lie in its files."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            found |= {(name, file.name): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_losses_equal_those_of_one_process(root, alone, engine):
    ours, theirs = (rows(folder, "loss", "test_loss") for folder in (root / f"adamw-{engine}", alone / "adamw"))
    assert len(ours) == EQUAL["epochs"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_share_of_right_answers_counts_each_image_once(root, alone, engine):
    ours, theirs = (
        rows(folder, "top1", "test_top1", "test_top5", "test_images")
        for folder in (root / f"adamw-{engine}", alone / "adamw")
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("task", TASKS[1:])
def test_labels_numbers_and_masks_are_learned_as_on_one_process(root, tmp_path, task, engine):
    train(plain(task_data(root, task), **EQUAL), tmp_path / task)
    names = ["loss", "test_loss", f"test_{SCORES[task].main}"]
    both, one = rows(root / f"{task}-{engine}", *names), rows(tmp_path / task, *names)
    torch.testing.assert_close(both, one, rtol=1e-4, atol=1e-5)


def test_fsdp_equals_ddp(root):
    ours, theirs = (rows(root / f"adamw-{engine}", "loss", "test_loss") for engine in ENGINES)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_muon_equals_one_process_to_a_thousandth(root, alone, engine):
    ours, theirs = (rows(folder, "loss", "test_loss") for folder in (root / f"muon-{engine}", alone / "muon"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert not torch.equal(ours, rows(root / f"adamw-{engine}", "loss", "test_loss"))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_update_in_parts_exchanges_gradients_once_and_equals_the_whole(root, alone, engine):
    ours, theirs = (rows(folder, "loss", "test_loss") for folder in (root / f"parts-{engine}", alone / "parts"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", [*ENGINES, "stream"])
def test_broken_off_and_resumed_on_two_ranks_ends_with_the_same_bits(root, engine):
    if engine == "stream":
        pytest.importorskip("datasets")
    whole, broken = (root / f"{name}-{engine}" for name in ("whole", "broken"))
    one, other = (tensors(checkpoint.latest(folder / "checkpoints")[1]) for folder in (whole, broken))
    assert any("rank/1/random" in name for name, _ in one)
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    models = [(folder / "model/model.safetensors").read_bytes() for folder in (whole, broken)]
    assert models[0] == models[1]
    names = ("loss", "top1", "test_loss", "test_top1")
    assert torch.equal(rows(whole, *names), rows(broken, *names))
    snapshots = [sorted(path.name for path in (folder / "snapshots").glob("*.npz")) for folder in (whole, broken)]
    assert snapshots[0] == snapshots[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_resumed_on_one_process_the_state_is_equal_and_the_run_ends(root, data, engine):
    config, folder = tiny(data, parallel=engine, snapshots=3, save_every=0), root / f"half-{engine}"
    position, path, _ = checkpoint.latest(folder / "checkpoints")
    assert path.is_dir()
    parts = parts_of(config)
    checkpoint.read(path, parts.state)
    held = parts.state.copy()
    slices = tensors(path)
    for name, value in held.items():
        parts_of_it = [kept for (key, _), kept in sorted(slices.items()) if key == name]
        if name in ("totals", "random/cpu"):
            continue
        whole = torch.cat(parts_of_it) if value.dim() else parts_of_it[0]
        assert torch.equal(value, whole), name
    totals = [kept for (key, _), kept in slices.items() if key.startswith("rank/") and key.endswith("/totals")]
    assert len(totals) == 2
    assert torch.equal(held["totals"], sum(totals))
    assert position.update == STOPPED - 1
    result = train(config, folder)
    assert result["epochs"] == 2
    assert len(rows(folder, "loss")) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_what_one_process_began_two_finish(root, data, tmp_path, engine):
    train(plain(data), tmp_path / "run")
    ours, theirs = (rows(folder, "loss", "test_loss") for folder in (root / f"single-{engine}", tmp_path / "run"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_compiled_step_is_the_same_step(root, alone, engine):
    ours, theirs = (rows(folder, "loss", "test_loss") for folder in (root / f"compiled-{engine}", alone / "adamw"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_a_resnet_learns_alike_under_both_engines(root):
    """That its running statistics are the same on all ranks is seen to in `two_ranks.py`."""
    ours, theirs = (rows(root / f"resnet-{engine}", "loss", "test_loss") for engine in ENGINES)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


def test_lora_learns_on_several_ranks_too(root, data, tmp_path):
    pytest.importorskip("peft")
    train(plain(data, **tuned(root)), tmp_path / "run")
    for engine in ENGINES:
        ours, theirs = (rows(folder, "loss", "test_loss") for folder in (root / f"lora-{engine}", tmp_path / "run"))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_model_that_is_saved_is_a_plain_one(root, alone, engine):
    from vitreous.weights.load import load

    model = load(root / f"adamw-{engine}/model")
    other = load(alone / "adamw/model")
    for (name, ours), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3, msg=name)


def test_when_one_of_two_is_killed_the_other_ends_soon_and_says_so_in_one_line(data, tmp_path):
    words = ["-m", "vitreous", "train", "--data", str(data), "--model", "vit_pico_patch2_8", "--epochs", "10000"]
    words += ["--batch-size", "8", "--save-every", "0", "--device", "cpu", "--output", str(tmp_path / "run")]
    first, second = start(words)
    try:
        while not list(tmp_path.glob("run/checkpoints/step-*.json")) and first.poll() is None:
            time.sleep(0.05)
        second.kill()
        output = first.communicate(timeout=30)[0]
    finally:
        for process in (first, second):
            process.kill()
    assert first.returncode == 2, output
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("vitreous:")]
    assert line.startswith("vitreous: rank 0: lost the other processes, which ended first: run all of them again")
    assert checkpoint.latest(tmp_path / "run/checkpoints") is not None
