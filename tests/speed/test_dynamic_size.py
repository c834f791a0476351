"""One model for every size, against the model that `load(image_size=…)` makes for that size."""

import pytest
import torch

from conftest import noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.dynamic_size import DynamicSizeViT, axis_weights, resample_offset
from vitreous.speed.export import at_size
from vitreous.weights.load import load
from vitreous.weights.positions import CONVENTIONS
from vitreous.weights.save import save

SMALL = {"image_size": (24, 16), "patch_size": (8, 4), "width": 24, "depth": 2, "heads": 4, "classes": 5}
CHANGES = [
    {},
    {"prefix_positions": False, "registers": 2},
    {"distillation_token": True, "distillation_head": True},
    {"class_token": False, "pool": "mean"},
    {"embedding_norm": True, "patch_bias": False, "activation": "quick_gelu", "head_bias": False},
    {"position": "none"},
    {"dense": "linear", "dense_blocks": (0, 1), "registers": 1},
    {"dense": "decoder", "dense_blocks": (0,)},
]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("convention", [name for name in CONVENTIONS if not name.startswith("naflex")])
@pytest.mark.parametrize("size", [(24, 16), (40, 12), (8, 32)])
def test_any_size_resizes_as_loading_does(convention, size, tmp_path):
    model = noise(ViT(ViTConfig(**SMALL)))
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model", image_size=size, resize=convention)
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(DynamicSizeViT(model, convention)(x), loaded(x), rtol=0, atol=1e-5)
    assert torch.equal(at_size(model, size, convention)(x), loaded(x))


@pytest.mark.parametrize("convention", ["naflex", "naflex-factorized"])
def test_a_convention_that_no_tensor_tells_is_refused(convention):
    with pytest.raises(ValueError, match="NaFlex models differ"):
        DynamicSizeViT(ViT(ViTConfig(**SMALL)), convention)


@torch.no_grad()
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_any_size_is_every_family(changes):
    model = noise(ViT(ViTConfig(**SMALL | changes)))
    for size in ((24, 16), (32, 12)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(DynamicSizeViT(model, "timm")(x), at_size(model, size, "timm")(x), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("prefix_positions", [True, False])
@pytest.mark.parametrize("position", ["sine-1d", "sine-2d"])
def test_fixed_positions_are_computed_for_the_size(position, prefix_positions):
    torch.manual_seed(0)
    model = ViT(ViTConfig(**SMALL | {"position": position, "prefix_positions": prefix_positions})).eval()
    model.head.weight.normal_()
    for size in ((24, 16), (32, 12)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(DynamicSizeViT(model, "timm")(x), at_size(model, size, "timm")(x), rtol=0, atol=1e-5)


def test_a_part_of_a_patch_is_refused():
    with pytest.raises(RuntimeError, match="shape"):
        DynamicSizeViT(ViT(ViTConfig(**SMALL)), "timm")(torch.randn(1, 3, 25, 16))


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match="must be one of google, timm"):
        DynamicSizeViT(ViT(ViTConfig(**SMALL)), "bicubic")


GRIDS = [((4, 4), (7, 7)), ((7, 7), (4, 4)), ((4, 4), (3, 6)), ((3, 5), (6, 4)), ((5, 3), (5, 8)), ((37, 37), (16, 24))]
GRIDS += [((1, 3), (2, 1)), ((2, 2), (1, 1)), ((5, 5), (6, 5))]


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_the_matrices_are_dinov2s_interpolation(old, new):
    table = torch.randn(1, 6, *old)
    expected = CONVENTIONS["dinov2"](table.double(), new)
    torch.testing.assert_close(resample_offset(table.double(), new), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(resample_offset(table, new), expected.float(), rtol=0, atol=1e-4)


def test_the_same_grid_gives_the_same_numbers():
    table = torch.randn(1, 6, 5, 3)
    assert torch.equal(resample_offset(table, (5, 3)), table)
    assert not torch.allclose(resample_offset(table, (5, 4))[..., :3], table)


def test_each_new_position_is_an_average_of_old_ones():
    weights = axis_weights(torch.arange(9.0), 5, torch.tensor([0.1]))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(9))
