"""The small-image form of a ResNet: what it changes, what it keeps, and that it survives saving."""

import pytest
import torch
import torchvision

from conftest import assert_same
from vitreous.data.preprocess import Preprocess
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.methods import patch_grid
from vitreous.models.resnet import ResNet, ResNetConfig, resnet_config
from vitreous.models.summary import count_flops
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.weights.card import Card
from vitreous.weights.load import load
from vitreous.weights.save import save


def test_the_small_stem_has_torchvisions_keys_and_shapes_but_for_the_first_kernel():
    usual = torchvision.models.resnet18(num_classes=7).state_dict()
    small = ResNet(ResNetConfig(18, classes=7, stem="small")).state_dict()
    assert list(small) == list(usual)
    assert [name for name in usual if usual[name].shape != small[name].shape] == ["conv1.weight"]
    assert small["conv1.weight"].shape == (64, 3, 3, 3)


@torch.no_grad()
def test_the_small_stem_against_torchvisions_network_with_its_two_layers_exchanged():
    ours = ResNet(ResNetConfig(18, classes=5, stem="small")).eval()
    theirs = torchvision.models.resnet18(num_classes=5)
    theirs.conv1, theirs.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert_same(ours(x), theirs.eval()(x))


def test_operations_of_the_small_resnet18_agree_with_the_formula():
    def stage(narrow, wide, side):
        shortcut = narrow * wide if narrow != wide else 0
        return side * side * (9 * narrow * wide + 3 * 9 * wide * wide + shortcut)

    stem = 32 * 32 * 9 * 3 * 64
    stages = stage(64, 64, 32) + stage(64, 128, 16) + stage(128, 256, 8) + stage(256, 512, 4)
    model = ResNet(resnet_config("resnet18_small", classes=10))
    assert count_flops(model) == 2 * (stem + stages + 512 * 10)


@pytest.mark.slow
@torch.no_grad()
def test_the_small_stem_is_recognised_when_it_is_loaded(tmp_path):
    model = ResNet(ResNetConfig(34, classes=4, image_size=32, stem="small")).eval()
    torch.save(model.state_dict(), tmp_path / "plain.pth")
    x = torch.randn(2, 3, 32, 32)
    again = load(tmp_path / "plain.pth")
    assert (again.config.depth, again.config.stem) == (34, "small")
    assert torch.equal(again(x), model(x))
    model.card = again.card
    save(model, tmp_path / "ours")
    assert torch.equal(load(tmp_path / "ours")(x), model(x))


def test_cam_of_a_small_image_can_be_taken_at_an_earlier_stage():
    model = ResNet(resnet_config("resnet18_small", classes=3)).eval()
    x = torch.randn(1, 3, 8, 8)
    assert [tuple(grad_cam(model, x, 1, layer=stage).shape[1:]) for stage in (-1, -2, -3)] == [(1, 1), (2, 2), (4, 4)]
    assert not any(stage._forward_hooks for stage in (model.layer2, model.layer3, model.layer4))


def test_another_stem_is_refused():
    with pytest.raises(ValueError, match="stem must be imagenet or small, got 'tiny'"):
        ResNetConfig(18, stem="tiny")


def test_an_image_that_is_no_batch_is_told_what_to_do_instead():
    with pytest.raises(TypeError, match=r"got str: use vitreous.classify\(image, model\)"):
        ResNet(ResNetConfig(18, 5))("photo.jpg")


@torch.no_grad()
def test_a_narrow_resnet_of_three_stages_survives_saving_and_has_as_many_parameters_as_the_small_vit(tmp_path):
    model = ResNet(resnet_config("resnet14_small:width=9,channels=1", classes=10)).eval()
    vit = ViT(variant("vit_femto_patch4_32", channels=1))
    ours, theirs = (sum(p.numel() for p in each.parameters()) for each in (model, vit))
    assert (ours, theirs) == (55_837, 53_866)
    x = torch.randn(2, 1, 32, 32)
    assert model.feature_map(x).shape == (2, 36, *model.config.grid) == (2, 36, 8, 8)
    assert grad_cam(model, x, 3).shape == (2, 8, 8) == (2, *patch_grid(model, x))
    model.card = Card("mine", Preprocess(size=(32, 32), resize=32, mean=(0.5,), std=(0.5,)))
    save(model, tmp_path)
    again = load(tmp_path)
    assert (again.config.depth, again.config.width, again.config.channels) == (14, 9, 1)
    assert torch.equal(again(x), model(x))


def test_a_plain_resnet_draws_the_same_weights_as_torchvisions():
    torch.manual_seed(0)
    ours = ResNet(ResNetConfig(18, classes=5)).state_dict()
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18(num_classes=5).state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_fields_of_another_kind_or_given_twice_are_refused():
    with pytest.raises(ValueError, match="heads is no field of ResNetConfig"):
        resnet_config("resnet18:heads=2")
    with pytest.raises(ValueError, match="width takes a value such as 64, got 'wide'"):
        resnet_config("resnet18:width=wide")
    with pytest.raises(ValueError, match="twice"):
        resnet_config("resnet18:width=8,width=9")


@pytest.mark.parametrize("fields", ["width", "width=9;channels=1", "width=9,", "width=9,,channels=1", "=9"])
def test_malformed_fields_after_a_name_are_refused(fields):
    with pytest.raises(ValueError, match="fields follow a name as in resnet14_small:width=9,channels=1"):
        resnet_config(f"resnet14_small:{fields}")
