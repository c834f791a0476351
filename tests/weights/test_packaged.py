"""The model inside the package: what it says of the sample photographs, what its files tell, and how good it is."""

import json
from pathlib import Path

import pytest
import torch

from conftest import assert_same
from vitreous.cli.main import main
from vitreous.data.datasets import open_dataset
from vitreous.data.samples import samples
from vitreous.predict.classify import classify
from vitreous.predict.evaluate import evaluate
from vitreous.weights.inspect import inspect
from vitreous.weights.load import load

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LOGITS = {
    "chelsea": [-0.5107, -0.4815, -0.5939, 3.5866, -0.5464, -0.4933, -0.5011, -0.5256, -0.4753, -0.5304],
    "coffee": [-0.8957, 2.2612, -0.8439, 2.8829, -1.0177, 0.0492, -0.6250, -0.8873, -0.6089, -0.8799],
    "rocket": [-0.0312, -0.1552, -0.4045, -0.3090, -0.2717, -0.3951, -0.4355, -0.4377, 3.6906, -0.3841],
    "astronaut": [-1.0181, 2.2970, -0.6823, 0.1755, -1.0985, 2.6323, -0.8899, -0.8256, -1.2801, -0.1609],
}


@pytest.mark.parametrize("name", LOGITS)
def test_its_logits_on_the_samples_stay_what_they_were(name):
    model = load()
    with torch.inference_mode():
        logits = model(model.card.preprocess(samples()[name])[None])[0]
    factor = 1e-2 if name == "rocket" else 1e-3  # a JPEG's decoders may differ in the last bit
    assert_same(logits, torch.tensor(LOGITS[name]), factor)


def test_it_calls_chelsea_a_cat():
    answer = classify(samples()["chelsea"], device="cpu")
    assert answer.best.class_name == "cat"
    assert answer.best.probability == pytest.approx(0.871, abs=0.005)


def test_all_its_names_give_the_same_model(tmp_path, monkeypatch):
    (tmp_path / "cifar10").mkdir()  # of data, say
    monkeypatch.chdir(tmp_path)
    first, *others = (load(name) for name in (None, "packaged", "cifar10", "packaged:cifar10"))
    for other in others:
        assert other.card.files == first.card.files
        assert other.config == first.config


def test_its_files_are_small_and_tell_everything():
    model = load()
    (weights,) = model.card.files
    assert Path(weights).stat().st_size <= 16e6
    assert model.card.class_names == CLASSES
    assert model.card.preprocess.size == (32, 32)
    assert model.card.report.remarks() == []
    assert model.card.training["command"] == "vitreous train cifar10"
    assert model.card.training["config"]["data"] == "cifar10"
    assert model.card.training["result"]["top1"] >= 0.96
    assert model.card.training["result"]["images"] == 10_000
    assert {"hardware", "date"} <= set(model.card.training)


def test_doctor_says_how_it_was_trained(capsys):
    main(["doctor"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    (training,) = [line for line in lines if line.startswith("training ")]
    for part in ("vitreous train cifar10", "vit_micro_patch4_32 on cifar10", "640 epochs", "H200", "2026-11-15"):
        assert part in training
    assert "accuracy 96.31% of 10,000 held-out images" in lines
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["training"]["command"] == "vitreous train cifar10"
    assert found["remarks"] == []


@pytest.mark.slow
@pytest.mark.parametrize("training", [None, "by hand", {}, {"config": {}, "result": None}, {"config": 1, "result": {}}])
def test_a_model_without_a_record_of_its_training_has_no_such_section(training):
    model = load()
    model.card.training = training
    assert "training" not in inspect(model).sections


@pytest.mark.slow
def test_its_accuracy_on_real_test_images(shared):
    folder = shared / "data/cifar10"
    if not folder.is_dir():
        pytest.skip("CIFAR-10 is not on this machine")
    result = evaluate(open_dataset(folder).spread(500), load(), device="cpu", batch_size=50)
    assert result.images == 500
    assert result.top1 >= 0.94
