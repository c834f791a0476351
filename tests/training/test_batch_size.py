"""Batches and memory: what fits is found, and what does not is explained."""

import re

import pytest
import torch
from tiny_runs import LogKeeper, break_off, parts_of, plain

from vitreous.training import batch_size
from vitreous.training.batch_size import explain_out_of_memory, largest, settle_batch_size
from vitreous.training.loop import train
from vitreous.training.step import TrainStep

CPU = torch.device("cpu")


def settled(images, device=CPU, **changes):
    listener = LogKeeper()
    config = settle_batch_size(plain("x", **changes), None, images, device, listener.log)
    return config.batch_size, listener.lines


def run_out(error=None, **changes):
    """What running out of memory is turned into."""
    with (
        pytest.raises(ValueError, match="out of memory") as message,
        explain_out_of_memory(plain("x", **changes), None, CPU),
    ):
        raise error or torch.OutOfMemoryError
    return str(message.value)


def test_the_largest_that_fits_is_found_by_halving():
    tried = []
    assert largest(lambda batch: tried.append(batch) or batch <= 10, 64) == 8
    assert tried == [64, 32, 16, 8]
    with pytest.raises(ValueError, match="not even one image fits.*--image-size"):
        largest(lambda batch: False, 4)


def test_a_batch_size_that_fits_stays_and_nothing_is_logged():
    assert settled(100, batch_size=64) == (64, [])


def test_more_images_in_a_batch_than_there_are_is_cut_and_logged():
    size, (line,) = settled(30, batch_size=64)
    assert size == 30
    assert "30 instead of 64" in line
    assert settled(30, batch_size=64, accumulate=4)[0] == 28


def test_too_few_images_for_one_update_is_an_error():
    for batch in (8, "auto"):
        with pytest.raises(ValueError, match="3 training images are fewer than --accumulate 4"):
            settled(3, batch_size=batch, accumulate=4)


@pytest.mark.parametrize(
    ("images", "parts", "expected"),
    [(1000, {}, 64), (50, {}, 32), (1000, {"accumulate": 3}, 48), (7, {"accumulate": 3}, 6)],
)
def test_auto_is_a_whole_number_of_parts(images, parts, expected):
    assert settled(images, batch_size="auto", **parts)[0] == expected


def test_auto_on_a_gpu_is_the_largest_that_was_tried_with_success(monkeypatch):
    monkeypatch.setattr(batch_size, "fits_memory", lambda model, config, device, batch: batch <= 300)
    size, (line,) = settled(5000, torch.device("cuda"), batch_size="auto")
    assert size == 256
    assert "256" in line
    assert settled(5000, torch.device("cuda"), batch_size="auto", accumulate=3)[0] == 192


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_out_of_memory_says_which_batch_fits(monkeypatch, error):
    monkeypatch.setattr(batch_size, "fits_memory", lambda model, config, device, batch: batch <= 100)
    assert run_out(error, batch_size=512) == (
        "out of memory with batch size 512: 64 fits. "
        "Pass --batch-size 64 or --batch-size auto, or --accumulate 8 to compute it in parts"
    )


def test_what_is_suggested_is_a_config_that_is_valid(monkeypatch):
    monkeypatch.setattr(batch_size, "fits_memory", lambda model, config, device, batch: batch <= 50)
    assert re.search("240: 30 fits.*--accumulate 16 ", run_out(batch_size=240, accumulate=2))
    plain("x", batch_size=30, accumulate=2)
    plain("x", batch_size=240, accumulate=16)
    assert re.search("100: 50 fits.*--accumulate 2 ", run_out(batch_size=100))
    assert re.search("101: 50 fits.*--batch-size auto$", run_out(batch_size=101))  # nothing divides it


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory(plain("x"), None, CPU):
        raise RuntimeError("shapes do not match")


def test_the_memory_trial_runs_on_a_copy(zoo):
    parts = parts_of(plain(zoo))
    before = parts.state.copy()
    assert batch_size.fits_memory(parts.model, parts.config, CPU, 16)
    assert all(torch.equal(before[name], value) for name, value in parts.state.copy().items())
    assert all(parameter.grad is None for parameter in parts.model.parameters())


def test_the_memory_trial_runs_as_a_step_will(zoo, monkeypatch):
    asked, choose = [], batch_size.choose_forward
    monkeypatch.setattr(batch_size, "choose_forward", lambda *given: asked.append(given[2].recompute) or choose(*given))
    parts = parts_of(plain(zoo, recompute=True))
    assert batch_size.fits_memory(parts.model, parts.config, CPU, 16)
    assert asked == [True]


@pytest.mark.parametrize("compile", [False, True])
def test_a_run_that_is_out_of_memory_ends_with_that_line(zoo, tmp_path, monkeypatch, compile):
    def full(self, batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TrainStep, "compute", full)
    with pytest.raises(ValueError, match="out of memory with batch size 8: 4 fits"):
        train(plain(zoo, compile=compile), tmp_path / "run")


@pytest.mark.slow
def test_a_cut_batch_and_an_automatic_one_go_on_with_the_same_command(zoo, tmp_path, monkeypatch):
    for batch in ("auto", 1000):
        config = plain(zoo, batch_size=batch, save_every=0)
        break_off(config, tmp_path / f"{batch}", monkeypatch, 2)
        listener = LogKeeper()
        train(config, tmp_path / f"{batch}", listeners=[listener])
        assert any("resuming at epoch 2" in line for line in listener.lines)
