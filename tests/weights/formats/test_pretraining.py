"""Files of self-supervised training, made from noisy timm models by the renamings of each method."""

import pytest
import timm
import torch

from conftest import assert_same, noise
from vitreous.weights.load import load

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
SIZED = {"img_size": 32, "depth": 12, "num_classes": 0}


@pytest.mark.slow
@torch.no_grad()
def test_mae_with_its_decoder_gives_its_encoder(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **SIZED | {"mlp_ratio": 0.5}))
    decoder = {name: torch.randn(1, 5, 512) for name in ("decoder_pos_embed", "decoder_blocks.0.attn.qkv.weight")}
    decoder |= {f"{name}.weight": torch.randn(4, 4) for name in ("decoder_embed", "decoder_norm", "decoder_pred")}
    decoder["mask_token"] = torch.randn(1, 1, 512)
    torch.save({"model": theirs.state_dict() | decoder}, tmp_path / "mae_full.pth")
    ours = load(tmp_path / "mae_full.pth")
    assert_same(ours(X), theirs(X))
    assert set(ours.card.report.ignored) == set(decoder)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("width", [384, 768])
def test_moco_v3_keeps_the_base_encoder_which_has_12_heads(width, tmp_path):
    arguments = SIZED | {"embed_dim": width, "num_heads": 12, "mlp_ratio": 0.5}
    theirs = noise(timm.create_model("vit_base_patch16_224", **arguments))
    state = {f"module.base_encoder.{key}": value for key, value in theirs.state_dict().items()}
    state |= {f"module.momentum_encoder.{key}": torch.zeros_like(value) for key, value in theirs.state_dict().items()}
    state |= {f"module.{name}.0.weight": torch.randn(8, 8) for name in ("base_encoder.head", "predictor")}
    torch.save({"arch": "vit_small", "state_dict": state}, tmp_path / "vit-s-300ep.pth.tar")
    ours = load(tmp_path / "vit-s-300ep.pth.tar")
    assert ours.config.heads == 12
    assert_same(ours(X), theirs(X))


@pytest.mark.slow
@torch.no_grad()
def test_ibots_teacher_gives_its_backbone(tmp_path):
    theirs = noise(timm.create_model("vit_small_patch16_224", **SIZED))
    state = {f"backbone.{key}": value for key, value in theirs.state_dict().items()}
    state |= {"backbone.masked_embed": torch.randn(1, 384), "head.mlp.0.weight": torch.randn(8, 8)}
    state |= {"head.last_layer.weight_g": torch.randn(8, 1), "head.last_layer2.weight_v": torch.randn(8, 8)}
    torch.save({"teacher": state, "student": {"module.x": torch.ones(1)}}, tmp_path / "checkpoint.pth")
    ours = load(tmp_path / "checkpoint.pth")
    assert_same(ours(X), theirs(X))
    assert ours.config.heads == 6


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2s_training_numbers_its_blocks_in_chunks(registers, tmp_path):
    name = f"vit_small_patch14_{f'reg{registers}_' if registers else ''}dinov2"
    theirs = noise(timm.create_model(name, img_size=28))
    state = {}
    for key, value in theirs.state_dict().items():
        if key.startswith("blocks."):
            _, number, rest = key.split(".", 2)
            key = f"blocks.{int(number) // 4}.{number}.{rest}"  # inside a chunk the numbers go on
        state[f"backbone.{key.replace('reg_token', 'register_tokens')}"] = value
    if registers:  # the authors' positions have a row for the class token
        positions = torch.cat([torch.zeros(1, 1, 384), theirs.pos_embed], dim=1)
        state["backbone.pos_embed"] = positions
    state |= {"backbone.mask_token": torch.randn(1, 384), "dino_head.mlp.0.weight": torch.randn(8, 8)}
    torch.save({"teacher": state | {"ibot_head.last_layer.weight_v": torch.randn(8, 8)}}, tmp_path / "teacher.pth")
    ours = load(tmp_path / "teacher.pth")
    x = torch.randn(2, 3, 28, 28)
    assert ours.config.depth == 12
    assert_same(ours(x), theirs(x))


def test_a_convolutional_stem_of_moco_is_refused(tmp_path):
    torch.save({"base_encoder.patch_embed.proj.0.weight": torch.ones(1)}, tmp_path / "conv.pth")
    with pytest.raises(ValueError, match="match none of the formats"):
        load(tmp_path / "conv.pth")
