"""Losses by hand, and a teacher that sees the student's images as its own."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import noise
from vitreous.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.training.config import TrainConfig
from vitreous.training.loss import Objective, Teacher
from vitreous.training.model import choose_forward

SMALL = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "classes": 4}
HALF = (0.5,) * 3


class Echo(nn.Module):
    """Return the input."""

    def __init__(self, **view):
        super().__init__()
        self.card = SimpleNamespace(preprocess=Preprocess(resize=view["size"], **view))

    def forward(self, x):
        return x


def objective(model, x, targets, config, teacher):
    forward = choose_forward(model, torch.device("cpu"), config)
    return Objective(model, config, forward, teacher)(x, targets)


def make_teacher(**changes):
    model = noise(ViT(ViTConfig(**SMALL, **changes)))
    model.card = SimpleNamespace(preprocess=Preprocess(size=(8, 8), resize=8, mean=HALF, std=HALF))
    return Teacher(model, HALF, HALF)


@pytest.fixture
def batch():
    return torch.randn(6, 3, 8, 8), torch.randn(6, 4).softmax(-1)


@pytest.mark.parametrize("size", [(8, 8), (20, 20), (5, 7)])
def test_a_constant_image_reaches_the_teacher_in_its_own_normalisation(size):
    teacher = Teacher(Echo(size=size, mean=IMAGENET_MEAN, std=IMAGENET_STD), HALF, HALF)
    pixel = torch.tensor([0.1, 0.6, 0.9])
    ours = ((pixel - 0.5) / 0.5).view(1, 3, 1, 1).expand(2, 3, 8, 8)
    theirs = (pixel - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    seen = teacher(ours)
    assert seen.shape == (2, 3, *size)
    torch.testing.assert_close(seen, theirs.view(1, 3, 1, 1).expand_as(seen), rtol=0, atol=1e-5)


def test_a_teacher_of_other_colours_is_refused():
    with pytest.raises(ValueError, match="both take grey or both take colour"):
        Teacher(Echo(size=(8, 8), mean=(0.5,), std=(0.5,)), HALF, HALF)


def test_a_teacher_is_frozen_and_a_copy(batch):
    teacher = make_teacher()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not teacher(batch[0]).requires_grad
    assert not teacher.model.training


def test_without_a_teacher_it_is_cross_entropy(batch):
    model = noise(ViT(ViTConfig(**SMALL))).train()
    loss, logits = objective(model, *batch, TrainConfig(), None)
    torch.testing.assert_close(logits, model(batch[0]), rtol=0, atol=1e-5)
    assert loss.item() == pytest.approx(-(batch[1] * model(batch[0]).log_softmax(-1)).sum(-1).mean().item(), rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_hard_distillation_by_hand(batch, share):
    model, teacher = noise(ViT(ViTConfig(**SMALL))), make_teacher()
    config = TrainConfig(teacher="x", distillation="hard", distillation_share=share)
    loss, logits = objective(model, *batch, config, teacher)
    log = model(batch[0]).log_softmax(-1)
    guess = teacher.model(batch[0]).argmax(-1)
    expected = (1 - share) * -(batch[1] * log).sum(-1).mean() - share * log[torch.arange(6), guess].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(logits, model(batch[0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_by_hand(batch, temperature):
    model, teacher = noise(ViT(ViTConfig(**SMALL))), make_teacher()
    config = TrainConfig(teacher="x", distillation="soft", distillation_share=0.4, temperature=temperature)
    loss, _ = objective(model, *batch, config, teacher)
    ours = (model(batch[0]) / temperature).log_softmax(-1)
    theirs = (teacher.model(batch[0]) / temperature).log_softmax(-1)
    taught = (theirs.exp() * (theirs - ours)).sum(-1).mean() * temperature**2
    labelled = -(batch[1] * model(batch[0]).log_softmax(-1)).sum(-1).mean()
    assert loss.item() == pytest.approx((0.6 * labelled + 0.4 * taught).item(), rel=1e-4)


def test_a_teacher_that_is_the_student_teaches_nothing_softly(batch):
    teacher = make_teacher()
    config = TrainConfig(teacher="x", distillation="soft", distillation_share=1.0)
    assert objective(teacher.model, *batch, config, teacher)[0].item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_each_head_learns_from_its_own_source(batch, kind):
    model = noise(ViT(ViTConfig(**SMALL, distillation_token=True, distillation_head=True)))
    teacher = make_teacher()
    for share, learns, idle in (
        (0.5, ("head", "head_dist"), ()),
        (0.0, ("head",), ("head_dist",)),
        (1.0, ("head_dist",), ("head",)),
    ):
        model.zero_grad()
        config = TrainConfig(teacher="x", distillation=kind, distillation_share=share)
        loss, logits = objective(model, *batch, config, teacher)
        loss.backward()
        assert all(getattr(model, name).weight.grad.abs().max() > 1e-4 for name in learns)
        assert not any(getattr(model, name).weight.grad.any() for name in idle)
    tokens = model.forward_features(batch[0])
    assert torch.equal(logits, model.head(tokens[:, 0]))
    student = model.head_dist(tokens[:, 1])
    if kind == "hard":
        assert loss.item() == pytest.approx(F.cross_entropy(student, teacher(batch[0]).argmax(-1)).item(), rel=1e-5)


@pytest.mark.slow
def test_lora_in_the_last_block_counts_in_training(batch):
    """The shortcut through the last block reads weights; LoRA's are separate."""
    from vitreous.training.policies import apply_policy

    model = noise(ViT(ViTConfig(**SMALL)))
    apply_policy(model, "lora")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_()
    loss, logits = objective(model, *batch, TrainConfig(), None)
    torch.testing.assert_close(logits, copy.deepcopy(model)(batch[0]), rtol=0, atol=1e-4)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for n, p in model.named_parameters() if "lora_" in n)
