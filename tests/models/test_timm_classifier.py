"""Any classifier of timm: the interface that a study needs of it, and what is refused."""

import pytest
import timm
import torch

from vitreous.data.preprocess import HALF, Preprocess
from vitreous.inside.grad_cam import grad_cam
from vitreous.models.resnet import ResNet, resnet_config
from vitreous.models.summary import count_flops, describe
from vitreous.models.timm_classifier import TimmClassifier, TimmConfig, split_timm
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.pages.comparison import evidence_map, map_name
from vitreous.training.policies import apply_policy
from vitreous.weights.card import Card


def build(name, **changes):
    torch.manual_seed(0)
    return TimmClassifier(TimmConfig(name, **{"classes": 5, "image_size": 64, **changes}))


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit", "test_convnext"])
@torch.no_grad()
def test_logits_and_features_are_timms(name):
    model = build(name).eval()
    torch.manual_seed(0)
    sized = {"img_size": (64, 64)} if model.fixed_size else {}
    theirs = timm.create_model(name, num_classes=5, **sized).eval()
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(x), theirs(x))
    assert model.features(x).shape == (2, theirs.head_hidden_size)
    assert describe(model) == f"{name}, 64×64 px"


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("resnet18", lambda: ResNet(resnet_config("resnet18", classes=5, image_size=64))),
        ("vit_tiny_patch16_224", lambda: ViT(variant("vit_tiny_patch16_224", classes=5, image_size=64))),
    ],
)
def test_torchs_counter_finds_the_flops_that_ours_finds(name, ours):
    model = build(name).train()
    assert count_flops(model) == count_flops(ours())
    assert model.training


def test_the_head_alone_learns_and_frozen_batch_norms_keep_their_statistics():
    model = build("test_resnet").train()
    assert apply_policy(model, "head") == ["network.fc.weight", "network.fc.bias"]
    before = {key: value.clone() for key, value in model.network.named_buffers()}
    model(torch.randn(4, 3, 64, 64))
    assert all(torch.equal(value, before[key]) for key, value in model.network.named_buffers())
    with pytest.raises(ValueError, match="a ResNet or timm classifier takes full or head"):
        apply_policy(model, "attention")


def test_a_new_head_has_the_classes_asked_for():
    model = build("test_efficientnet")
    model.card = Card("mine", Preprocess(size=(64, 64), resize=64, mean=HALF, std=HALF), class_names=tuple("abcde"))
    model.reset_classifier(3)
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    assert model.config.classes == 3
    assert model.card.label(0) == "class 0"


@pytest.mark.parametrize(
    ("name", "size", "kind", "cells"),
    [
        ("resnet18", 128, "Grad-CAM", (4, 4)),
        ("resnet18", 32, "gradient × input", (16, 16)),  # its last map has one cell
        ("swin_tiny_patch4_window7_224", 224, "Grad-CAM", (7, 7)),  # its channels come last
        ("test_vit", 160, "gradient × input", (16, 16)),
    ],
)
def test_the_comparisons_page_has_a_map_for_each_kind_of_network(name, size, kind, cells):
    model = build(name, image_size=size).eval()
    assert map_name(model) == kind
    found = evidence_map(model, torch.randn(1, 3, size, size), 2)
    assert found.shape == (1, *cells)
    assert bool(found.isfinite().all())
    assert found.min() >= 0


def test_grad_cam_weighs_the_feature_map_that_the_head_reads():
    model = build("resnet18", image_size=128).eval()
    x = torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        features = model.feature_map(x)
        assert torch.equal(model.read_map(features), model(x))
        weights = model.network.fc.weight[2] / features[0, 0].numel()  # of a mean and one linear layer
        expected = (weights[:, None, None] * features[0]).sum(dim=0).clamp_min(0)
    torch.testing.assert_close(grad_cam(model, x, 2)[0], expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="has no feature map of rows and columns"):
        grad_cam(build("test_vit", image_size=160).eval(), torch.randn(1, 3, 160, 160), 2)


def test_names_that_are_not_complete_or_unknown_are_refused():
    for name in ("timm:", "timm:resnet18@"):
        with pytest.raises(ValueError, match="is not complete"):
            split_timm(name)
    with pytest.raises(ValueError, match="has no model called 'resnet81'"):
        build("resnet81")
    with pytest.raises(ValueError, match=r"timm cannot build swin_tiny_patch4_window7_224 for images of 64×64"):
        build("swin_tiny_patch4_window7_224", channels=-1)


@pytest.mark.slow
@torch.no_grad()
def test_nothing_is_dropped_in_training_and_evaluation_is_timms():
    name = "swin_tiny_patch4_window7_224"
    model = build(name, image_size=224)
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=5)
    x = torch.randn(2, 3, 224, 224)
    assert any(getattr(module, "drop_prob", 0) for module in theirs.modules())
    assert torch.equal(model.train().features(x), model.features(x))
    assert torch.equal(
        model.eval().features(x), theirs.eval().forward_head(theirs.forward_features(x), pre_logits=True)
    )
    head = TimmClassifier(TimmConfig("efficientnet_b0", 5, 32))  # its head calls F.dropout
    head.reset_classifier(3)
    assert not any(getattr(module, "drop_rate", 0) for module in head.modules())


def test_batch_norms_of_vectors_are_batch_norms_too():
    model = build("test_convnext")
    assert not model.has_batch_norm()
    model.network.extra = torch.nn.BatchNorm1d(4)
    assert model.has_batch_norm()
