"""Weights of timm's classifiers by file, and the folders of runs that trained one: exactly or not at all."""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from vitreous.api.explain import explain
from vitreous.data.preprocess import Preprocess
from vitreous.models.timm_classifier import TimmClassifier
from vitreous.weights.load import load
from vitreous.weights.model_card import model_card
from vitreous.weights.safety import CheckpointError
from vitreous.weights.save import save


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=7)
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5)
    return network.state_dict()


@pytest.fixture
def file(tensors, tmp_path):
    save_file(tensors, tmp_path / "mine.safetensors")
    return tmp_path / "mine.safetensors"


@torch.no_grad()
def test_a_file_gives_timms_logits_and_survives_saving(file, tensors, tmp_path):
    model = load(f"timm:test_resnet@{file}")
    theirs = timm.create_model("test_resnet", num_classes=7).eval()
    theirs.load_state_dict(tensors)
    x = torch.randn(2, 3, *model.config.size)
    assert isinstance(model, TimmClassifier)
    assert torch.equal(model(x), theirs(x))
    settings = theirs.pretrained_cfg
    assert (model.card.preprocess.mean, model.card.preprocess.std) == (settings["mean"], settings["std"])
    assert "timm's of test_resnet" in model.card.report.assumed["preprocessing"]
    save(model, tmp_path / "folder")
    for name in (tmp_path / "folder", f"timm:test_resnet@{tmp_path / 'folder'}"):
        again = load(name)
        assert (again.config, again.card.preprocess) == (model.config, model.card.preprocess)
        assert torch.equal(again(x), model(x))
    assert "timm's test_resnet, with" in model_card(again)


def test_a_file_that_lacks_a_tensor_has_one_too_many_or_another_shape_is_refused(tensors, tmp_path):
    changed = {
        "missing: ": {key: value for key, value in tensors.items() if key != "bn1.bias"},
        "has no extra": tensors | {"extra": torch.zeros(2)},
        "bn1.bias holds integers": tensors | {"bn1.bias": torch.zeros(tensors["bn1.bias"].shape, dtype=torch.int8)},
        "bn1.bias should be": tensors | {"bn1.bias": torch.zeros(3)},
        r"it has no head of test_resnet \(fc.weight\)": {
            key: value for key, value in tensors.items() if not key.startswith("fc")
        },
    }
    for words, held in changed.items():
        save_file(held, tmp_path / "changed.safetensors")
        with pytest.raises(CheckpointError, match=words):
            load(f"timm:test_resnet@{tmp_path / 'changed.safetensors'}")


def test_weights_of_another_architecture_are_refused(file, tmp_path):
    with pytest.raises(CheckpointError):
        load(f"timm:test_efficientnet@{file}")
    save(load(f"timm:test_resnet@{file}"), tmp_path / "folder")
    with pytest.raises(CheckpointError, match="config.json says test_resnet, and you ask for resnet18"):
        load(f"timm:resnet18@{tmp_path / 'folder'}")


def test_no_weights_are_no_model_to_load():
    with pytest.raises(ValueError, match="timm:resnet18 has no weights to load: add their file, timm:resnet18@FILE"):
        load("timm:resnet18")


def test_another_size_and_other_classes_can_be_asked_for(file):
    model = load(f"timm:test_resnet@{file}", classes=3, image_size=64)
    assert (model.config.size, model.card.preprocess.size, model.config.classes) == ((64, 64), (64, 64), 3)
    assert model.card.report.reinitialised == ["fc.weight", "fc.bias"]


def test_views_are_refused_in_a_line(file):
    model = load(f"timm:test_resnet@{file}")
    assert isinstance(model.card.preprocess, Preprocess)
    with pytest.raises(ValueError, match="views are drawn of ViTs and ResNets, and this is a timm classifier"):
        explain(None, model)


def timm_folder(folder, name="test_efficientnet", **arguments):
    """A folder as timm itself writes it, of noise; and the network in it."""
    torch.manual_seed(0)
    network = timm.create_model(name, **{"num_classes": 7, **arguments}).eval()
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5)
    timm.models.save_for_hf(network, folder, safe_serialization=True)
    return network


@torch.no_grad()
@pytest.mark.parametrize("arguments", [{}, {"in_chans": 1}, {"num_classes": 0}, {"drop_rate": 0.3}], ids=str)
def test_a_folder_of_timms_gives_timms_outputs(arguments, tmp_path):
    theirs = timm_folder(tmp_path, **arguments)
    model = load(f"timm:test_efficientnet@{tmp_path}")
    x = torch.randn(2, arguments.get("in_chans", 3), *model.config.size)
    assert torch.equal(model(x), theirs(x))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"global_pool": "max"}, "config.json says global_pool='max', not avg"),
        ({"act_layer": "silu"}, "config.json says act_layer='silu'"),
        ({"bn_eps": 0.1}, "config.json says bn_eps=0.1"),
    ],
)
def test_a_folder_of_a_network_with_other_arguments_is_refused(arguments, words, tmp_path):
    timm_folder(tmp_path, **arguments)
    with pytest.raises(CheckpointError, match=words):
        load(f"timm:test_efficientnet@{tmp_path}")


def test_a_field_of_timms_config_that_nobody_reads_is_refused(tmp_path):
    timm_folder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 2}))
    with pytest.raises(CheckpointError, match="has the field temperature=2"):
        load(f"timm:test_efficientnet@{tmp_path}")


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"arch": "resnetaa50"}, "its training script says resnetaa50, and you ask for test_resnet"),
        ({"args": {"gp": "max"}}, "its training script says global_pool='max', not avg"),
        ({"args": {"bn_eps": 0.1}}, "its training script says bn_eps=0.1"),
        ({"args": {"model_kwargs": {"act_layer": "silu"}}}, "its training script says act_layer='silu'"),
    ],
)
def test_a_training_script_that_states_another_network_is_refused(stated, words, tensors, tmp_path):
    torch.save({"arch": "test_resnet", "state_dict": tensors} | stated, tmp_path / "last.pth.tar")
    with pytest.raises(CheckpointError, match=words):
        load(f"timm:test_resnet@{tmp_path / 'last.pth.tar'}")


def test_the_training_scripts_preprocessing_is_taken(tensors, tmp_path):
    args = {"mean": [0.1, 0.2, 0.3], "crop_pct": 0.5, "interpolation": "bilinear", "gp": "avg", "num_classes": 7}
    torch.save({"arch": "test_resnet", "args": args, "state_dict": tensors}, tmp_path / "last.pth.tar")
    card = load(f"timm:test_resnet@{tmp_path / 'last.pth.tar'}").card
    found = card.preprocess
    assert (found.mean, found.resize, found.interpolation) == ((0.1, 0.2, 0.3), 2 * found.size[0], "bilinear")
    assert "but for mean, interpolation, crop_pct: its args state them" in card.report.assumed["preprocessing"]


@torch.no_grad()
def test_a_model_without_a_head_is_saved_and_loaded_again(file, tmp_path):
    model = load(f"timm:test_resnet@{file}", classes=0)
    save(model, tmp_path / "folder")
    again = load(tmp_path / "folder")
    x = torch.randn(2, 3, *model.config.size)
    assert (again.config.classes, again.card.head) == (0, "none")
    assert torch.equal(again(x), model(x))


def test_positions_are_not_resized_where_there_are_none(file):
    with pytest.raises(ValueError, match="a timm classifier has no position embeddings to resize"):
        load(f"timm:test_resnet@{file}", resize="timm")
