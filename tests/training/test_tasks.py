"""Runs that learn several labels, numbers or masks: they learn, resume to the same bits, and leave a model."""

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tiny_runs import Crash, bits, break_off, crash, differing, make_images, make_task, parts_of, plain, tiny

import vitreous
from vitreous.api.train import AnswerRecorder, TrainingRun
from vitreous.data.counter_random import permutation
from vitreous.data.image_dataset import TASKS
from vitreous.data.splits import open_split
from vitreous.pages.run import write_run_page
from vitreous.predict.scores import SCORES
from vitreous.training import loop
from vitreous.training.held_out import HeldOutOutputs, read_answers
from vitreous.training.listeners import ProgressDisplay
from vitreous.training.loop import train
from vitreous.training.setup import open_data

NEW = TASKS[1:]
OFF = {"segment": {"mixup": 0.0}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return {task: make_task(tmp_path_factory.mktemp(task) / "data", task) for task in NEW}


@pytest.mark.parametrize("task", NEW)
def test_a_run_broken_off_at_any_step_ends_with_the_same_bits(data, task, tmp_path, monkeypatch):
    config = tiny(data[task], save_every=0, shift=0.1, **OFF.get(task, {}))
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 3)
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []


@pytest.mark.slow
@pytest.mark.parametrize(("task", "figure"), [("multilabel", 0.95), ("regress", 0.9), ("segment", 0.95)])
def test_a_small_network_learns_where_the_box_is(task, figure, tmp_path):
    boxes = make_task(tmp_path / "data", task, images=360)
    config = plain(boxes, epochs=20, batch_size=24, learning_rate=3e-3, evaluate_every=20, optimizer="muon")
    result = train(config, tmp_path / "run", listeners=[AnswerRecorder()])
    assert result[SCORES[task].main] > figure
    run = TrainingRun(tmp_path / "run", config, result)
    assert run.task == task
    assert run.describe().startswith(SCORES[task].title)
    answers = read_answers(tmp_path / "run/held_out.npz", 20)
    assert isinstance(answers, HeldOutOutputs)
    assert len(answers.rows) == 120 == result["images"]
    page = write_run_page(tmp_path / "run").read_text()
    assert 'id="held-out"' in page
    assert 'id="mistakes"' not in page


def test_numbers_come_out_in_their_own_units(data, tmp_path):
    train(plain(data["regress"], epochs=30, batch_size=10, learning_rate=3e-3), tmp_path / "run")
    _, test = open_split(data["regress"])
    model = vitreous.load(tmp_path / "run/model")
    assert model.card.standard is None
    with torch.no_grad():
        found = torch.stack([model(model.card.preprocess(test.image(i))[None])[0] for i in range(len(test))]).numpy()
    errors = json.loads((tmp_path / "run/result.json").read_text())
    np.testing.assert_allclose(np.abs(found - test.targets).mean(axis=0), [errors["mae_0"], errors["mae_1"]], rtol=1e-4)


def test_a_run_of_labels_keeps_a_threshold_for_each(data, tmp_path):
    train(plain(data["multilabel"], epochs=1), tmp_path / "run")
    card = vitreous.load(tmp_path / "run/model").card
    assert (card.task, card.independent, card.class_names) == ("multilabel", True, ("left", "upper"))
    assert all(0 < threshold < 1 for threshold in card.thresholds)


@pytest.mark.parametrize("readout", ["linear", "decoder"])
def test_a_mask_covers_the_whole_image(data, readout, tmp_path):
    parts = parts_of(plain(data["segment"], readout=readout))
    assert parts.model.card.preprocess.describe().startswith("squash")
    assert parts.evaluate()["images"] == 10
    assert parts.evaluate.masks.shape == (10, 8, 8)
    with torch.no_grad():
        assert parts.model(torch.zeros(1, 3, 8, 8)).shape == (1, 2, 8, 8)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("segment", {"mixup": 0.2}, "mixup does not work for segment"),
        ("regress", {"label_smoothing": 0.1, "balance": "loss"}, "label_smoothing and balance do not work for regress"),
        ("multilabel", {"loss": "mse"}, "loss does not work for multilabel"),
        ("multilabel", {"readout": "decoder"}, "readout=decoder does not work for multilabel: choose own or attention"),
        ("segment", {"readout": "attention"}, "readout=attention does not work for segment"),
        ("segment", {"model": "resnet18_small", "image_size": 32}, "a ResNet has no patch tokens"),
    ],
)
def test_settings_that_do_not_fit_the_task_are_refused(data, task, settings, message):
    with pytest.raises(ValueError, match=message):
        parts_of(plain(data[task], **settings))


def test_an_attention_pool_reads_the_tokens(data):
    model = parts_of(plain(data["regress"], readout="attention")).model
    assert model.config.pool == "attention"
    assert model.config.classes == 2


@pytest.mark.slow
@pytest.mark.parametrize("resident", ["yes", "no"])
def test_a_cropped_run_of_masks_ends_with_the_same_bits_after_a_break(data, resident, tmp_path, monkeypatch):
    config = tiny(data["segment"], save_every=0, crop=(0.3, 1.0), mixup=0.0, resident=resident)
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 3)
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []


def test_a_lora_run_of_labels_killed_before_its_result_finishes_the_next_time(data, tmp_path, monkeypatch):
    config = plain(data["multilabel"], epochs=1, policy="lora")
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "finish", lambda *arguments: crash())
        with pytest.raises(Crash):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "run")) == []
    whole, again = (vitreous.load(tmp_path / name / "model").card.thresholds for name in ("whole", "run"))
    assert again == whole


def test_a_run_of_masks_resumes_in_a_moved_folder_but_not_with_other_masks(tmp_path, monkeypatch):
    folder = make_task(tmp_path / "zoo", "segment")
    before = parts_of(plain(folder)).data_hash
    folder = folder.rename(tmp_path / "moved")
    assert parts_of(plain(folder)).data_hash == before
    config = plain(folder, save_every=0)
    break_off(config, tmp_path / "run", monkeypatch, 2)
    for split, images in (("test", "held-out images"), ("train", "training images and held-out images")):
        path = min((folder / split / "masks").iterdir())
        mask = np.array(Image.open(path))
        mask[-1, -1] = 1 - mask[-1, -1]
        Image.fromarray(mask).save(path)
        with pytest.raises(ValueError, match=f"the {images} or their classes are not those that the run began with"):
            train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("multilabel", "no held-out image has one of the labels: there is nothing to measure"),
        ("segment", "the held-out masks have no pixel of a class: there is nothing to measure"),
    ],
)
@pytest.mark.parametrize("resident", ["yes", "no"])
def test_held_out_images_with_nothing_to_measure_are_refused(task, message, resident, tmp_path):
    folder = make_task(tmp_path / "zoo", task)
    for path in (tmp_path / "zoo/test/masks").glob("*.png"):
        Image.new("L", (8, 8), 255).save(path)
    if task == "multilabel":
        lines = [line.split(",") for line in folder.read_text().splitlines()]
        kept = [[name, "" if split == "test" else labels, split] for name, labels, split in lines]
        folder.write_text("\n".join(map(",".join, kept)))
    with pytest.raises(ValueError, match=message):
        parts_of(plain(folder, resident=resident))


@pytest.mark.parametrize(
    ("header", "cells", "message"),
    [
        ("age", ["1.5", "2.5", *["7"] * 8], "the number 'age' is 7 for all 8 images to learn from"),
        ("labels", ["a;b", "b", *["a"] * 8], "no image to learn from has the label 'b'"),
    ],
)
def test_images_held_out_for_validation_leave_targets_to_learn(header, cells, message, tmp_path):
    make_images(tmp_path / "zoo", classes=["train", "test"], each=10)
    held = sorted(permutation(0, 0, 10).tolist()[:2])
    order = held + [i for i in range(10) if i not in held]
    trained = [f"zoo/train/{i:03d}.png,{cell},train" for i, cell in sorted(zip(order, cells, strict=True))]
    tested = [f"zoo/test/{i:03d}.png,{cell},test" for i, cell in enumerate(cells)]
    (tmp_path / "table.csv").write_text("\n".join([f"image,{header},split", *trained, *tested]))
    open_data(plain(tmp_path / "table.csv"), None)
    with pytest.raises(ValueError, match=message):
        open_data(plain(tmp_path / "table.csv", validation=0.2), None)


def test_errors_of_several_numbers_have_their_names_wherever_they_are_shown(data, tmp_path):
    config, console = plain(data["regress"], epochs=1), Console(file=io.StringIO(), width=400)
    with ProgressDisplay(console) as display:
        result = train(config, tmp_path / "run", listeners=[display, AnswerRecorder()])
    errors = rf"mean error {result['mae_0']:.4g} \(top\), {result['mae_1']:.4g} \(left\)"
    assert re.search(errors, TrainingRun(tmp_path / "run", config, result).describe())
    assert re.search(errors, console.file.getvalue())
    page = write_run_page(tmp_path / "run").read_text()
    assert f"<strong>{result['mae_1']:.3g}</strong><span>mean absolute error of left</span>" in page
