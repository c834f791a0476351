"""The view of labels, numbers and masks, on the page and as figures."""

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.figures.draw_by_kind import draw
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.explanation import Explanation
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.outputs import outputs
from vitreous.weights.card import card_of

SMALL = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "classes": 3}
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 24, 3)).astype(np.uint8))


def inspect(task, **choice):
    torch.manual_seed(0)
    model = ViT(ViTConfig(**SMALL))
    if task == "segment":
        model.reset_dense(3, "decoder")
    noise(model).eval()
    model.card = card_of(model)
    model.card.task, model.card.class_names = task, ("cat", "dog", "owl")
    return Inspection(model, IMAGE, Choice(**choice), "photo")


def test_labels_are_ranked_by_their_own_probability():
    inspection = inspect("multilabel")
    result = outputs(inspection)
    with torch.no_grad():
        expected = inspection.asked(inspection.x)[0].sigmoid().sort(descending=True).values
    np.testing.assert_allclose(result.values, expected.numpy(), rtol=1e-5)


def test_numbers_are_listed_in_their_units():
    inspection = inspect("regress")
    with torch.no_grad():
        expected = inspection.asked(inspection.x)[0].tolist()
    assert outputs(inspection).rows == [(n, f"{v:.4g}") for n, v in zip(("cat", "dog", "owl"), expected, strict=True)]


def test_a_mask_is_drawn_over_the_image_with_the_share_of_each_class():
    inspection = inspect("segment")
    result = outputs(inspection)
    with torch.no_grad():
        predicted = inspection.asked(inspection.x)[0].argmax(dim=0)
    shares = predicted.flatten().bincount(minlength=3) / 256
    names, colours = ("cat", "dog", "owl"), ("#e69f00", "#56b4e9", "#009e73")
    expected = [(names[i], colours[i], shares[i].item()) for i in shares.argsort(descending=True) if shares[i]]
    assert list(result.legend) == expected
    row, column = divmod(int((predicted == result.indices[0]).flatten().nonzero()[0]), 16)
    assert "#" + bytes(result.colours[row, column]).hex() == expected[0][1]
    assert result.colours.shape == result.image.shape == (16, 16, 3)


@pytest.mark.parametrize("task", ["multilabel", "regress", "segment"])
def test_every_view_of_such_a_model_is_computed_and_drawn(task):
    explanation = Explanation(inspect(task), "all")
    payload = explanation.payload()
    assert explanation.skipped == {}
    assert "outputs" in explanation.views
    assert payload.header["model"]["compares"]
    for name in ("removal", "outputs", "shapes"):
        for result in explanation.results(name).values():
            draw(result, explanation.inspection.backdrop)


def test_a_classifier_has_no_such_view():
    inspection = inspect("classify")
    assert "outputs" not in Explanation(inspection, "all").views
    with pytest.raises(ValueError, match="gives one class"):
        Explanation(inspection, "outputs")
    with pytest.raises(ValueError, match="a pixel can be asked about"):
        inspect("classify", pixel=(1, 1))
