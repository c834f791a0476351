"""What no file states is asked for, or assumed and reported; a model is built only from tensors that fit it."""

import pytest
import timm
import torch

from conftest import assert_same, noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.load import load
from vitreous.weights.positions import resize_positions

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}


def test_without_a_config_the_number_of_heads_is_asked_for(tmp_path):
    torch.save(timm.create_model("vit_base_patch16_224", **SMALL).state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="--assume heads=N"):
        load(tmp_path / "mine.pth")


def test_a_grid_that_is_not_square_is_asked_for(tmp_path):
    model = timm.create_model("vit_base_patch16_224", **SMALL | {"img_size": (24, 48)})
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="--assume image_size=HEIGHTxWIDTH"):
        load(tmp_path / "mine.pth", assume={"heads": 4})
    assert load(tmp_path / "mine.pth", assume={"heads": 4, "image_size": (24, 48)}).config.grid == (3, 6)


FLEXIVIT = {"width": 384, "depth": 12, "heads": 6}  # a class token without a position, at 240 pixels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "trained", "change", "line"),
    [
        ((240, 240), True, FLEXIVIT | {"prefix_positions": False}, ""),
        ((240, 240), False, FLEXIVIT | {"prefix_positions": False}, ""),
        ((224, 256), True, FLEXIVIT, "in a grid of 14×16 beside the class token are more alike"),
        ((256, 224), True, FLEXIVIT, "in a grid of 16×14 beside the class token are more alike"),
    ],
)
def test_a_grid_beside_a_class_token_is_not_taken_for_a_square_without(size, trained, change, line, tmp_path):
    """225 positions: a square of 15×15, or 14×16 and one of the class token."""
    model = noise(ViT(ViTConfig(image_size=size, classes=3, **change)))
    if trained:
        prefix = model.config.positions - model.config.layout.patches
        known = load().pos_embed.detach().repeat(1, 1, 2)
        model.pos_embed.data = resize_positions(known, (14, 14), model.config.grid, "timm", prefix=1)[:, 1 - prefix :]
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    if line:
        with pytest.raises(ValueError, match=f"{line}.*--assume image_size=HEIGHTxWIDTH"):
            load(tmp_path / "mine.pth")
    assert load(tmp_path / "mine.pth", assume={"image_size": size} if line else {}).config == model.config


def test_patches_that_are_not_square_are_asked_for(tmp_path):
    model = timm.create_model("vit_base_patch16_224", **SMALL | {"patch_size": (8, 4), "img_size": (32, 16)})
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="--assume patch_size=8x4"):
        load(tmp_path / "mine.pth", assume={"heads": 4})
    assert load(tmp_path / "mine.pth", assume={"heads": 4, "patch_size": (8, 4)}).config.grid == (4, 4)


X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def theirs():
    return noise(timm.create_model("vit_base_patch16_224", **SMALL))


@torch.no_grad()
def test_missing_positions_are_an_error_unless_stated(theirs, tmp_path):
    state = theirs.state_dict()
    del state["pos_embed"]
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="if they are rotary, say which model it is"):
        load(tmp_path / "mine.pth", assume={"heads": 4}, image_size=32)
    theirs.pos_embed.zero_()
    assert_same(load(tmp_path / "mine.pth", assume={"heads": 4, "position": "none"}, image_size=32)(X), theirs(X))


def test_a_missing_final_norm_is_an_error_unless_stated(theirs, tmp_path):
    state = {key: value for key, value in theirs.state_dict().items() if not key.startswith("norm.")}
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="final_norm=False"):
        load(tmp_path / "mine.pth", assume={"heads": 4})
    assert not load(tmp_path / "mine.pth", assume={"heads": 4, "final_norm": False}).config.final_norm


def test_every_assumption_is_reported(theirs, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    report = load(tmp_path / "mine.pth", assume={"heads": 4}).card.report
    assert set(report.assumed) == {"heads", "image size", "pool", "norm_eps", "activation", "preprocessing"}


def test_a_missing_weight_is_an_error(tmp_path):
    state = timm.create_model("vit_base_patch16_224", **SMALL).state_dict()
    del state["blocks.1.norm2.bias"]
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"blocks\.1\.norm2\.bias"):
        load(tmp_path / "mine.pth", assume={"heads": 4})


def test_integers_are_rejected_as_weights(theirs, tmp_path):
    state = {key: (value * 100).to(torch.int8) for key, value in theirs.state_dict().items()}
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="quantised"):
        load(tmp_path / "mine.pth", assume={"heads": 4})
