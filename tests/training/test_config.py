"""`TrainConfig`: it checks itself, goes to JSON and back, and knows what makes another run."""

import json
from dataclasses import fields, replace

import docstring_parser
import pytest

from vitreous.training.config import NEUTRAL, TrainConfig


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"keep": 0}, "keep must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 10, "accumulate": 4}, "accumulate must divide batch_size, got 4 and 10"),
        ({"validation": 1.0}, "validation must lie in"),
        ({"beta2": 1.0}, "beta2 must lie in"),
        ({"dropout": -0.1}, "dropout must lie in"),
        ({"dropout": float("nan")}, "dropout must lie in"),
        ({"mix_share": 1.1}, "mix_share must lie in"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
        ({"crop": (0.8, 0.3)}, "crop is a range"),
        ({"channels": 2}, "1 for grey or 3 for colour"),
        ({"initial": "local", "pretrained": True}, "initial=local is for fresh weights"),
        ({"mix_until": 1.5, "mixup": 0.8}, "mix_until must lie in"),
        ({"mix_until": 0.5}, "this run mixes nothing"),
        ({"seed": -1}, "seed must lie in"),
        ({"seed": 2**64}, "seed must lie in"),
    ],
)
def test_nonsense_is_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        TrainConfig(**changes)


def test_a_config_survives_json():
    config = TrainConfig(crop=(0.3, 1.0), batch_size="auto", teacher="x", image_size=32)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_field_of_another_version_is_named():
    with pytest.raises(ValueError, match="another version.*magic"):
        TrainConfig.from_dict({"epochs": 3, "magic": 1})


def test_every_field_has_a_docstring():
    docs = {each.arg_name: each.description for each in docstring_parser.parse_from_object(TrainConfig).params}
    assert [field.name for field in fields(TrainConfig)] == list(docs)
    assert all(docs.values())


def test_only_what_changes_the_weights_makes_another_run():
    config = TrainConfig()
    other = replace(config, save_every=1.0, keep=5, workers=3, log="tensorboard", evaluate_every=7, snapshots=0)
    assert config.differences(replace(other, device="cpu")) == []
    assert config.differences(replace(config, seed=1, epochs=3)) == ["epochs", "seed"]
    assert {field.name for field in fields(TrainConfig)} > NEUTRAL


def test_a_batch_size_of_auto_fits_the_one_that_was_found():
    found = TrainConfig(batch_size=512)
    assert replace(found, batch_size="auto").differences(found) == []
    assert found.differences(replace(found, batch_size="auto")) == ["batch_size"]
