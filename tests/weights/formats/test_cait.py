"""Noisy CaiTs of timm's, and files as its authors publish them, loaded here: the same logits."""

import pytest
import timm
import torch
from originals import SMALL_TIMM, write_timm
from safetensors.torch import save_file

from conftest import assert_same
from vitreous.speed.optimize import optimize
from vitreous.weights.convert import convert
from vitreous.weights.load import load
from vitreous.weights.positions import resize_positions
from vitreous.weights.safety import CheckpointError

ARGUMENTS = SMALL_TIMM | {"depth_token_only": 2, "mlp_ratio_token_only": 2.0}


@pytest.fixture
def theirs(tmp_path):
    write_timm("cait_xxs24_224", ARGUMENTS, 7, tmp_path)
    return timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval().requires_grad_(False)


@torch.no_grad()
def test_cait_gives_timms_logits_and_patches_also_optimized(theirs, tmp_path):
    ours, x = load(tmp_path), torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
    assert_same(optimize(ours, pixels=False, backends=("eager",))(x), theirs(x))
    tokens = theirs.forward_features(x)  # timm applies the last norm to the patches, too, which nobody reads then
    assert_same(ours.features(x), tokens[:, 0])
    assert_same(ours.fc_norm(ours.forward_features(x)), tokens[:, 1:])


@torch.no_grad()
def test_cait_at_another_size_has_timms_logits_with_resized_positions(theirs, tmp_path):
    ours, x = load(tmp_path, image_size=(40, 24)), torch.randn(2, 3, 40, 24)
    larger = timm.create_model("cait_xxs24_224", num_classes=7, **ARGUMENTS | {"img_size": (40, 24)}).eval()
    positions = resize_positions(theirs.pos_embed, (4, 4), (5, 3), "timm")
    larger.load_state_dict(theirs.state_dict() | {"pos_embed": positions})
    assert_same(ours(x), larger(x))


@torch.no_grad()
def test_the_authors_file_is_read(theirs, tmp_path):
    tensors = {f"module.{key}": value for key, value in theirs.state_dict().items()}
    torch.save({"model": tensors}, tmp_path / "XXS24_32.pth")
    sizes = {
        "patch_size": 8,
        "depth": 3,
        "width": 48,
        "mlp_width": 192,
        "heads": 4,
        "pool_heads": 4,
        "pool_mlp_width": 96,
    }
    ours = load(tmp_path / "XXS24_32.pth", assume={"architecture": "cait_xxs24_224"} | sizes)
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))


@pytest.mark.parametrize("absent", ["blocks_token_only.0.", "blocks_token_only.1."])
def test_a_missing_layer_of_class_attention_is_an_error(theirs, absent, tmp_path):
    save_file({k: v for k, v in theirs.state_dict().items() if absent not in k}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="class attention is missing|pool_layers=2, but its tensors say"):
        load(tmp_path)


def test_cait_is_not_written_in_timms_format(theirs, tmp_path):
    with pytest.raises(ValueError, match="talking_heads=True"):
        convert(load(tmp_path), tmp_path / "back", to="timm")
