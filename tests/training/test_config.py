"""`TrainConfig`: it checks itself, goes to JSON and back, and knows what makes another run."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, get_args, get_origin

import docstring_parser
import pytest

from vitreous.training.config import NEUTRAL, TrainConfig
from vitreous.training.recipes import RECIPES


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "Muon"}, "optimizer is adamw, adam, muon or sgd, got 'Muon'"),
        ({"statistics": "typo"}, "statistics is half, imagenet, clip, unit or None, got 'typo'"),
        ({"epochs": 1.5}, "epochs is a whole number, got 1.5"),
        ({"epochs": "2"}, "epochs is a whole number, got '2'"),
        ({"epochs": True}, "epochs is a whole number, got True"),
        ({"batch_size": "many"}, "batch_size is a whole number or auto, got 'many'"),
        ({"crop": (1,)}, r"crop is two numbers or None, got \(1,\)"),
        ({"flip": 1}, "flip is True or False, got 1"),
    ],
)
def test_a_value_of_another_kind_is_an_error_that_says_what_may_be_there(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize("field", [field for field in fields(TrainConfig) if get_origin(field.type) is Literal])
def test_a_misspelt_choice_never_means_another(field):
    for spelled in ("typo", str(get_args(field.type)[-1]).upper()):
        with pytest.raises(ValueError, match=f"^{field.name} is "):
            TrainConfig(**{field.name: spelled})


@pytest.mark.parametrize(
    ("settings", "need"),
    [
        ({"lora_rank": 4}, "policy=lora"),
        ({"temperature": 4.0}, "a teacher"),
        ({"magnitude": 4}, "augment=rand"),
        ({"mix_share": 0.5}, "mixup or cutmix"),
        ({"mixup": 0.4, "mix_share": 0.0, "mix_until": 0.5}, "a mix_share"),
    ],
)
def test_a_setting_without_effect_is_an_error(settings, need):
    with pytest.raises(ValueError, match=f"{list(settings)[-1]} has no effect without {need}: pass that too, or leave"):
        TrainConfig().with_settings(**settings)
    changed = RECIPES["imagenet"].config.with_settings(augment="none", mixup=0.0, cutmix=0.0)
    assert changed.magnitude == 9  # the recipe's own, which nobody typed


def test_a_warm_up_that_nobody_chose_shrinks_with_a_short_run():
    config = TrainConfig(epochs=40, warmup=5)
    assert config.with_settings(epochs=2).warmup == 0.25
    assert config.with_settings(epochs=20).warmup == 5
    assert config.with_settings(epochs=2, warmup=1.0).warmup == 1


def test_a_folder_given_as_a_path_is_not_taken_for_a_dataset():
    assert TrainConfig().with_settings(data=Path("digits")).data == "./digits"
    assert TrainConfig().with_settings(data="digits").data == "digits"
