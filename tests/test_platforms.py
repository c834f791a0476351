"""Machines unlike this one: Windows, macOS, an Apple GPU, no compiler. What is missing there is taken away here."""

import os
import pathlib

import pytest
import torch

from vitreous.benchmarking import timing
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.runtime.device import cores, cpu_name, lacks_compiler, pick_device
from vitreous.runtime.files import write_atomic
from vitreous.speed import optimize
from vitreous.speed.backends import BackendChoice
from vitreous.speed.weight_folding import fold
from vitreous.training import setup
from vitreous.training.config import TrainConfig
from vitreous.weights.card import Card


def test_cores_and_load_are_told_where_the_system_has_no_calls_for_them(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert cores() == os.cpu_count()
    assert timing.load_average() is None


def test_a_processor_has_a_name_without_proc(monkeypatch):
    def missing(self, *_, **__):
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(pathlib.Path, "read_text", missing)
    assert cpu_name()


def test_a_file_is_synced_through_a_handle_that_may_write(monkeypatch, tmp_path):
    """Windows refuses to sync a file that is open for reading alone."""
    modes, real = [], pathlib.Path.open

    def opened(self, mode="r", *rest, **options):
        modes.append(mode)
        return real(self, mode, *rest, **options)

    monkeypatch.setattr(pathlib.Path, "open", opened)
    write_atomic(tmp_path / "x", lambda temporary: os.close(os.open(temporary, os.O_CREAT)))
    assert modes == ["r+b"]


def test_what_is_fastest_is_forgotten_where_it_cannot_be_kept(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("in use")

    monkeypatch.setattr(os, "replace", refuse)
    BackendChoice(tmp_path / "backends" / "x.json").write("eager", {"eager": 1.0})
    assert BackendChoice(tmp_path / "backends" / "x.json").read() is None


def test_an_apple_gpu_is_taken_for_looking_and_not_for_training(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("mps")
    assert setup.set_up_device(TrainConfig(model="x", data="digits", device="auto")) == torch.device("cpu")
    with pytest.raises(ValueError, match="no float64"):
        setup.set_up_device(TrainConfig(model="x", data="digits", device="mps"))


def test_folding_in_double_precision_happens_on_the_cpu(monkeypatch):
    model, real, brought = ViT(variant("vit_femto_patch4_32")).eval(), torch.nn.Module.cpu, []
    monkeypatch.setattr(torch.nn.Module, "cpu", lambda self: brought.append(type(self)) or real(self))
    fold(model, (0.5,) * 3, (0.5,) * 3)
    assert brought == [ViT]


# --- no compiler ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_compiler(monkeypatch):
    from torch._inductor import cpp_builder

    def missing():
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)

    def compiled(*_, **__):
        raise AssertionError("torch.compile was called")

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.nn.Module, "compile", compiled)


@pytest.mark.slow
@pytest.mark.usefixtures("no_compiler")
def test_a_recipe_that_compiles_runs_without_a_compiler_and_says_so(tmp_path):
    from vitreous.training.listeners import Listener
    from vitreous.training.loop import train

    said = []

    class Notes(Listener):
        def log(self, line):
            said.append(line)

    config = TrainConfig(
        model="vit_pico_patch2_8", data="digits", channels=1, epochs=1, batch_size=512, compile=True, device="cpu"
    )
    assert lacks_compiler(torch.device("cpu"))
    train(config, tmp_path / "run", listeners=[Notes()])
    assert any("no C++ compiler" in line for line in said)
    assert (tmp_path / "run/model/model.safetensors").is_file()


@pytest.mark.usefixtures("no_compiler")
def test_looking_never_compiles_and_fast_falls_back_to_plain_code(monkeypatch):
    from vitreous.data.sample_photos import samples
    from vitreous.predict.classify import classify

    image = samples()["chelsea"]
    assert classify([image], "packaged:cifar10", device="cpu")[0].predictions
    model = ViT(variant("vit_femto_patch4_32")).eval()
    model.card = Card("tiny", Preprocess(size=(32, 32), resize=32, mean=HALF, std=HALF))
    monkeypatch.setattr(
        optimize, "time_backends", lambda built, example: dict.fromkeys(built, 1.0)
    )  # the first is taken
    fast = optimize.optimize(model, batch_size=1)
    assert fast.backend == "eager"
    assert [note.split(":")[0] for note in fast.notes] == ["compiled was left out", "frozen was left out"]


def test_nothing_is_imported_that_only_some_systems_have():
    """At the top of a module, that is: inside a function there is a way round it."""
    import ast

    only_some = {"fcntl", "resource", "pwd", "grp", "termios", "msvcrt", "winreg", "posix"}
    modules = list(pathlib.Path(setup.__file__).parents[1].rglob("*.py"))
    assert len(modules) > 100
    for path in modules:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not only_some.intersection(name.split(".")[0] for name in names), path
