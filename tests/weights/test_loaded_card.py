"""What a config file says of a loaded model's task, thresholds and standard is read, and checked against the model."""

import pytest

from vitreous.models.vit_config import ViTConfig
from vitreous.weights.loaded_card import stated_task
from vitreous.weights.safety import CheckpointError

SMALL = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 1, "heads": 2}
TWO = ViTConfig(**SMALL, classes=2)
DENSE = ViTConfig(**SMALL, classes=2, dense="linear", dense_blocks=(0,))


def stated(**own):
    return {"task": "classify", "thresholds": None, "standard": None, "config": {}} | own


@pytest.mark.parametrize(
    ("own", "config", "message"),
    [
        (stated(task="mystery"), TWO, "task='mystery', expected one of classify, multilabel, regress, segment"),
        (stated(task=None), TWO, "task=None, expected one of"),
        (stated(task=["classify"]), TWO, r"task=\['classify'\], expected one of"),
        (stated(task="segment"), TWO, "task='segment', and its model has no dense head"),
        (stated(), DENSE, "task='classify', and its model has a dense head"),
        (stated(task="multilabel", thresholds=[0.5]), TWO, "one entry for each of 2 labels"),
        (stated(task="multilabel", thresholds=0.5), TWO, "one entry for each of 2 labels"),
        (stated(task="multilabel", thresholds=[0.5, 1.5]), TWO, "expected probabilities"),
        (stated(task="multilabel", thresholds=[0.5, "0.5"]), TWO, "expected probabilities"),
        (stated(task="multilabel", thresholds=[0.5, float("nan")]), TWO, "expected probabilities"),
        (stated(task="multilabel", thresholds=[True, False]), TWO, "expected probabilities"),
        (stated(thresholds=[0.5, 0.5]), TWO, "expected none for task='classify'"),
        (stated(task="regress", standard=[[0.0, 1.0]]), TWO, "one entry for each of 2 numbers"),
        (stated(task="regress", standard=[[0.0, 1.0], [0.0]]), TWO, "a mean and a deviation of each number"),
        (stated(task="regress", standard=[[0.0, 1.0], [0.0, -1.0]]), TWO, "a mean and a deviation of each number"),
        (stated(task="regress", standard=[[0.0, 1.0], ["0", 1.0]]), TWO, "a mean and a deviation of each number"),
        (stated(task="multilabel", standard=[[0.0, 1.0]] * 2), TWO, "expected none for task='multilabel'"),
        ({"config": {}, "thresholds": None, "standard": None}, TWO, "does not state the task"),
        ({"config": {}, "task": "regress", "thresholds": None}, TWO, "does not state the standard"),
    ],
)
def test_what_a_file_says_of_the_task_is_checked(own, config, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        stated_task({}, own, config)
    assert "\n" not in str(caught.value)


def test_what_a_file_says_of_the_task_is_read():
    assert stated_task({}, {}, TWO) == {"task": "classify", "thresholds": None, "standard": None}
    assert stated_task({}, {}, DENSE)["task"] == "segment"
    assert stated_task({}, stated(task="multilabel", thresholds=[0, 0.5]), TWO)["thresholds"] == (0.0, 0.5)
    assert stated_task({}, stated(task="regress", standard=[[1, 2.5], [0, 1]]), TWO)["standard"] == ((1, 2.5), (0, 1))
    assert stated_task({"problem_type": "multi_label_classification"}, {}, TWO)["task"] == "multilabel"
    assert stated_task({"problem_type": "regression"}, {}, TWO)["task"] == "regress"
    assert stated_task({"problem_type": "single_label_classification"}, {}, TWO)["task"] == "classify"
    with pytest.raises(CheckpointError, match="problem_type='mystery'"):
        stated_task({"problem_type": "mystery"}, {}, TWO)
