import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_sets import colour_folder

from conftest import noise
from vitreous.data.datasets import from_folder, open_split
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.evaluate import confidence_interval, evaluate, open_unseen
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


def test_wordnet_ids_are_sorted_and_complete():
    ids = imagenet_wordnet_ids()
    assert len(set(ids)) == 1000
    assert list(ids) == sorted(ids)  # ImageNet's class order is that of the ids
    assert len(imagenet_names()) == 1000


def test_accuracy_comes_with_its_interval():
    low, high = confidence_interval(8, 10)
    z, p, n = 1.959964, 0.8, 10  # Wilson's formula by hand
    middle, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    assert (low, high) == pytest.approx(((middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)), abs=1e-6)
    assert confidence_interval(0, 5)[0] == 0


def small_model(folder, names, training=None):
    """A model of these classes, saved and loaded."""
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, classes=len(names))))
    model.card = replace(load("packaged:cifar10").card, class_names=tuple(names), training=training)
    save(model, folder)
    return load(folder)


def test_of_three_classes_no_five_are_counted_and_unequal_ones_are_shown_apart(tmp_path):
    data = colour_folder(tmp_path / "data", ["a", "b", "c"])
    model = small_model(tmp_path / "model", ["a", "b", "c"])
    equal = evaluate(data, model, device="cpu")
    assert equal.top5 is None
    assert not {"top5", "balanced_accuracy"} & set(equal.summary())
    assert equal.format_classes() == ""
    for path in sorted((data / "a").iterdir())[:-1]:
        path.unlink()
    result = evaluate(data, model, device="cpu")
    rates = result.per_class()
    assert result.counts == {"a": 1, "b": 6, "c": 6}
    assert result.summary()["balanced_accuracy"] == pytest.approx(sum(rates.values()) / 3, abs=1e-6)
    assert result.balanced_accuracy != result.top1
    lines = result.format_classes().splitlines()
    assert sorted(lines) == sorted(f"  {name}  {rates[name]:7.2%} of {result.counts[name]}" for name in rates)
    assert result.format_classes(limit=1).splitlines()[1] == "  … and 2 more classes"


def record(data, train, **config):
    values = {"data": str(data), "held_out": 0.3, "train_split": "train", "validation": 0.0} | config
    return {"config": values, "training_images": len(train)}


def test_of_its_own_training_folder_a_model_is_measured_on_the_held_out_part(tmp_path):
    data = colour_folder(tmp_path / "data", ["a", "b"])
    train, held_out = open_split(data, held_out=0.3)
    model = small_model(tmp_path / "model", ["a", "b"], record(data, train))
    found, note = open_unseen(data, model)
    assert [found.describe(i) for i in range(len(found))] == [held_out.describe(i) for i in range(len(held_out))]
    assert f"learned from {len(train)} of these 12 images: measured on the {len(held_out)} that were held out" in note
    assert evaluate(data, model, device="cpu").images == len(held_out)
    assert "held out" in repr(evaluate(str(data), model, device="cpu"))
    everything, warning = open_unseen(data, model, all_images=True)
    assert len(everything) == 12
    assert "so this is too high" in warning


def test_a_folder_that_was_moved_is_known_and_another_is_doubted(tmp_path):
    data = colour_folder(tmp_path / "data", ["a", "b"])
    train, held_out = open_split(data, held_out=0.3)
    moved = small_model(tmp_path / "moved", ["a", "b"], record("/elsewhere/data", train))
    assert len(open_unseen(data, moved)[0]) == len(held_out)
    other = small_model(tmp_path / "other", ["a", "b"], record("/elsewhere/pets", train))
    found, note = open_unseen(data, other)
    assert len(found) == 12
    assert note.startswith("the model was trained on /elsewhere/pets: if it learned from these images")


def test_data_of_others_and_test_splits_are_measured_whole(tmp_path):
    data = colour_folder(tmp_path / "data", ["a", "b"])
    assert open_unseen(data, small_model(tmp_path / "untrained", ["a", "b"]))[1] == ""
    train, _ = open_split(data, held_out=0.3)
    foreign = small_model(tmp_path / "foreign", ["c", "d"], record(data, train))
    assert open_unseen(data, foreign)[1] == ""
    for split in ("train", "test"):
        colour_folder(tmp_path / "split" / split, ["a", "b"])
    model = small_model(tmp_path / "model", ["a", "b"], record(tmp_path / "split", train))
    found, note = open_unseen(tmp_path / "split", model)
    assert (len(found), note) == (12, "")


FITS = ("crop", "squash", "pad")


def test_another_fit_is_another_evaluation(model, tmp_path):
    data = from_folder(colour_folder(tmp_path, ["0", "3"]))
    wide = [Image.open(data.image(i)).resize((90, 30)) for i in range(len(data))]
    labels = [int(data.class_names[label]) for label in data.labels]
    losses = {fit: evaluate(wide, model, labels=labels, fit=fit, device="cpu").loss for fit in (None, *FITS)}
    assert losses[None] == losses["squash"]  # the usual preprocessing of a ViT made in memory
    assert len(set(losses.values())) == 3
