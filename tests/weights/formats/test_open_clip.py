"""OpenCLIP's folders: its own vision tower, and timm's inside it; timm gives the numbers to compare with."""

import json

import pytest
import timm
import torch
from originals import to_openai
from safetensors.torch import save_file

from conftest import assert_same, noise
from vitreous.weights.load import load

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
VISION = {"image_size": 32, "layers": 3, "width": 128, "patch_size": 8}
TEXT = {"context_length": 77, "vocab_size": 99, "width": 64, "heads": 1, "layers": 2}
TEXT_TOWER = {"transformer.resblocks.0.ln_1.weight": torch.ones(4), "logit_scale": torch.ones(())}


def write(folder, tensors, vision, **model):
    config = {"model_cfg": {"embed_dim": 20, "vision_cfg": vision, "text_cfg": TEXT, **model}}
    config["preprocess_cfg"] = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in (tensors | TEXT_TOWER).items()}, folder / "open_clip_model.safetensors")
    return folder


def own_tower(activation):
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 3, "num_heads": 2, "num_classes": 20}
    model = noise(timm.create_model("vit_base_patch16_clip_224", act_layer=activation, **size))
    model.head.bias.data.zero_()
    return model


@pytest.mark.parametrize(("quick", "activation"), [(True, "quick_gelu"), (False, "gelu"), (None, "gelu")])
@torch.no_grad()
def test_the_config_decides_activation_and_preprocessing(quick, activation, tmp_path):
    theirs = own_tower(activation)
    model = {} if quick is None else {"quick_gelu": quick}
    ours = load(write(tmp_path, to_openai(theirs.state_dict()), VISION, **model))
    assert_same(ours(X), theirs(X))
    assert ours.card.preprocess.mean == (0.1, 0.2, 0.3)
    assert ours.card.head == "projection"
    assert not {"heads", "activation", "preprocessing"} & set(ours.card.report.assumed)


@pytest.mark.parametrize(
    ("field", "value"),
    [("attentional_pool", True), ("pool_type", "avg"), ("no_ln_pre", True), ("mystery", 1), ("ls_init_value", 0.1)],
)
def test_a_field_that_changes_the_numbers_is_refused(field, value, tmp_path):
    folder = write(tmp_path, to_openai(own_tower("gelu").state_dict()), VISION | {field: value})
    with pytest.raises(ValueError, match=f"vision_cfg has the field {field}"):
        load(folder)


def test_a_size_that_contradicts_the_tensors_is_refused(tmp_path):
    folder = write(tmp_path, to_openai(own_tower("gelu").state_dict()), VISION | {"layers": 4})
    with pytest.raises(ValueError, match="says depth=4, but its tensors say depth=3"):
        load(folder)


def timms_tower(**arguments):
    return noise(timm.create_model("vit_medium_patch16_gap_240", img_size=32, num_classes=0, **arguments))


@pytest.mark.slow
@torch.no_grad()
def test_the_linear_projection_beside_timms_tower_is_the_head(tmp_path):
    theirs, projection = timms_tower(), torch.randn(20, 512)
    tensors = {f"visual.trunk.{key}": value for key, value in theirs.state_dict().items()}
    tensors["visual.head.proj.weight"] = projection
    vision = {"image_size": 32, "timm_model_name": "vit_medium_patch16_gap_240", "timm_pool": "", "timm_proj": "linear"}
    ours = load(write(tmp_path, tensors, vision))
    assert_same(ours(X), theirs(X) @ projection.T)
    assert ours.card.head == "projection"


@pytest.mark.slow
def test_an_mlp_beside_timms_tower_is_refused(tmp_path):
    tensors = {f"visual.trunk.{key}": value for key, value in timms_tower().state_dict().items()}
    vision = {"image_size": 32, "timm_model_name": "vit_medium_patch16_gap_240", "timm_pool": "", "timm_proj": "mlp"}
    with pytest.raises(ValueError, match="timm_proj='mlp' is not supported"):
        load(write(tmp_path, tensors, vision))
