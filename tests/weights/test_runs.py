"""Which file of a training run holds its model."""

import hashlib
import json

import pytest

from vitreous.weights.runs import MODEL_FILE, how_far, is_run, model_file_of, newest_weights


@pytest.fixture
def run(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / MODEL_FILE).write_text("{}")
    return tmp_path


def add_checkpoint(run, step, damaged=False):
    weights = run / f"checkpoints/step-{step:09}.safetensors"
    weights.write_bytes(b"numbers")
    digest = "0" * 64 if damaged else hashlib.sha256(b"numbers").hexdigest()
    weights.with_suffix(".json").write_text(json.dumps({"files": {weights.name: {"sha256": digest}}}))
    return weights


def test_a_run_is_distinguished_from_a_model(run, tmp_path_factory):
    assert is_run(run)
    (run / "model.safetensors").touch()
    assert not is_run(run)
    assert not is_run(tmp_path_factory.mktemp("empty"))


def test_the_newest_complete_checkpoint_is_taken_and_the_finished_model_before_it(run):
    with pytest.raises(
        FileNotFoundError,
        match=r"without a complete .*: if it is running, wait .*; else vitreous train --resume \S+ starts",
    ):
        newest_weights(run)
    first, second = add_checkpoint(run, 1), add_checkpoint(run, 2)
    add_checkpoint(run, 3, damaged=True)
    assert newest_weights(run) == second
    second.unlink()
    assert newest_weights(run) == first
    (run / "model").mkdir()
    (run / "model/model.safetensors").touch()
    assert newest_weights(run) == run / "model"


@pytest.mark.parametrize(
    ("epoch", "step", "shown"), [(2, 0, "epoch 2 of 9"), (8, 5, "the middle of epoch 9 of 9"), ("x", 0, "one of")]
)
def test_an_unfinished_run_names_the_epoch_of_its_weights(run, epoch, step, shown):
    weights = add_checkpoint(run, 1)
    weights.with_suffix(".json").write_text(json.dumps({"epoch": epoch, "step": step}))
    (run / "config.json").write_text('{"epochs": 9}')
    assert f"its weights are from {shown}" in how_far(run, weights)


def test_a_checkpoint_in_parts_says_what_to_do(run):
    (run / "checkpoints/step-000000004").mkdir()
    (run / "checkpoints/step-000000004.json").write_text("{}")
    with pytest.raises(ValueError, match=r"in parts by several processes: .*--resume"):
        newest_weights(run)


def test_a_checkpoint_knows_its_model_file(run, tmp_path):
    checkpoint = add_checkpoint(run, 7)
    assert model_file_of(checkpoint) == run / MODEL_FILE
    assert model_file_of(tmp_path / "vit.safetensors") is None
    (run / MODEL_FILE).unlink()
    with pytest.raises(ValueError, match=f"lacks {MODEL_FILE}"):
        model_file_of(checkpoint)
