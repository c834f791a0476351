import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from task_sets import NAMES, TASKS, make_task_data, task_model, train_on
from tiny_runs import make_task
from tiny_sets import colour_folder

from conftest import noise
from vitreous.data.datasets import open_dataset
from vitreous.data.image_dataset import NOUNS, join_datasets
from vitreous.data.sources.class_folder import from_folder
from vitreous.data.splits import open_split
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.evaluate import evaluate, open_unseen
from vitreous.predict.evaluation_result import confidence_interval
from vitreous.predict.preprocess_check import check_preprocess
from vitreous.predict.scores import SCORES
from vitreous.runtime.wording import figure
from vitreous.weights.class_names import imagenet_names, imagenet_wordnet_ids
from vitreous.weights.load import load
from vitreous.weights.save import save


@pytest.fixture(scope="module")
def model(small_folder):
    return load(small_folder)


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


@pytest.mark.parametrize(
    ("recorded", "validation", "expected"), [(7, 0.0, 7), (8, 0.2, 8), (None, 0.0, 10), (None, 0.2, 8), (700, 0.0, 10)]
)
def test_the_number_of_images_that_a_model_learned_from_is_its_records(recorded, validation, expected, tmp_path):
    """Unreadable images and those for validation were not learned from; images may have been removed since."""
    data = colour_folder(tmp_path / "data", ["a", "b"])
    train, _ = open_split(data, held_out=0.3)
    assert len(train) == 10
    kept = record(data, train, validation=validation) | {"training_images": recorded}
    model = small_model(tmp_path / "model", ["a", "b"], kept)
    for everything in (False, True):
        assert f"learned from {expected} of these 12 images" in open_unseen(data, model, all_images=everything)[1]


def test_a_folder_that_was_moved_is_known_and_another_is_doubted(tmp_path):
    data = colour_folder(tmp_path / "data", ["a", "b"])
    train, held_out = open_split(data, held_out=0.3)
    moved = small_model(tmp_path / "moved", ["a", "b"], record("/elsewhere/data", train))
    assert len(open_unseen(data, moved)[0]) == len(held_out)
    other = small_model(tmp_path / "other", ["a", "b"], record("/elsewhere/pets", train))
    found, note = open_unseen(data, other)
    assert len(found) == 12
    assert note.startswith("the model was trained on /elsewhere/pets: if it learned from these images")


@pytest.mark.parametrize("classes", [["a"], ["a", "b"], ["b", "c"]])
def test_images_of_some_of_the_training_classes_are_doubted(classes, tmp_path):
    train, _ = open_split(colour_folder(tmp_path / "data", ["a", "b", "c"]), held_out=0.3)
    model = small_model(tmp_path / "model", ["a", "b", "c"], record(tmp_path / "data", train))
    data = colour_folder(tmp_path / "part", classes)
    found, note = open_unseen(data, model)
    assert len(found) == 6 * len(classes)
    assert note == f"the model was trained on {tmp_path / 'data'}: if it learned from these images, this is too high"
    assert "if it learned from these images" in evaluate(data, model, device="cpu").note
    known = small_model(tmp_path / "known", ["a", "b", "c"], record("cifar10", train))
    assert open_unseen(data, known)[1] == ""  # a built-in dataset: not the user's own images
    for split in ("train", "test"):
        colour_folder(tmp_path / "split" / split, classes)
    assert open_unseen(tmp_path / "split", model)[1] == ""


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


@pytest.mark.parametrize("names", [[*"abc"], [f"class {i}" for i in range(12)], imagenet_names()])
def test_names_of_a_built_in_dataset_are_never_read_as_class_indices(names, tmp_path):
    model = small_model(tmp_path / "model", names)
    refused = "10 of 10 classes are not the model's, such as '0': to learn them"
    with pytest.raises(ValueError, match=refused):
        evaluate("digits", model, limit=10, device="cpu")
    with pytest.raises(ValueError, match=refused):
        check_preprocess(model, open_dataset("digits").spread(3))
    with pytest.raises(ValueError, match=refused):
        evaluate(join_datasets([open_dataset("digits", "train"), open_dataset("digits")]), model, limit=3)


def test_names_of_a_built_in_dataset_match_a_models_own(tmp_path):
    model = small_model(tmp_path / "model", [*reversed("0123456789")])
    result = evaluate("digits", model, limit=20, device="cpu")
    assert result.note == ""
    data = open_dataset("digits").spread(20)
    counts = [data.labels.count(int(name)) for name in result.class_names]
    assert result.confusion.sum(dim=1).tolist() == counts


def test_a_model_without_names_may_have_a_built_in_datasets_classes(tmp_path):
    model = small_model(tmp_path / "model", [*"0123456789"])
    named = evaluate("digits", model, limit=20, device="cpu").confusion
    model.card.class_names = None
    assert torch.equal(evaluate("digits", model, limit=20, device="cpu").confusion, named)


def test_folders_that_are_read_as_class_indices_are_named_in_a_note(tmp_path):
    data = colour_folder(tmp_path / "data", ["0", "2"])
    flowers = small_model(tmp_path / "model", ["iris", "lily", "rose"])
    note = "class names '0', '2' are read as class indices: 'iris', 'rose'"
    assert evaluate(data, flowers, device="cpu").note == note
    paths = [str(path) for path in sorted(data.glob("*/*.png"))]
    assert evaluate(paths, flowers, labels=[0] * len(paths), device="cpu").note == ""  # these can be nothing else
    assert evaluate(data, small_model(tmp_path / "numbers", ["0", "1", "2"]), device="cpu").note == ""
    many = small_model(tmp_path / "many", imagenet_names())
    colour_folder(data, ["3", "4"])
    shown = "'0', '2', '3' and 1 more are read as class indices: 'tench', 'great white shark', 'tiger shark' and 1 more"
    assert evaluate(data, many, device="cpu").note == f"class names {shown}"


FITS = ("crop", "squash", "pad")


def test_another_fit_is_another_evaluation(model, tmp_path):
    data = from_folder(colour_folder(tmp_path, ["0", "3"]))
    wide = [Image.open(data.image(i)).resize((90, 30)) for i in range(len(data))]
    labels = [int(data.class_names[label]) for label in data.labels]
    losses = {fit: evaluate(wide, model, labels=labels, fit=fit, device="cpu").loss for fit in (None, *FITS)}
    assert losses[None] == losses["squash"]  # the usual preprocessing of a ViT made in memory
    assert len(set(losses.values())) == 3


# --- other tasks than a class for each image --------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TASKS)
def trained(request, tmp_path_factory):
    """A tiny model of a task, the data of its run, and the run's result."""
    folder = tmp_path_factory.mktemp(request.param)
    data = make_task_data(folder / "data", request.param)
    model, result = train_on(data, folder / "run")
    return request.param, data, model, result


def test_the_held_out_images_have_the_figures_of_the_runs_last_evaluation(trained):
    task, data, model, result = trained
    found = evaluate(data, model, device="cpu", batch_size=4)
    assert found.task == task
    assert found.images == result["images"]
    assert "were held out" in found.note
    expected = {
        name: result[name] for name in ("map", "f1", "r2", "miou", "pixel_accuracy", "boundary_f") if name in result
    }
    assert {name: found.figures[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
    if task == "regress":
        errors = [own["mae"] for own in found.each.values()]
        assert errors == pytest.approx([result["mae_0"], result["mae_1"]], rel=1e-6)


def test_all_images_are_measured_on_request_and_fewer_if_limited(trained):
    _, data, model, _ = trained
    everything = evaluate(data, model, all_images=True, device="cpu")
    assert everything.images == 30
    assert "so this is too high" in everything.note
    assert evaluate(data, model, limit=2, device="cpu").images == 2


def test_batches_and_ranks_do_not_change_the_figures(trained):
    _, data, model, _ = trained
    images = open_dataset(data, task=model.card.task)
    whole = evaluate(images, model, device="cpu", batch_size=30)
    parts = evaluate(images, model, device="cpu", batch_size=7)
    assert parts.summary() == pytest.approx(whole.summary())
    assert parts.per_class().keys() == whole.per_class().keys()


def test_figures_of_each_name_are_shown_and_written(trained, tmp_path):
    task, data, model, _ = trained
    found = evaluate(data, model, device="cpu")
    main = SCORES[task].main
    lines = repr(found).splitlines()
    assert lines[0].split() == ["task", task]
    assert lines[1].endswith(figure(main, found.figures[main]))
    assert any(line.startswith(f"  {name} ") for line in lines for name in model.card.class_names)
    assert found._repr_html_().count("<tr>") == len(found.summary())
    paths = found.write(tmp_path)
    assert [path.name for path in paths] == ["result.json", "per_class.json"]
    assert json.loads(paths[0].read_text()) == found.summary()
    assert json.loads(paths[1].read_text()) == found.per_class()


def test_the_thresholds_of_a_card_have_an_f1_of_their_own(tmp_path):
    data = open_dataset(make_task_data(tmp_path / "data", "multilabel"), task="multilabel")
    model = task_model("multilabel")
    assert "f1_at_thresholds" not in evaluate(data, model, device="cpu").figures
    model.card.thresholds = (0.5, 0.5, 0.5)
    half = evaluate(data, model, device="cpu").figures
    assert half["f1_at_thresholds"] == half["f1"]
    model.card.thresholds = (0.0, 0.0, 0.0)  # all labels are present
    shares = data.targets.mean(axis=0)
    expected = np.mean(2 * shares / (1 + shares))
    assert evaluate(data, model, device="cpu").figures["f1_at_thresholds"] == pytest.approx(expected, rel=1e-6)


def test_numbers_agree_with_scikit_learn(tmp_path):
    data = open_dataset(make_task_data(tmp_path / "data", "regress"))
    model = task_model("regress")
    found = evaluate(data, model, device="cpu")
    with torch.no_grad():
        images = [model.card.preprocess(data.image(i)) for i in range(len(data))]
        numbers = model(torch.stack(images)).numpy()
    for i, name in enumerate(data.class_names):
        pair = data.targets[:, i], numbers[:, i]
        assert found.each[name]["r2"] == pytest.approx(r2_score(*pair), rel=1e-4)
        assert found.each[name]["mae"] == pytest.approx(mean_absolute_error(*pair), rel=1e-4)
        assert found.each[name]["rmse"] == pytest.approx(root_mean_squared_error(*pair), rel=1e-4)


def test_masks_are_measured_as_the_model_sees_them(tmp_path):
    """A model that sees red as the second class, on masks that say where red is: every pixel is right."""
    data = make_task_data(tmp_path / "data", "segment")
    for path in (data / "images").iterdir():
        mask = np.asarray(Image.open(data / "masks" / path.name))
        Image.fromarray(np.where(mask[..., None] == 1, [255, 0, 0], [0, 0, 0]).astype(np.uint8)).save(path)
    model = task_model("segment")
    model.card.preprocess = replace(model.card.preprocess, interpolation="nearest")

    def seen(pixels):  # uint8 [b c h w]
        red = pixels[:, 0].float()
        return torch.stack([128 - red, red - 128], dim=1)

    found = evaluate(data, model, compute=seen, device="cpu")
    assert found.figures == {"miou": 1.0, "pixel_accuracy": 1.0, "boundary_f": 1.0}
    assert found.each == {"ground": {"iou": 1.0}, "box": {"iou": 1.0}}


def test_names_in_another_order_are_matched(tmp_path):
    data = make_task_data(tmp_path / "data", "regress")
    model = task_model("regress", ["height", "light"])
    swapped = evaluate(data, model, device="cpu")
    assert list(swapped.each) == ["height", "light"]
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.flip(0))
        model.head.bias.copy_(model.head.bias.flip(0))
    model.card.class_names = ("light", "height")
    again = evaluate(data, model, device="cpu")
    assert again.each["light"] == pytest.approx(swapped.each["light"])


@pytest.mark.parametrize("task", TASKS)
def test_other_names_than_the_models_are_one_line(task, tmp_path):
    data = make_task_data(tmp_path / "data", task)
    model = task_model(task, [f"{name}?" for name in NAMES[task]])
    with pytest.raises(ValueError, match=r"not among the \d expected: .*; tiny knows '\w+\?'"):
        evaluate(data, model, device="cpu")
    model.card.class_names = None
    assert evaluate(data, model, device="cpu").images == 30
    with pytest.raises(ValueError, match=r"tiny answers with 5 .*, (data|table\.csv) has [23] "):
        evaluate(data, nameless(task), device="cpu")


def nameless(task):
    model = task_model(task, "abcde")
    model.card.class_names = None
    return model


@pytest.mark.parametrize(("task", "other"), [(a, b) for a in TASKS for b in (*TASKS, "classify") if a != b])
def test_data_of_another_task_is_one_line(task, other, tmp_path):
    data = make_task_data(tmp_path / "data", task)
    model = task_model(other) if other != "classify" else small_model(tmp_path / "model", ["a", "b"])
    nouns = NOUNS[other], NOUNS[task]
    with pytest.raises(ValueError, match=f"answers with {nouns[0]}, and .* has {nouns[1]}: expected a "):
        evaluate(data, model, device="cpu")
    with pytest.raises(ValueError, match=f"answers with {nouns[0]}, and .* has {nouns[1]}: expected a "):
        evaluate(open_dataset(data), model, device="cpu")


def test_a_table_that_serves_several_tasks_serves_the_models(tmp_path):
    """Labels of which no image has two look like classes, and columns of 0 and 1 like labels."""
    (tmp_path / "images").mkdir()
    for name in "ab":
        Image.new("RGB", (4, 4)).save(tmp_path / f"images/{name}.png")
    table = tmp_path / "table.csv"
    table.write_text("image,labels\nimages/a.png,blue\nimages/b.png,red\n")
    assert open_dataset(table).task == "classify"
    assert evaluate(table, task_model("multilabel"), device="cpu").task == "multilabel"
    table.write_text("image,light,height\nimages/a.png,1,0\nimages/b.png,0,1\n")
    assert open_dataset(table).task == "multilabel"
    assert evaluate(table, task_model("regress"), device="cpu").task == "regress"


def test_an_unreadable_mask_is_counted_apart(tmp_path):
    data = open_dataset(make_task_data(tmp_path / "data", "segment"))
    (tmp_path / "data/masks/03.png").write_bytes(b"no mask")
    found = evaluate(data, task_model("segment"), device="cpu")
    assert (found.images, len(found.problems)) == (29, 1)
    assert "03.png" in str(found.problems[0])


def test_a_label_that_no_image_has_is_left_out_and_no_label_at_all_is_an_error(tmp_path):
    data = make_task_data(tmp_path / "data", "multilabel")
    model = task_model("multilabel", ["blue", "green", "red", "pink"])
    assert list(evaluate(data, model, device="cpu").each) == ["blue", "green", "red"]
    none = open_dataset(data)
    with pytest.raises(ValueError, match="no image has one of the labels"):
        evaluate(replace(none, targets=none.targets * 0), model, device="cpu")


@pytest.mark.parametrize("task", ["classify", *TASKS])
def test_outputs_of_nan_are_one_line(task, tmp_path):
    if task == "classify":
        data, model = colour_folder(tmp_path / "data", ["a", "b"]), small_model(tmp_path / "model", ["a", "b"])
    else:
        data, model = make_task_data(tmp_path / "data", task), task_model(task)
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    with pytest.raises(ValueError, match="answers NaN: `vitreous doctor` tells whether its weights hold any"):
        evaluate(data, model, device="cpu")


def test_of_a_single_image_the_errors_of_numbers_are_measured_without_r2(tmp_path):
    found = evaluate(make_task_data(tmp_path / "data", "regress"), task_model("regress"), limit=1, device="cpu")
    assert found.figures == {}
    assert [list(own) for own in found.each.values()] == [["mae", "rmse"]] * 2
    assert "MAE" in repr(found)
    assert "R²" not in repr(found)


def test_f1_at_thresholds_comes_with_the_note_that_they_were_chosen_on_these_images(tmp_path):
    data = make_task_data(tmp_path / "data", "multilabel")
    train, _ = open_split(data, held_out=0.3, task="multilabel")
    model, note = task_model("multilabel"), "the thresholds of the labels were chosen on these images"
    model.card.training = record(data, train)
    assert note not in evaluate(data, model, device="cpu").note
    model.card.thresholds = (0.5, 0.5, 0.5)
    assert note in evaluate(data, model, device="cpu").note
    model.card.training = record(data, train, validation=0.1)  # chosen on other images
    assert note not in evaluate(data, model, device="cpu").note


def test_a_test_split_that_thresholds_were_chosen_on_has_the_note_too(tmp_path):
    data = make_task(tmp_path / "data", "multilabel")
    train, _ = open_split(data, task="multilabel")
    model = task_model("multilabel", train.class_names)
    model.card.thresholds = (0.5, 0.5)
    assert evaluate(data, model, device="cpu").note == ""
    model.card.training = record(data, train)
    assert evaluate(data, model, device="cpu").note.startswith("the thresholds of the labels were chosen on these")


def numbered(names):
    """A model of ten classes that has a name for each, with images."""
    model = load("packaged:cifar10")
    model.card.class_names = tuple(names)
    return model, [Image.effect_noise((32, 32), 10 * i + 10).convert("RGB") for i in range(6)]


def test_a_number_is_an_index_whichever_others_occur_and_a_text_may_be_a_name():
    model, images = numbered(str(i) for i in range(1, 11))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.eye(10)[6])  # every image is class 6, which is called "7"
    assert evaluate(images, model, labels=[6] * 6).top1 == 1
    assert evaluate(images, model, labels=np.array([6] * 5 + [0])).top1 == pytest.approx(5 / 6)
    assert evaluate(images, model, labels=["7"] * 6).top1 == 1
    assert evaluate(images, model, labels=["7", 6, "7", 6, "7", np.int64(6)]).top1 == 1
    for wrong in (10, -1):
        with pytest.raises(ValueError, match=f"{wrong} is no class index: the model has classes 0 to 9"):
            evaluate(images, model, labels=[6] * 5 + [wrong])
    with pytest.raises(ValueError, match=r"the index of a class or its name, got 6\.5"):
        evaluate(images, model, labels=[6.5] * 6)


def test_two_classes_of_one_name_are_counted_apart(tmp_path):
    model, images = numbered(["crane", "crane", *"cdefghij"])
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.eye(10)[0])
    result = evaluate(images, model, labels=[0, 0, 0, 1, 2, 2])
    assert result.counts == {"crane (0)": 3, "crane (1)": 1, "c": 2}
    assert result.balanced_accuracy == pytest.approx(1 / 3)
    assert not result.is_balanced
    assert sum(result.counts.values()) == result.images
    result.write(tmp_path)
    assert json.loads((tmp_path / "per_class.json").read_text()) == {"crane (0)": 1.0, "crane (1)": 0.0, "c": 0.0}


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_numbers_are_not_computed_in_a_precision_that_rounds_them(precision, tmp_path):
    """Near 1,991 bf16 has only multiples of 8."""
    model = task_model("regress")
    data = open_dataset(make_task_data(tmp_path / "data", "regress"))
    with pytest.raises(ValueError, match=f"numbers are computed in fp32, {precision} would round them"):
        evaluate(data, model, precision=precision)


def test_of_equal_logits_the_first_five_hold_the_first():
    labels = torch.zeros(20, dtype=torch.long)
    rows = SCORES["classify"].rows(torch.zeros(20, 20), labels)
    assert SCORES["classify"].figures(rows, labels.tolist()) == {"top1": 1.0, "top5": 1.0}
