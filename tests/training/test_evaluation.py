"""Accuracy in the middle of a run, against counting by hand."""

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import make_images, parts_of, plain

from conftest import noise
from vitreous.predict.scores import balanced_accuracy
from vitreous.training.step import TrainStep


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("zoo") / "zoo", classes=tuple("abcdefg"), each=9)


@pytest.mark.parametrize("batch", [50, 4])
def test_against_counting_by_hand(zoo, batch):
    parts = parts_of(plain(zoo, held_out=0.4))
    noise(parts.model).train()
    parts.evaluate.batch = batch
    found = parts.evaluate()
    model = noise(parts_of(plain(zoo, held_out=0.4)).model)
    model.load_state_dict(parts.model.state_dict())
    with torch.no_grad():
        logits = model.eval()(parts.evaluate.augment.plain(parts.test_source.pixels))
    labels = torch.tensor(parts.test_data.labels)
    five = logits.topk(5).indices
    assert found["images"] == len(labels) > 8
    assert found["top1"] == pytest.approx((logits.argmax(-1) == labels).float().mean().item())
    assert found["top5"] == pytest.approx((five == labels[:, None]).any(-1).float().mean().item())
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-4)
    assert found["top1"] < found["top5"] < 1
    assert parts.model.training  # evaluation runs on a copy


def test_the_average_is_evaluated(zoo):
    parts = parts_of(plain(zoo, average=0.5))
    noise(parts.model)
    assert parts.evaluate()["loss"] == pytest.approx(torch.tensor(7.0).log().item())  # the average's head is zero still
    for name, value in parts.state.average.items():
        value.copy_(parts.model.get_parameter(name))
    assert parts.evaluate()["loss"] > 2.0


@pytest.mark.slow
def test_large_images_are_evaluated_in_small_batches(zoo, monkeypatch):
    monkeypatch.setattr(TrainStep, "warm_up", lambda step, batch: 0.0)  # a step of 2,048 px takes a minute
    sizes = (8, 224, 2048)
    batches = [parts_of(plain(zoo, model="resnet18", image_size=size, resident="no")).evaluate.batch for size in sizes]
    assert batches[0] >= batches[1] > batches[2] == 1
    assert batches[1] * 224 * 224 <= 4_000_000


def test_balanced_accuracy_counts_each_class_once():
    assert balanced_accuracy([0] * 8 + [1] * 2, [0] * 8 + [0, 1]) == pytest.approx(0.75)
