import json

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_sets import colour_folder

from conftest import noise
from vitreous.data.datasets import from_folder, open_dataset
from vitreous.models.vit import ViT, ViTConfig
from vitreous.predict.class_names import match_classes
from vitreous.predict.evaluate import evaluate
from vitreous.predict.probe import probe
from vitreous.weights.load import load
from vitreous.weights.save import save
from vitreous.weights.sidecar import imagenet_names, imagenet_wordnet_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save(noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=7))), path)
    return load(path)


@pytest.mark.slow
def test_accuracy_agrees_with_counting_by_hand(model, tmp_path):
    data = from_folder(colour_folder(tmp_path, ["0", "3", "6"]))
    result = evaluate(data, model, batch_size=4, device="cpu")
    correct, in_top5, loss = 0, 0, 0.0
    with torch.no_grad():
        for i, label in enumerate(data.labels):
            logits = model(model.card.preprocess(Image.open(data.image(i)))[None])[0]
            target = int(data.class_names[label])
            correct += logits.argmax().item() == target
            in_top5 += target in logits.topk(5).indices
            loss -= logits.log_softmax(-1)[target].item()
            assert result.correct[i] == (logits.argmax().item() == target)
    assert result.images == 18
    assert result.top1 == pytest.approx(correct / 18)
    assert result.top5 == pytest.approx(in_top5 / 18)
    assert result.loss == pytest.approx(loss / 18, rel=1e-4)
    assert result.confusion.sum() == 18
    assert set(result.per_class()) == {"class 0", "class 3", "class 6"}


@pytest.mark.slow
def test_every_figure_agrees_with_torchmetrics(model, tmp_path):
    from torchmetrics import classification as known

    data = from_folder(colour_folder(tmp_path, ["0", "3", "6"]))
    result = evaluate(data, model, batch_size=4, device="cpu")
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
    result = evaluate(data, model, device="cpu")
    result.write(tmp_path / "out")
    assert json.loads((tmp_path / "out/result.json").read_text())["images"] == 12
    with np.load(tmp_path / "out/confusion.npz") as saved:
        assert saved["confusion"].shape == (7, 7)


def test_unreadable_images_are_counted_apart(model, tmp_path):
    root = colour_folder(tmp_path, ["0", "1"])
    (root / "0" / "broken.png").write_bytes(b"")
    result = evaluate(from_folder(root), model, device="cpu")
    assert result.images == 12
    assert [problem.reason for problem in result.problems] == [str(result.problems[0]).split(": ", 1)[1]]


@pytest.mark.slow
def test_probes_tell_colours_apart_with_any_model(model, tmp_path):
    for split in ("train", "val"):
        colour_folder(tmp_path / split, ["red", "green", "blue"])
    train, test = open_dataset(tmp_path, "train"), open_dataset(tmp_path, "test")
    for kind in ("knn", "linear"):
        result = probe(train, test, model, kind, device="cpu")
        assert result["top1"] > 0.9
        assert (result["images"], result["train_images"]) == (18, 18)
    with pytest.raises(ValueError, match="knn or linear"):
        probe(train, test, model, "svm", device="cpu")


def test_images_with_labels_are_a_dataset_too(model, tmp_path):
    data = from_folder(colour_folder(tmp_path, ["0", "3"]))
    expected = evaluate(data, model, device="cpu")
    paths = [data.image(i) for i in range(len(data))]
    labels = [int(data.class_names[label]) for label in data.labels]
    arrays = [np.asarray(Image.open(path)) for path in paths]
    for images in (paths, arrays):
        result = evaluate(images, model, labels=labels, device="cpu")
        assert result.summary() == expected.summary()
    by_name = evaluate(tmp_path, model, device="cpu")
    assert by_name.summary() == expected.summary()
    assert evaluate(str(tmp_path), model, limit=4, device="cpu").images == 4
    with pytest.raises(ValueError, match="got 12 images and 1 labels"):
        evaluate(paths, model, labels=[0], device="cpu")
    with pytest.raises(ValueError, match="pass labels"):
        evaluate(arrays, model, device="cpu")


def test_an_evaluation_shows_its_figures(model, tmp_path):
    result = evaluate(from_folder(colour_folder(tmp_path, ["0", "3"])), model, device="cpu")
    lines = repr(result).splitlines()
    assert lines[0].split() == ["top1", f"{result.top1:.2%}"]
    assert lines[3].split() == ["images", "12"]
    assert result._repr_html_().count("<tr>") == len(lines) == 7


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
