"""The stem of a hybrid by its definition, and against timm's."""

import pytest
import timm
import torch
import torch.nn.functional as F

from conftest import assert_same, noise
from vitreous.models.hybrid_stem import STEMS, HybridStem, StandardizedConv, pad_same
from vitreous.models.vit_config import ViTConfig

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
