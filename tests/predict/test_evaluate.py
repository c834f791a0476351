import json

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_sets import colour_folder

from conftest import VIT_TI, noise
from vitreous.data.datasets import DATASETS, open_dataset
from vitreous.data.sources.folder import from_folder
from vitreous.models.vit import ViT, ViTConfig
from vitreous.predict.class_match import match_classes
from vitreous.predict.evaluate import evaluate, probe
from vitreous.predict.preprocess_check import Fit, Trial, chance, fit_preprocessing
from vitreous.weights.load import load
from vitreous.weights.save import save
from vitreous.weights.sidecar import imagenet_names, imagenet_wordnet_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save(noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=7))), path)
    return load(path)


def test_accuracy_agrees_with_counting_by_hand(model, tmp_path):
    data = from_folder(colour_folder(tmp_path, ["0", "3", "6"]))
    result = evaluate(model, data, batch_size=4, device="cpu")
    right, among, loss = 0, 0, 0.0
    with torch.no_grad():
        for i, label in enumerate(data.labels):
            logits = model(model.card.preprocess(Image.open(data.image(i)))[None])[0]
            target = int(data.class_names[label])
            right += logits.argmax().item() == target
            among += target in logits.topk(5).indices
            loss -= logits.log_softmax(-1)[target].item()
            assert result.correct[i] == (logits.argmax().item() == target)
    assert result.images == 18
    assert result.top1 == pytest.approx(right / 18)
    assert result.top5 == pytest.approx(among / 18)
    assert result.loss == pytest.approx(loss / 18, rel=1e-4)
    assert result.confusion.sum() == 18
    assert set(result.per_class()) == {"class 0", "class 3", "class 6"}


def test_every_figure_agrees_with_torchmetrics(model, tmp_path):
    from torchmetrics import classification as known

    data = from_folder(colour_folder(tmp_path, ["0", "3", "6"]))
    result = evaluate(model, data, batch_size=4, device="cpu")
    with torch.no_grad():
        images = torch.stack([model.card.preprocess(Image.open(data.image(i))) for i in range(len(data))])
        answer = model(images).softmax(-1), torch.tensor([int(data.class_names[label]) for label in data.labels])
    assert result.top1 == pytest.approx(known.MulticlassAccuracy(7, average="micro")(*answer).item())
    assert result.top5 == pytest.approx(known.MulticlassAccuracy(7, top_k=5, average="micro")(*answer).item())
    calibration = known.MulticlassCalibrationError(7, n_bins=15)(*answer).item()
    assert result.calibration_error == pytest.approx(calibration, abs=1e-5)
    assert torch.equal(result.confusion, known.MulticlassConfusionMatrix(7)(*answer))


def test_results_are_written(model, tmp_path):
    data = from_folder(colour_folder(tmp_path / "data", ["0", "1"]))
    result = evaluate(model, data, device="cpu")
    result.write(tmp_path / "out")
    assert json.loads((tmp_path / "out/result.json").read_text())["images"] == 12
    with np.load(tmp_path / "out/confusion.npz") as saved:
        assert saved["confusion"].shape == (7, 7)


def test_unreadable_images_are_counted_apart(model, tmp_path):
    root = colour_folder(tmp_path, ["0", "1"])
    (root / "0" / "broken.png").write_bytes(b"")
    result = evaluate(model, from_folder(root), device="cpu")
    assert result.images == 12
    assert [problem.reason for problem in result.problems] == [str(result.problems[0]).split(": ", 1)[1]]


def test_probes_tell_colours_apart_with_any_model(model, tmp_path):
    for split in ("train", "val"):
        colour_folder(tmp_path / split, ["red", "green", "blue"])
    train, test = open_dataset(tmp_path, "train"), open_dataset(tmp_path, "test")
    for kind in ("knn", "linear"):
        result = probe(model, train, test, kind, device="cpu")
        assert result["top1"] > 0.9
        assert (result["images"], result["train_images"]) == (18, 18)
    with pytest.raises(ValueError, match="knn or linear"):
        probe(model, train, test, "svm", device="cpu")


def test_classes_are_matched_by_name_id_or_number():
    names = imagenet_names()
    assert match_classes(["church", "Egyptian_cat"], names, 1000) == [497, 285]
    assert match_classes(["n03028079"], names, 1000) == [497]
    assert match_classes(["0497", "7"], names, 1000) == [497, 7]
    assert match_classes(["7", "0"], [str(i) for i in range(10)], 10) == [7, 0]
    for wrong, message in (
        (["zebra", "unicorn"], "1 of 2 classes are not the model's, such as 'unicorn'"),
        (["1000"], "0 to 999"),
        (["n00000000"], "WordNet"),
    ):
        with pytest.raises(ValueError, match=message):
            match_classes(wrong, names, 1000)
    with pytest.raises(ValueError, match="not ImageNet-1k's"):
        match_classes(["n03028079"], ["a", "b"], 2)


def test_wordnet_ids_are_sorted_and_complete():
    ids = imagenet_wordnet_ids()
    assert len(set(ids)) == 1000
    assert list(ids) == sorted(ids)  # ImageNet's class order is that of the ids
    assert len(imagenet_names()) == 1000


def test_folders_and_splits(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a folder nor a known dataset"):
        open_dataset(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no sub-folders"):
        open_dataset(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="no images"):
        open_dataset(tmp_path)
    with pytest.raises(FileNotFoundError, match="no train/ folder"):
        open_dataset(tmp_path, "train")
    colour_folder(tmp_path / "whole", ["a", "b"], each=5)
    found = open_dataset(tmp_path / "whole")
    assert (len(found), found.class_names, found.labels) == (10, ("a", "b"), (0,) * 5 + (1,) * 5)
    assert found.spread(4).labels == (0, 0, 1, 1)


def test_digits_are_split_without_overlap():
    train, test = DATASETS["digits"](None, "train"), DATASETS["digits"](None, "test")
    assert len(train) + len(test) == 1797
    seen = {np.asarray(train.image(i)).tobytes() for i in range(len(train))}
    assert sum(np.asarray(test.image(i)).tobytes() in seen for i in range(len(test))) == 0
    assert test.image(0).size == (8, 8)


def test_the_verdict_needs_more_than_chance():
    def trial(name, right, count):
        return Trial(name, None, tuple(i < right for i in range(count)))

    used, better, same = trial("in use", 40, 100), trial("other", 70, 100), trial("third", 42, 100)
    assert chance(used, better) == pytest.approx(2 / 2**30)
    fit = Fit((used, same, better), (trial("crop", 71, 100),))
    assert fit.chosen is better
    statistics, crop = fit.verdict()
    assert statistics.startswith("other fits better than what is in use: 70.0% against 40.0% of 100 images")
    assert crop == "no other crop is clearly better than the one in use"
    kept = Fit((used, same), (trial("crop", 90, 100),))
    assert kept.chosen is used
    assert "no other is clearly better" in kept.verdict()[0]
    assert kept.verdict()[1].startswith("crop fits better than the crop in use: 90.0% against 40.0%")


@pytest.mark.skipif(not VIT_TI.exists(), reason="the real ViT-Ti is not on this machine")
def test_real_images_tell_which_statistics_fit(shared):
    from dataclasses import replace

    from vitreous.data.preprocess import STATISTICS

    model = load(VIT_TI)
    mean, std = STATISTICS["imagenet"]
    model.card.preprocess = replace(model.card.preprocess, mean=mean, std=std)
    fit = fit_preprocessing(model, open_dataset(shared / "data/imagenet-val-500").spread(60))
    assert fit.chosen.name == "mean 0.5, std 0.5"
    assert "fits better" in fit.verdict()[0]


@pytest.mark.skipif(not VIT_TI.exists(), reason="the real ViT-Ti is not on this machine")
def test_a_real_vit_calls_santorini_a_dome(shared):
    from vitreous.predict.classify import classify

    (answer,) = classify(shared / "data/santorini.png", str(VIT_TI))
    found = {p.label: p.probability for p in answer.predictions}
    assert found["dome"] == pytest.approx(0.67, abs=0.01)
    assert found["church"] == pytest.approx(0.20, abs=0.01)
