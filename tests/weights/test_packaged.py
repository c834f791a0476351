"""The models inside the package: what they say of photographs, what their files tell, and how good they are."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import CHELSEA, SMALL, VIT_TI, assert_same
from vitreous.cli.main import main
from vitreous.data.datasets import open_dataset
from vitreous.data.images import read_image
from vitreous.data.sample_photos import samples
from vitreous.predict.classify import classify
from vitreous.predict.evaluate import evaluate
from vitreous.weights.class_names import imagenet_names
from vitreous.weights.inspect import inspect
from vitreous.weights.load import load

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LOGITS = {
    "chelsea": [-0.5107, -0.4815, -0.5939, 3.5866, -0.5464, -0.4933, -0.5011, -0.5256, -0.4753, -0.5304],
    "coffee": [-0.8957, 2.2612, -0.8439, 2.8829, -1.0177, 0.0492, -0.6250, -0.8873, -0.6089, -0.8799],
    "rocket": [-0.0312, -0.1552, -0.4045, -0.3090, -0.2717, -0.3951, -0.4355, -0.4377, 3.6906, -0.3841],
    "astronaut": [-1.0181, 2.2970, -0.6823, 0.1755, -1.0985, 2.6323, -0.8899, -0.8256, -1.2801, -0.1609],
}


def small():
    return load("packaged:cifar10")


def test_without_a_name_a_thousand_classes_answer():
    answers = classify(list(samples().values()), device="cpu", top=1)
    assert [answer.best.class_name for answer in answers] == ["espresso", "Egyptian cat", "tripod"]


def test_the_default_is_timms_checkpoint_rounded_to_half_precision(shared):
    if not VIT_TI.is_dir():
        pytest.skip("the real ViT-Ti is not on this machine")
    (weights,) = load().card.files
    packaged, original = load_file(weights), load_file(VIT_TI / "model.safetensors")
    assert packaged.keys() == original.keys()
    assert {tensor.dtype for tensor in packaged.values()} == {torch.float16}
    for key, tensor in original.items():
        assert torch.equal(packaged[key], tensor.to(torch.float16)), key
    ours, theirs = load(), load(VIT_TI)
    assert ours.config == theirs.config
    assert ours.card.preprocess == theirs.card.preprocess
    assert ours.card.class_names == theirs.card.class_names


def test_the_files_of_the_default_are_small_and_tell_everything():
    model = load()
    (weights,) = model.card.files
    assert Path(weights).stat().st_size <= 12e6
    assert model.card.class_names == imagenet_names()
    assert model.card.preprocess.size == (224, 224)
    assert model.card.preprocess.mean == (0.5, 0.5, 0.5)
    assert model.card.report.remarks() == []
    assert model.cls_token.dtype == torch.float32  # stored in half precision, computed in full


def test_its_makers_are_credited():
    (weights,) = load().card.files
    notice = Path(__file__).parents[2] / "NOTICE"
    for page in (Path(weights).with_name("README.md"), notice):
        text = " ".join(page.read_text().split())
        for credit in ("AugReg", "Steiner", "Google", "Apache", "2106.10270", "timm", "rounded from fp32 to fp16"):
            assert credit in text, (page.name, credit)


@pytest.mark.slow
def test_the_default_finds_the_dome_and_the_church(shared):
    if not (shared / "data/santorini.png").exists():
        pytest.skip("the photograph is not on this machine")
    answer = classify(shared / "data/santorini.png", device="cpu")
    assert [p.class_name for p in answer.predictions[:2]] == ["dome", "church"]


@pytest.mark.slow
def test_the_accuracy_of_the_default_is_that_of_the_checkpoint(shared):
    folder = shared / "data/imagenet-val-500"
    if not folder.is_dir():
        pytest.skip("the ImageNet images are not on this machine")
    images = open_dataset(folder).spread(60)  # on all 500: 72.4 % and 93.4 %, as with the original
    ours, theirs = (evaluate(images, load(name), device="cpu", batch_size=20) for name in (None, VIT_TI))
    assert ours.images == 60
    assert (ours.top1, ours.top5) == (theirs.top1, theirs.top5)
    assert ours.top1 > 0.6


@pytest.mark.parametrize("name", LOGITS)
def test_the_small_models_logits_on_the_samples_stay_what_they_were(name):
    model = small()
    (path,) = Path(CHELSEA).parent.glob(f"{name}.*")
    with torch.inference_mode():
        logits = model(model.card.preprocess(read_image(path))[None])[0]
    factor = 1e-2 if name == "rocket" else 1e-3  # a JPEG's decoders may differ in the last bit
    assert_same(logits, torch.tensor(LOGITS[name]), factor)


@pytest.mark.parametrize("names", [(None, "packaged", "packaged:vit_tiny"), ("cifar10", "packaged:cifar10")])
def test_all_names_of_a_model_give_the_same_model(names, tmp_path, monkeypatch):
    for name in ("cifar10", "packaged"):
        (tmp_path / name).mkdir()  # of data, say
    monkeypatch.chdir(tmp_path)
    first, *others = (load(name) for name in names)
    for other in others:
        assert other.card.files == first.card.files
        assert other.config == first.config


def test_a_packaged_model_that_does_not_exist_is_an_error_with_those_that_do():
    with pytest.raises(ValueError, match="holds no model 'vit_huge': it holds cifar10, vit_tiny"):
        load("packaged:vit_huge")


def test_the_small_models_files_are_small_and_tell_everything():
    model = small()
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


def test_doctor_says_how_the_small_model_was_trained(capsys):
    main(["doctor", *SMALL])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    (training,) = [line for line in lines if line.startswith("training ")]
    for part in ("vitreous train cifar10", "vit_micro_patch4_32 on cifar10", "640 epochs", "H200", "2026-11-15"):
        assert part in training
    assert "accuracy 96.31% of 10,000 held-out images" in lines
    main(["doctor", *SMALL, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["training"]["command"] == "vitreous train cifar10"
    assert found["remarks"] == []


@pytest.mark.slow
@pytest.mark.parametrize("training", [None, "by hand", {}, {"config": {}, "result": None}, {"config": 1, "result": {}}])
def test_a_model_without_a_record_of_its_training_has_no_such_section(training):
    model = small()
    model.card.training = training
    assert "training" not in inspect(model).sections


@pytest.mark.slow
def test_the_small_models_accuracy_on_real_test_images(shared):
    folder = shared / "data/cifar10"
    if not folder.is_dir():
        pytest.skip("CIFAR-10 is not on this machine")
    result = evaluate(open_dataset(folder).spread(500), small(), device="cpu", batch_size=50)
    assert result.images == 500
    assert result.top1 >= 0.94
