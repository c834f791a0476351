"""With `--json`, standard output is one JSON value and nothing else, for every command that a program may call."""

import inspect
import json

import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.cli.console import print_json
from vitreous.cli.main import COMMANDS, main
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.views.registry import VIEWS
from vitreous.weights import push as hub
from vitreous.weights.save import save

TINY = ["--epochs", "1", "--batch-size", "4", "--device", "cpu", "--snapshots", "0", "--warmup", "0"]
SCRATCH = ["--model", "vit_pico_patch2_8", "--channels", "3"]
WORDS = {  # command → words, and a key or a length that the answer has
    "classify": (["zoo/cat/0.png", "--model", "model"], 1),
    "explain": (["zoo/cat/0.png", "--model", "model", "--views", "positions", "--figures", "drawn"], "report"),
    "train": (["--data", "zoo", *SCRATCH, *TINY], "top1"),
    "finetune": (["--model", "model", "--data", "zoo", "--policy", "head", *TINY], "top1"),
    "evaluate": (["--data", "zoo", "--model", "model"], "top1"),
    "compare": (None, ""),  # tests/comparison: a study takes longer
    "benchmark": (["--models", "vit_pico_patch2_8", "--against", "", "--seconds", "0.01"], "results"),
    "embed": (["zoo", "--model", "model", "-o", "features.npz"], "features"),
    "convert": (["model", "out", "--to", "timm"], "files"),
    "push": (["model", "ann/model"], "url"),
    "doctor": (["--model", "model"], "parameters"),
    "models": (["--search", "vit_tiny_patch16_224"], 1),
    "datasets": ([], 7),
    "recipes": ([], 13),
    "views": ([], len(VIEWS)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    for name, colour in {"cat": "teal", "dog": "tomato"}.items():
        (folder / "zoo" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (8 + i, 8), colour).save(folder / "zoo" / name / f"{i}.png")
    torch.manual_seed(0)
    model = noise(ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, classes=2)))
    save(model, folder / "model")
    described = json.loads((folder / "model/config.json").read_text())
    described["vitreous"]["class_names"] = ["cat", "dog"]
    (folder / "model/config.json").write_text(json.dumps(described))
    return folder


def test_every_command_but_explore_and_completion_prints_json():
    able = {command for command, function in COMMANDS.items() if "json" in inspect.signature(function).parameters}
    assert able == set(WORDS) == set(COMMANDS) - {"explore", "completion"}


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command, (words, _) in WORDS.items() if words is not None])
def test_standard_output_is_json_and_nothing_else(command, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("HF_TOKEN", "any")
    monkeypatch.setattr(hub, "_upload", lambda files, name, *_: hub.PushResult(name, "url", "commit", ("README.md",)))
    words, has = WORDS[command]
    main([command, *words, "--json"])
    message = json.loads(capsys.readouterr().out)
    assert len(message) == has if isinstance(has, int) else has in message


def test_a_folder_of_parts_is_summarised_as_json(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    main(["classify", "zoo", "--model", "model", "-o", "answers", "--json"])
    assert json.loads(capsys.readouterr().out) == {"output": "answers", "images": 12, "parts": 1, "left": 0}


def test_nan_is_null(capsys):
    print_json({"loss": float("nan"), "rates": [float("inf"), 1.0]})
    message = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert message == {"loss": None, "rates": [None, 1.0]}
