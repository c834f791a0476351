"""Runs that learn several labels, numbers or masks: they learn, resume to the same bits, and leave a model."""

import json

import numpy as np
import pytest
import torch
from tiny_runs import bits, break_off, differing, make_task, parts_of, plain, tiny

import vitreous
from vitreous.api.train import AnswerRecorder, TrainingRun
from vitreous.data.datasets import open_split
from vitreous.data.image_dataset import TASKS
from vitreous.pages.run import write_run_page
from vitreous.predict.scores import SCORES
from vitreous.training.held_out import HeldOutOutputs, read_answers
from vitreous.training.loop import train

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
