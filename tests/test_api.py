"""The public names of `vitreous`: each one is reachable after every submodule was imported, and can be called twice."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from PIL import Image
from two_towers import write_siglip

import vitreous
from vitreous.benchmarking.roofline import SQUARES
from vitreous.models.resnet import resnet_config
from vitreous.weights import push as hub
from vitreous.weights.card import Card

TINY = {"epochs": 1, "batch_size": 64, "device": "cpu", "warmup": 0, "snapshots": 0, "compile": False}


def colours(folder):
    """A folder of two classes, eight images each."""
    for name, colour in {"cat": "teal", "dog": "tomato"}.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(8):
            Image.new("RGB", (8 + i, 8), colour).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return colours(tmp_path_factory.mktemp("api") / "zoo")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = vitreous.ViT(vitreous.ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, classes=2)).eval()
    half = (0.5, 0.5, 0.5)
    model.card = Card("tiny", vitreous.Preprocess(size=(8, 8), resize=8, mean=half, std=half), ("cat", "dog"))
    return model


def import_every_module():
    """Import all submodules; a kernel's module may need a package that is not installed."""
    for found in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
        if found.name == "vitreous.__main__":
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("vitreous"):
                raise


def functions():
    return {name for name in vitreous.__all__ if inspect.isfunction(getattr(vitreous, name))}


def test_no_module_hides_a_public_name():
    import_every_module()
    for name in vitreous.__all__:
        value = getattr(vitreous, name)
        assert not inspect.ismodule(value), name
        assert value is getattr(vitreous, name), name
        assert name in dir(vitreous)


def test_every_public_function_has_a_docstring_with_an_example():
    for name in functions():
        text = inspect.getdoc(getattr(vitreous, name)) or ""
        assert ">>>" in text, name


def test_a_name_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(AttributeError, match="no 'nothing'.*classify"):
        vitreous.nothing  # noqa: B018


def test_the_version_is_written_once():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/vitreous/__init__.py"
    assert vitreous.__version__.count(".") == 2


def test_importing_vitreous_does_not_import_torch():
    code = "import sys, vitreous; dir(vitreous); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def captured(model):
    with vitreous.capture(model, "attention") as internals:
        model(torch.zeros(1, 3, 8, 8))
    return internals["blocks.0.attention"]


def intervened(model):
    with vitreous.intervene(model, heads_off=[(0, 0)]):
        return model(torch.zeros(1, 3, 8, 8))


def explored(model):
    with vitreous.explore(model, device="cpu") as page:
        return urlopen(page.url).read()


def two_towers(folder):
    write_siglip(folder)
    return str(folder)


PIXELS = np.zeros((8, 8, 3), dtype=np.uint8)
CALLS = {
    "load": lambda model, zoo, out: vitreous.load("packaged:cifar10"),
    "save": lambda model, zoo, out: vitreous.save(model, out),
    "convert": lambda model, zoo, out: vitreous.convert(model, out, "timm"),
    "push": lambda model, zoo, out: vitreous.push(model, "ann/model", token="any"),
    "inspect": lambda model, zoo, out: vitreous.inspect(model),
    "export": lambda model, zoo, out: vitreous.export(model, out / "model.pt2", "torch-export"),
    "classify": lambda model, zoo, out: vitreous.classify(PIXELS, model, device="cpu"),
    "explain": lambda model, zoo, out: vitreous.explain(PIXELS, model, device="cpu").save(out / "report.html"),
    "embed_text": lambda model, zoo, out: vitreous.embed_text("a cat", two_towers(out)),
    "similarity": lambda model, zoo, out: vitreous.similarity(PIXELS, ["a cat"], two_towers(out), device="cpu"),
    "embed": lambda model, zoo, out: vitreous.embed(zoo, model, device="cpu"),
    "evaluate": lambda model, zoo, out: vitreous.evaluate(zoo, model, device="cpu"),
    "explore": lambda model, zoo, out: explored(model),
    "find_concepts": lambda model, zoo, out: vitreous.find_concepts(
        [PIXELS + i for i in range(10)], "packaged:cifar10", concepts=16, active=1, steps=2, measured=2, device="cpu"
    ),
    "train": lambda model, zoo, out: vitreous.train("digits", output=out, progress=False, **TINY),
    "finetune": lambda model, zoo, out: vitreous.finetune(
        zoo, vitreous.save(model, out / "model")[0].parent, "head", output=out / "run", progress=False, **TINY
    ),
    "benchmark": lambda model, zoo, out: vitreous.benchmark(
        ["vit_pico_patch2_8"], against=(), modes=("eager",), seconds=0.01, device="cpu"
    ),
    "compare": lambda model, zoo, out: vitreous.compare(
        ["vit_pico_patch2_8", "vit_femto_patch4_32"],
        zoo,
        out,
        epochs=1,
        seeds=1,
        batch_size=4,
        image_size=8,
        compile="no",
        compiled=False,
        device="cpu",
    ),
    "optimize": lambda model, zoo, out: vitreous.optimize(model, batch_size=1, backends=("eager",)),
    "open_dataset": lambda model, zoo, out: vitreous.open_dataset(zoo),
    "open_split": lambda model, zoo, out: vitreous.open_split(zoo),
    "samples": lambda model, zoo, out: vitreous.samples(),
    "read_image": lambda model, zoo, out: vitreous.read_image(zoo / "cat" / "0.png"),
    "capture": lambda model, zoo, out: captured(model),
    "intervene": lambda model, zoo, out: intervened(model),
    "variant": lambda model, zoo, out: vitreous.variant("vit_tiny_patch16_224", depth=2),
}


def test_every_public_function_is_called_below():
    assert set(CALLS) == functions()


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_public_function_can_be_called_twice(name, model, zoo, tmp_path, monkeypatch):
    import_every_module()
    sent = hub.PushResult("ann/model", "url", "commit", ("README.md",))
    monkeypatch.setattr(hub, "_upload", lambda *_: sent)
    monkeypatch.setitem(SQUARES, "cpu", (64,))  # `benchmark` would time large ones for seconds
    for turn in ("first", "second"):
        out = tmp_path / turn
        out.mkdir()
        assert callable(getattr(vitreous, name))
        assert CALLS[name](model, zoo, out) is not None


def test_a_vit_made_in_memory_answers_and_other_models_are_refused_in_one_line():
    made = vitreous.ViT(vitreous.variant("vit_pico_patch2_8")).eval()
    assert len(vitreous.classify(PIXELS, made, device="cpu").predictions) == 5
    assert vitreous.explain(PIXELS, made, "relevance", device="cpu").answer is not None
    for function in (vitreous.classify, vitreous.explain):
        with pytest.raises(TypeError, match="expected a model of vitreous, a name or a path, got torch's Linear"):
            function(PIXELS, torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"set model\.card"):
        vitreous.classify(PIXELS, vitreous.ResNet(resnet_config("resnet18_small", classes=2)))
