"""Folders of earlier versions load: those of 0.1 have the same logits, later ones the fields that they did not state.

`tests/files/model-0.1` holds a ViT, a ResNet's config and the model folder of a finished training run, all written by
version 0.1, and the logits that 0.1 computed. The ResNet's 11 million weights are a formula here.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import assert_same
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.weights.inspect import inspect
from vitreous.weights.load import load
from vitreous.weights.model_card import model_card
from vitreous.weights.safety import CheckpointError
from vitreous.weights.save import save
from vitreous.weights.saved_config import UPGRADES, VERSION, read_own

OLD = Path(__file__).parents[1] / "files/model-0.1"


LOGITS = {name: torch.tensor(values) for name, values in json.loads((OLD / "logits.json").read_text()).items()}


def wave(*shape):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * 0.37).reshape(shape).float()


def resnet_weights():
    state = ResNet(ResNetConfig(18, 3, stem="small")).state_dict()
    for key, value in state.items():
        if value.is_floating_point():
            scale = key.endswith("running_var") or (value.dim() == 1 and key.endswith("weight"))
            state[key] = wave(*value.shape) * (0.05 if value.dim() > 1 else 0.1) + float(scale)
    return state


@torch.no_grad()
def test_a_vit_of_0_1_has_the_same_logits():
    model = load(OLD / "vit")
    assert_same(model(wave(2, 3, 16, 16)), LOGITS["vit"], 1e-6)
    assert model.card.class_names == ("cat", "dog", "owl")
    assert model.config.registers == 1
    assert model.card.report.assumed == {"preprocessing": "as is usual for tests"}
    assert set(load_file(OLD / "vit/model.safetensors")) == set(model.state_dict())


@torch.no_grad()
def test_a_resnet_of_0_1_has_the_same_logits(tmp_path):
    shutil.copy(OLD / "resnet/config.json", tmp_path)
    save_file(resnet_weights(), tmp_path / "model.safetensors")
    model = load(tmp_path)
    assert_same(model(wave(2, 3, 16, 16)), LOGITS["resnet"], 1e-6)
    assert (model.config.stem, model.card.class_names) == ("small", ("cat", "dog", "owl"))


@torch.no_grad()
def test_a_trained_model_of_0_1_has_the_same_logits_and_its_record_in_todays_words():
    model = load(OLD / "trained")
    assert_same(model(wave(2, 1, 8, 8)), LOGITS["trained"], 1e-6)
    training = model.card.training
    assert training["result"]["images"] == 360
    assert training["training_images"] == 1437
    assert "epoch_images" in training["config"]
    assert not any(word in json.dumps(training) for word in ("picture", "learned"))
    assert ("accuracy", "13.89% of 360 held-out images") in inspect(model).sections["training"]
    assert "Trained on 1,437 images of digits." in model_card(model)


def test_an_old_model_is_saved_in_todays_layout(tmp_path):
    model = load(OLD / "trained")
    save(model, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["vitreous"]
    assert stored["version"] == VERSION == 6
    assert stored["training"] == model.card.training
    assert load(tmp_path).card.training == model.card.training


def test_every_earlier_version_has_an_upgrade():
    assert set(UPGRADES) == set(range(1, VERSION))


@pytest.mark.parametrize("version", [VERSION + 1, "2", None, 1.5])
def test_another_layout_is_an_error(version):
    with pytest.raises(CheckpointError, match=f"expected at most {VERSION}: update vitreous"):
        read_own({"vitreous": {"version": version}})


@pytest.mark.parametrize("training", [None, 5, {}, {"result": None, "config": [1]}])
def test_an_upgrade_leaves_a_strange_record_as_it_is(training):
    assert read_own({"vitreous": {"version": 1, "training": training}})["training"] == training


def test_a_config_of_another_library_has_no_section_of_ours():
    assert read_own({"architecture": "vit"}) == {}
    with pytest.raises(CheckpointError, match="expected an object of fields"):
        read_own({"vitreous": [1]})


def test_a_file_of_version_3_has_one_class_for_each_image(small_folder, tmp_path):
    shutil.copytree(small_folder, tmp_path / "old")
    path = tmp_path / "old/config.json"
    stored = json.loads(path.read_text())
    own = stored["vitreous"]
    for name in ("task", "thresholds", "standard"):
        del own[name]
    for name in ("dense", "dense_blocks"):
        del own["config"][name]
    own["version"] = 3
    path.write_text(json.dumps(stored))
    model = load(tmp_path / "old")
    assert (model.card.task, model.config.dense, model.config.dense_blocks) == ("classify", "none", ())
    own["version"] = 4
    path.write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match="does not state dense, dense_blocks of the model"):
        load(tmp_path / "old")


def test_a_file_of_version_4_has_the_papers_norms_and_narrow_positions(small_folder, tmp_path):
    shutil.copytree(small_folder, tmp_path / "old")
    path = tmp_path / "old/config.json"
    stored = json.loads(path.read_text())
    own = stored["vitreous"]
    for name in ("position_std", "residual_norm"):
        del own["config"][name]
    own["version"] = 4
    path.write_text(json.dumps(stored))
    config = load(tmp_path / "old").config
    assert (config.position_std, config.residual_norm) == (0.02, False)
    own["version"] = 5
    path.write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match="does not state position_std, residual_norm of the model"):
        load(tmp_path / "old")


def test_a_file_of_version_5_is_resized_as_timms_if_vitreous_made_it(small_folder, tmp_path):
    shutil.copytree(small_folder, tmp_path / "old")
    path = tmp_path / "old/config.json"
    stored = json.loads(path.read_text())
    own = stored["vitreous"]
    del own["resize"]
    for origin, expected in (("memory", "timm"), ("trained", "timm"), ("hub", None)):
        own["version"], own["source"]["origin"] = 5, origin
        path.write_text(json.dumps(stored))
        assert load(tmp_path / "old").card.resize == expected
        assert "(timm's convention)" in load(tmp_path / "old", image_size=64).card.report.resized[0]
    own["version"] = 6
    path.write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match="does not state how positions are resized"):
        load(tmp_path / "old")
    own["resize"] = "nearest"
    path.write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match="config.json says resize='nearest', expected one of google, timm"):
        load(tmp_path / "old")
