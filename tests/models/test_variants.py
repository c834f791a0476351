import pytest
import timm
import torch
import torchvision

from vitreous.models.resnet import DEPTHS, ResNet, ResNetConfig
from vitreous.models.variants import VARIANTS, variant
from vitreous.models.vit import ViT


def parameters(model):
    return sum(p.numel() for p in model.parameters())


TIMM_NAMES = [name for name in VARIANTS if name in timm.list_models()]


def test_all_names_but_the_small_ones_are_timms():
    ours = set(VARIANTS) - set(TIMM_NAMES)
    assert all(VARIANTS[name].size[0] <= 64 or "huge_patch14_clip" in name for name in ours), ours
    assert len(TIMM_NAMES) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM_NAMES)
def test_against_timm_every_parameter_has_the_same_name_and_shape(name):
    with torch.device("meta"):
        ours, theirs = ViT(VARIANTS[name]), timm.create_model(name, num_classes=VARIANTS[name].classes)
    assert parameters(ours) == parameters(theirs)
    shapes = {key: tuple(value.shape) for key, value in theirs.state_dict().items()}
    assert {key: tuple(value.shape) for key, value in ours.state_dict().items()} == shapes


@pytest.mark.parametrize("name", ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"])
def test_against_torchvision_parameter_counts_are_equal(name):
    with torch.device("meta"):
        assert parameters(ViT(variant(name))) == parameters(torchvision.models.get_model(name))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [depth for depth in DEPTHS if depth != 14])  # torchvision has none of 14
def test_resnets_have_torchvisions_keys_and_shapes(depth):
    with torch.device("meta"):
        ours, theirs = ResNet(ResNetConfig(depth)), torchvision.models.get_model(f"resnet{depth}")
    shapes = {key: value.shape for key, value in theirs.state_dict().items()}
    assert {key: value.shape for key, value in ours.state_dict().items()} == shapes


def test_paper_sizes():
    # table 1 of the paper: 86M, 307M and 632M parameters, with the 21k-class head left out
    for name, millions in (("B/16", 86), ("L/16", 303), ("H/14", 631)):
        with torch.device("meta"):
            assert parameters(ViT(variant(name, classes=0))) // 10**6 in (millions, millions - 1)


def test_unknown_name_suggests_close_ones():
    with pytest.raises(ValueError, match="vit_base_patch16_224"):
        variant("vit_base_patch16_225")


def test_another_width_brings_its_own_mlp_width_unless_one_is_stated():
    assert variant("vit_femto_patch4_32:width=64").mlp_width == 256
    assert variant("vit_femto_patch4_32", width=64).mlp_width == 256
    assert variant("vit_femto_patch4_32:width=64,mlp_width=128").mlp_width == 128
    assert variant("vit_giant_patch14_224", width=1280).mlp_width == 6144  # not four times its width
