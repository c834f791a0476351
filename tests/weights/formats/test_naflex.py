"""Noisy NaFlex ViTs of timm's loaded here: the same logits at every size at which they run as plain ViTs."""

import json

import pytest
import timm
import torch
from originals import fill_with_noise, write_weights
from timm.models._hub import save_config_for_hf

from conftest import assert_same
from vitreous.speed.optimize import optimize
from vitreous.weights.load import load
from vitreous.weights.safety import CheckpointError

SMALL = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "pos_embed_grid_size": [5, 5]}
KINDS = ("gap", "par_gap", "parfac_gap", "map", "siglip")


def saved(kind, folder):
    """A noisy model that runs at 48 px, with positions of a 5×5 grid, in a Hub folder as timm writes it."""
    name = f"naflexvit_base_patch16_{kind}"
    model = timm.create_model(name, num_classes=7, **SMALL).eval().requires_grad_(False)
    fill_with_noise(model.state_dict())
    model.pretrained_cfg = model.pretrained_cfg | {"input_size": (3, 48, 48), "num_classes": 7}
    save_config_for_hf(model, folder / "config.json", model_args=SMALL)
    write_weights(model.state_dict(), folder / "model.safetensors")
    return model


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_naflex_vit_gives_timms_logits_at_square_sizes(kind, tmp_path):
    theirs, ours = saved(kind, tmp_path), load(tmp_path)
    assert ours.config.size == (48, 48)  # at which its config says that it runs, not that of its positions
    assert any(line.startswith("pos_embed from 5×5 to 6×6") for line in ours.card.report.resized)
    x = torch.randn(2, 3, 48, 48)
    assert_same(ours(x), theirs(x))
    assert_same(ours.forward_features(x), theirs.forward_features(x))
    assert_same(optimize(ours, pixels=False, backends=("eager",))(x), theirs(x))
    for side in (40, 72, 24):
        x = torch.randn(1, 3, side, side)
        assert_same(load(tmp_path, image_size=side)(x), theirs(x))


@torch.no_grad()
def test_an_image_that_is_not_square_needs_the_convention_named(tmp_path):
    theirs, x = saved("gap", tmp_path), torch.randn(1, 3, 64, 40)
    with pytest.raises(ValueError, match="resize='timm' if its name has no 'par'"):
        load(tmp_path, image_size=(64, 40))
    assert_same(load(tmp_path, image_size=(64, 40), resize="timm")(x), theirs(x))


@torch.no_grad()
def test_siglip_2_takes_images_that_are_not_square(tmp_path):
    theirs, x = saved("siglip", tmp_path), torch.randn(1, 3, 64, 40)
    assert_same(load(tmp_path, image_size=(64, 40))(x), theirs(x))


@pytest.mark.parametrize("key", ["embeds.proj.weight", "embeds.pos_embed_x"])
def test_a_missing_part_of_the_embedding_is_an_error(key, tmp_path):
    model = saved("parfac_gap", tmp_path)
    write_weights({k: v for k, v in model.state_dict().items() if k != key}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="incomplete"):
        load(tmp_path)


@pytest.mark.parametrize("form", ["folder", "bare", "use_naflex"])
def test_naflex_vits_of_radio_are_refused_whatever_is_assumed(form, tmp_path):
    sizes = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
    name, options = "naflexvit_base_patch16_radio_v3", {"pos_embed_grid_size": [5, 5]}
    if form == "use_naflex":
        name, options = "vit_base_patch16_radio_v3", {"img_size": 40, "use_naflex": True}
    model = timm.create_model(name, num_classes=7, **sizes | options)
    write_weights(model.state_dict(), tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors"
    if form != "bare":
        save_config_for_hf(model, tmp_path / "config.json", model_args=sizes)
        path = tmp_path
    for assume in ({}, {"final_norm": False}, {"final_norm": False, "heads": 4, "depth": 2}):
        with pytest.raises(CheckpointError, match="RADIO|not a supported one|use_naflex"):
            load(path, assume=assume)


def test_a_plain_vit_built_as_naflex_is_refused(tmp_path):
    model = timm.create_model("vit_base_patch16_siglip_224", use_naflex=True, img_size=40, **SMALL)
    write_weights(model.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_base_patch16_siglip_224", "num_classes": 0, "pretrained_cfg": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="'vit_base_patch16_siglip_224', and its tensors are of a NaFlex ViT"):
        load(tmp_path)
