"""A run's answers to its held-out images, as its page shows them."""

import numpy as np
import pytest
from tiny_runs import make_images, tiny

from vitreous.training.held_out import AnswerRecorder, HeldOutAnswers, read_answers, write_answers
from vitreous.training.loop import train
from vitreous.training.run_folder import RunFolder


def answers(labels, predicted, epoch=3):
    names, counts, images = ("cat", "dog", "owl"), np.array([5, 5, 5]), np.zeros((1, 4, 4, 3), np.uint8)
    mistake = np.array([1]), np.array([0.9]), ("1.png",), images
    return HeldOutAnswers(epoch, names, counts, np.array(labels), np.array(predicted), *mistake)


def test_confusions_are_counted_by_label_and_answer():
    found = answers([0, 0, 1, 2, 2, 2], [0, 1, 1, 0, 0, 2])
    assert found.confusion().tolist() == [[1, 1, 0], [0, 1, 0], [2, 0, 1]]
    assert found.confusions() == [(2, 0, 2), (0, 1, 1)]
    assert found.accuracy == 0.5


def test_answers_are_read_back_for_their_own_epoch_alone(tmp_path):
    path = write_answers(tmp_path / "held_out.npz", answers([0, 1], [0, 2]))
    found = read_answers(path, 3)
    assert (found.epoch, found.class_names, found.names) == (3, ("cat", "dog", "owl"), ("1.png",))
    assert found.predicted.tolist() == [0, 2]
    assert read_answers(path, 4) is None  # the run went back to an earlier checkpoint
    path.write_bytes(path.read_bytes()[:50])
    assert read_answers(path, 3) is None
    assert read_answers(tmp_path / "none.npz", 3) is None


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_a_run_keeps_the_answers_that_its_metrics_count(tmp_path, resident):
    folder = RunFolder(tmp_path / "run")
    result = train(tiny(make_images(tmp_path / "zoo"), resident=resident), folder.path, listeners=[AnswerRecorder()])
    found = read_answers(folder.held_out, 2)
    assert found.accuracy == pytest.approx(result["top1"])
    assert len(found.labels) == result["images"]
    assert set(found.mistakes) <= set(np.flatnonzero(found.labels != found.predicted))
    assert (np.diff(found.confidence) <= 0).all()
    assert len(found.images) == len(found.mistakes) == len(found.names)
    assert not any("/" in name for name in found.names)
