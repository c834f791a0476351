"""Each convention against the originating library's own function, and along each axis against float64 formulas."""

import json
from functools import partial

import numpy as np
import pytest
import timm.layers
import torch
import transformers
from safetensors.torch import save_file
from scipy import ndimage
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from conftest import assert_same, noise
from vitreous.models.relative_position import RelativeTable
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.load import load
from vitreous.weights.positions import CONVENTIONS, resize_positions, resize_relative_positions
from vitreous.weights.save import save

GRIDS = [((4, 4), (7, 7)), ((7, 7), (4, 4)), ((4, 4), (3, 6)), ((3, 5), (6, 4)), ((5, 3), (5, 8))]
SQUARE_OLD = [pair for pair in GRIDS if pair[0][0] == pair[0][1]]
SQUARE = [pair for pair in SQUARE_OLD if pair[1][0] == pair[1][1]]


def table(grid, prefix=1, width=6):
    return torch.randn(1, prefix + grid[0] * grid[1], width)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_google_is_scipys_zoom_of_order_1(old, new):
    positions = table(old)
    grid = positions[0, 1:].reshape(*old, -1).numpy()
    zoomed = ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    expected = torch.from_numpy(zoomed.reshape(1, -1, 6))
    ours = resize_positions(positions, old, new, "google", prefix=1)
    torch.testing.assert_close(ours[:, 1:], expected, rtol=0, atol=1e-5)
    assert torch.equal(ours[:, :1], positions[:, :1])


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_timm_is_timms_own_function(old, new, prefix):
    positions = table(old, prefix)
    expected = timm.layers.resample_abs_pos_embed(positions, list(new), list(old), num_prefix_tokens=prefix)
    assert torch.equal(resize_positions(positions, old, new, "timm", prefix), expected)


@pytest.mark.parametrize(("old", "new"), SQUARE)
def test_torchvision_is_torchvisions_own_function(old, new):
    positions = table(old)
    state = interpolate_embeddings(new[0] * 8, 8, {"encoder.pos_embedding": positions})
    assert torch.equal(resize_positions(positions, old, new, "torchvision", 1), state["encoder.pos_embedding"])


HUGGINGFACE = {
    "vit": (transformers.ViTConfig, transformers.ViTModel, "huggingface"),
    "dinov2": (transformers.Dinov2Config, transformers.Dinov2Model, "huggingface"),
    "dinov2_registers": (
        transformers.Dinov2WithRegistersConfig,
        transformers.Dinov2WithRegistersModel,
        "dinov2-registers",
    ),
}


@pytest.mark.parametrize("family", HUGGINGFACE)
@pytest.mark.parametrize(("old", "new"), SQUARE_OLD)
def test_huggingface_is_transformers_own_function(family, old, new):
    make_config, make_model, convention = HUGGINGFACE[family]
    config = make_config(hidden_size=6, num_hidden_layers=1, num_attention_heads=1, image_size=old[0] * 8, patch_size=8)
    embeddings = noise(make_model(config)).embeddings
    tokens = torch.zeros(1, new[0] * new[1] + 1, 6)
    expected = embeddings.interpolate_pos_encoding(tokens, new[0] * 8, new[1] * 8)
    positions = embeddings.position_embeddings.detach()
    torch.testing.assert_close(
        resize_positions(positions, old, new, convention, 1), expected.detach(), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(("old", "new"), SQUARE_OLD)
@pytest.mark.parametrize("extra", [0, 3])
def test_relative_positions_are_resized_as_timm_does(old, new, extra):
    relative = torch.randn((2 * old[0] - 1) * (2 * old[1] - 1) + extra, 4)
    shape = ((2 * new[0] - 1) * (2 * new[1] - 1) + extra, 4)
    expected = timm.layers.resize_rel_pos_bias_table(relative, new, shape)
    ours = resize_relative_positions(relative, old, new, "timm")
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("old", "new"), SQUARE_OLD)
def test_relative_positions_are_resized_as_transformers_does(old, new):
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    config = transformers.BeitConfig(image_size=old[0] * 8, patch_size=8, num_attention_heads=4, hidden_size=8)
    theirs = noise(BeitRelativePositionBias(config))
    ours = RelativeTable(new, 4, class_token=True)
    table = resize_relative_positions(theirs.relative_position_bias_table.detach(), old, new, "huggingface")
    ours.relative_position_bias_table = torch.nn.Parameter(table)
    torch.testing.assert_close(ours()[None], theirs(new))


def cubic(x, a=-0.75):
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def triangle(x):
    return max(1 - abs(x), 0.0)


BILINEAR = ("dpt", "naflex-factorized", "flexivit", "radio")


def axis_weights(old, new, convention):
    """The matrix `[new old]` by which one axis is resampled, in float64, from the published formulas."""
    weights = np.zeros((new, old))
    antialias = convention in ("timm", "dinov2-registers", "siglip2", "naflex")
    scale = old / (new + 0.1) if convention == "dinov2" else old / new
    for i in range(new):
        if convention in ("google", "torchvision", "radio-corners"):
            centre = i * (old - 1) / (new - 1) if new > 1 else 0.0
        else:
            centre = (i + 0.5) * scale - 0.5
        if convention in ("google", "radio-corners"):
            low = min(int(centre), old - 1)
            for j, weight in ((low, 1 - (centre - low)), (min(low + 1, old - 1), centre - low)):
                weights[i, j] += weight
        elif antialias:  # Pillow's way: a = -0.5, the kernel widened when shrinking, cut at the edges, summing to 1
            wide = max(scale, 1.0)
            kernel = triangle if convention == "siglip2" else partial(cubic, a=-0.5)
            row = [kernel((j - centre) / wide) for j in range(old)]
            weights[i] = np.array(row) / sum(row)
        else:  # a = -0.75, edge values repeated
            low, kernel = int(np.floor(centre)), triangle if convention in BILINEAR else cubic
            for j in range(low - 1, low + 3):
                weights[i, min(max(j, 0), old - 1)] += kernel(centre - j)
    return weights


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_along_each_axis_in_float64(convention, old, new):
    positions = table(old, prefix=0)
    if convention.startswith("naflex") and new[0] != new[1]:
        with pytest.raises(ValueError, match="pass a square image_size"):
            resize_positions(positions, old, new, convention)
        return
    grid = positions[0].double().reshape(*old, -1).numpy()
    rows, columns = (axis_weights(o, n, convention) for o, n in zip(old, new, strict=True))
    expected = np.einsum("ir,jc,rcd->ijd", rows, columns, grid).reshape(1, -1, 6)
    ours = resize_positions(positions, old, new, convention).double().numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)


def test_the_same_grid_is_left_alone():
    positions = table((3, 5))
    for convention in CONVENTIONS:
        assert resize_positions(positions, (3, 5), (3, 5), convention, 1) is positions


def test_a_wrong_convention_or_count_is_refused():
    with pytest.raises(ValueError, match="resize must be one of google"):
        resize_positions(table((4, 4)), (4, 4), (5, 5), "bicubic", 1)
    with pytest.raises(ValueError, match="expected 1 \\+ 4×4 positions, got 16"):
        resize_positions(table((4, 4), prefix=0), (4, 4), (5, 5), "timm", 1)


@torch.no_grad()
def test_load_resizes_by_the_sources_convention_and_says_so(tmp_path):
    theirs = noise(VisionTransformer(32, 8, 2, 4, 48, 96, num_classes=7))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", assume={"heads": 4}, image_size=56)
    larger = VisionTransformer(56, 8, 2, 4, 48, 96, num_classes=7).eval()
    larger.load_state_dict(interpolate_embeddings(56, 8, theirs.state_dict()))
    x = torch.randn(1, 3, 56, 56)
    assert_same(ours(x), larger(x))
    assert ours.card.report.resized == ["pos_embed from 4×4 to 7×7 (torchvision's convention)"]
    assert ours.card.preprocess.size == (56, 56)
    other = load(tmp_path / "vit.pth", assume={"heads": 4}, image_size=56, resize="google")
    assert not torch.equal(other.pos_embed, ours.pos_embed)
    tall = load(tmp_path / "vit.pth", assume={"heads": 4}, image_size=(56, 24))
    assert tall.config.grid == (7, 3)


@torch.no_grad()
def test_from_a_non_square_grid_of_our_own(tmp_path):
    model = noise(ViT(ViTConfig(image_size=(24, 48), patch_size=8, width=48, depth=1, heads=4, classes=3)))
    save(model, tmp_path)
    again = load(tmp_path, image_size=(48, 24))
    expected = resize_positions(model.pos_embed.detach(), (3, 6), (6, 3), "timm", 1)
    assert torch.equal(again.pos_embed, expected)


SIZES = {"patch_size": (8, 8), "width": 48, "mlp_width": 192}
RADIO = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}


@torch.no_grad()
@pytest.mark.parametrize("size", [(48, 48), (24, 56)])
@pytest.mark.parametrize(
    ("name", "convention"),
    [
        ("vit_base_patch16_224", "timm"),
        ("flexivit_small", "flexivit"),
        ("vit_base_patch16_radio_v3", "radio-corners"),
        ("vit_large_patch16_radio_v3", "radio"),
        ("vit_huge_patch16_radio_v4", "radio"),
    ],
)
def test_each_of_timms_architectures_is_resized_as_timm_loads_it(tmp_path, name, convention, size):
    model = noise(timm.create_model(name, img_size=32, num_classes=5, **RADIO))
    config = {"architecture": name, "num_classes": 5, "model_args": RADIO | {"img_size": 32}}
    config["pretrained_cfg"] = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=size).eval()
    ours = load(tmp_path, image_size=size)
    x = torch.randn(2, 3, *size)
    assert_same(ours(x), theirs(x))
    assert f"({convention}'s convention)" in ours.card.report.resized[0]
    bare = tmp_path / "mine.safetensors"  # without a name, known models with such tensors decide
    (tmp_path / "model.safetensors").rename(bare)
    (tmp_path / "config.json").unlink()
    said = {"heads": 4, "depth": 2} | ({"final_norm": False} if "radio" in name else {})
    if name.endswith("radio_v3"):
        with pytest.raises(ValueError, match="in 2 ways: pass resize=radio or radio-corners"):
            load(bare, image_size=size, assume=said)
        said["architecture"] = name
        with pytest.raises(ValueError, match="says patch_size|says width"):
            load(bare, image_size=size, assume=said)
        assert_same(load(bare, image_size=size, assume=said | SIZES)(x), theirs(x))
    else:
        assert_same(load(bare, image_size=size, assume=said)(x), theirs(x))
