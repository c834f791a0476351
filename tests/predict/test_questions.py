"""Questions about labels, numbers and regions: the odds of a class are those of the output that is asked about."""

import pytest
import torch

from conftest import noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.questions import as_classifier
from vitreous.weights.card import card_of

SMALL = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "classes": 3}
X = torch.randn(1, 3, 16, 16)


def make(task, names=("cat", "dog", "owl"), **training):
    model = ViT(ViTConfig(**SMALL))
    if task == "segment":
        model.reset_dense(3, "linear")
    noise(model).eval()
    model.card = card_of(model)
    model.card.task, model.card.class_names, model.card.training = task, names, training or None
    return model


@torch.no_grad()
@pytest.mark.parametrize("target", [None, 1])
def test_the_odds_of_a_label_are_its_own(target):
    model = make("multilabel")
    question = as_classifier(model, X, target)
    index = int(model(X).argmax()) if target is None else target
    probability = question.model(X).softmax(dim=-1)[0, question.target]
    torch.testing.assert_close(probability, model(X).sigmoid()[0, index])
    name = model.card.class_names[index]
    assert question.model.card.class_names == (name, f"no {name}")
    assert model.config.classes == 3  # the model itself is not changed


@torch.no_grad()
def test_both_heads_of_a_deit_are_asked():
    model = noise(ViT(ViTConfig(**SMALL, distillation_head=True, distillation_token=True))).eval()
    model.card = card_of(model)
    model.card.task, model.card.class_names = "multilabel", ("cat", "dog", "owl")
    question = as_classifier(model, X, 2)
    torch.testing.assert_close(question.model(X).softmax(dim=-1)[0, 0], model(X).sigmoid()[0, 2])


@torch.no_grad()
def test_a_number_is_asked_about_in_units_of_its_spread():
    model = make("regress", standard=[[0.0, 1.0], [5.0, 2.0], [0.0, 1.0]])
    question = as_classifier(model, X, 1)
    odds = question.model(X)[0, 0] - question.model(X)[0, 1]
    torch.testing.assert_close(odds, (model(X)[0, 1] - 5) / 2)
    assert question.model.card.class_names == ("higher dog", "lower dog")
    assert (question.output, question.spread) == (1, (5.0, 2.0))
    assert "above 5, in units of 2" in question.probability


@torch.no_grad()
def test_of_a_mask_the_pixels_that_have_the_class_are_asked_about():
    model = make("segment")
    logits = model(X)[0]
    predicted = logits.argmax(dim=0)
    index = int(predicted[8, 8])
    question = as_classifier(model, X)
    assert question.target == index
    torch.testing.assert_close(question.model(X)[0], logits[:, predicted == index].mean(dim=1))
    torch.testing.assert_close(as_classifier(model, X, pixel=(2, 3)).model(X)[0], logits[:, 2, 3])


@torch.no_grad()
def test_a_class_that_no_pixel_has_is_asked_about_where_it_is_likeliest():
    model = make("segment")
    model.head.bias[2] -= 100
    logits = model(X)[0]
    question = as_classifier(model, X, 2)
    assert question.model(X)[0, 2] == logits[2].max()
    assert "no pixel is taken for owl" in question.probability


def test_a_pixel_of_a_model_without_masks_is_an_error():
    with pytest.raises(ValueError, match="of masks alone"):
        as_classifier(make("multilabel"), X, pixel=(0, 0))


@torch.no_grad()
@pytest.mark.parametrize("task", ["multilabel", "regress", "segment"])
def test_a_negative_target_counts_from_the_last(task):
    model = make(task)
    asked = [(X, {}), (None, {}), *([(X, {"pixel": (2, 3)})] if task == "segment" else [])]
    for x, options in asked:
        found, wanted = as_classifier(model, x, -1, **options), as_classifier(model, x, 2, **options)
        assert (found.target, found.output, found.probability) == (wanted.target, 2, wanted.probability)
        assert torch.equal(found.model(X), wanted.model(X))
