"""The stems, by their definitions and against timm's: the hybrid's, and MobileCLIP's in a noisy ViT."""

import pytest
import timm
import torch
import torch.nn.functional as F
from families import family, images
from originals import fill_with_noise
from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf

from conftest import assert_same, noise
from vitreous.models.stems import STEMS, ConvStem, HybridStem, StandardizedConv, pad_same
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.load import load

NAMES = {
    "r": "vit_tiny_r_s16_p8_224",
    "r26": "vit_small_r26_s32_224",
    "r50-s16": "vit_base_r50_s16_224",
    "r50-s32": "vit_large_r50_s32_224",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEMS)
@torch.no_grad()
def test_a_stem_is_timms(kind):
    theirs = noise(timm.create_model(NAMES[kind], depth=1)).patch_embed.backbone
    ours = HybridStem(kind, 3).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 64, 96)
    assert_same(ours(x), theirs(x))
    stride = ViTConfig(stem=kind, patch_size=32).stem_stride
    assert ours(x).shape == (1, ours.channels, 64 // stride, 96 // stride)


def test_filters_have_mean_0_and_variance_1():
    filters = StandardizedConv(3, 8, 5).standardized()
    torch.testing.assert_close(filters.mean(dim=(1, 2, 3)), torch.zeros(8), atol=1e-6, rtol=0)
    torch.testing.assert_close(filters.var(dim=(1, 2, 3), correction=0), torch.ones(8), atol=1e-4, rtol=0)


@pytest.mark.parametrize("side", [7, 8, 9])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (7, 2), (1, 2)])
def test_the_output_has_one_position_for_each_stride(side, kernel, stride):
    x = torch.ones(1, 1, side, side)
    out = F.conv2d(pad_same(x, kernel, stride), torch.ones(1, 1, kernel, kernel), stride=stride)
    assert out.shape[-2:] == (-(-side // stride),) * 2


def test_a_patch_must_be_a_whole_number_of_the_stems_positions():
    with pytest.raises(ValueError, match="a patch_size that 16 divides"):
        ViTConfig(stem="r50-s16", patch_size=14)


@torch.no_grad()
def test_it_is_a_matrix_over_4_by_4_pixels_and_one_over_2_by_2_of_them():
    stem, x = ConvStem(3, 8), torch.randn(2, 3, 16, 24)
    first, second = stem
    patches = F.unfold(x, 4, stride=4)  # [b 3·4·4 n]
    y = F.gelu(first.weight.flatten(1) @ patches + first.bias[:, None]).unflatten(2, (4, 6))
    y = F.gelu(second.weight.flatten(1) @ F.unfold(y, 2, stride=2) + second.bias[:, None]).unflatten(2, (2, 3))
    torch.testing.assert_close(stem(x), y)
    assert stem.filters is first.weight


@torch.no_grad()
def test_a_patch_does_not_see_its_neighbours():
    model = family("convolutional stem")
    x = images(model, 1)
    before = model.patch_embed(x)
    x[..., :16, :16] += 1
    changed = (model.patch_embed(x) != before).any(dim=-1)[0]
    assert changed.tolist() == [True] + [False] * 11


@torch.no_grad()
def test_mobileclips_vit_has_timms_logits_also_of_another_size(tmp_path):
    theirs = timm.create_model("vit_base_mci_224", depth=2, img_size=64, num_classes=7).eval()
    fill_with_noise(theirs.state_dict())
    theirs.pretrained_cfg = theirs.pretrained_cfg | {"input_size": (3, 64, 64), "num_classes": 7}
    save_config_for_hf(theirs, tmp_path / "config.json", model_args={"depth": 2, "img_size": 64})
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    x = torch.randn(2, 3, 64, 64)
    assert_same(load(tmp_path)(x), theirs(x), 2e-5)
    theirs.set_input_size((48, 80))
    x = torch.randn(1, 3, 48, 80)
    assert_same(load(tmp_path, image_size=(48, 80))(x), theirs(x))
