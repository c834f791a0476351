"""The test of a map on its own image: what is hidden, what the model says then, and when a map fails."""

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.data.preprocess import default_preprocess
from vitreous.inside.artifacts import Artifacts
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.views import evidence
from vitreous.views.inspection import Inspection
from vitreous.weights.card import Card


@pytest.fixture(scope="module")
def inspection():
    model = noise(ViT(ViTConfig(image_size=(24, 40), patch_size=(8, 8), width=48, depth=2, heads=4, classes=7)))
    model.card = Card(name="tiny", preprocess=default_preprocess(model.config), class_names=tuple("abcdefg"))
    pixels = np.random.default_rng(0).integers(0, 255, (24, 40, 3), dtype=np.uint8)
    return Inspection(model, Image.fromarray(pixels))


@pytest.fixture(scope="module")
def found(inspection):
    return evidence.evidence(inspection)


def test_every_step_is_the_model_on_the_image_with_those_patches_in_the_mean_colour(inspection, found):
    for row in range(len(found.names["class"])):
        for step, count in enumerate(found.counts):
            for way, values in (("hide", found.hidden), ("show", found.alone)):
                x = inspection.x.clone()
                strongest = found.order[row, :count] if way == "hide" else found.order[row, count:]
                for patch in strongest:
                    top, left = 8 * (patch // 5), 8 * (patch % 5)
                    x[..., top : top + 8, left : left + 8] = inspection.x.mean(dim=(-2, -1), keepdim=True)
                with torch.inference_mode():
                    truth = inspection.model(x)[0].softmax(dim=-1)[list(found.answers)]
                np.testing.assert_allclose(values[row, step], truth, atol=1e-5)


def test_the_ends_are_the_whole_image_and_none_of_it(inspection, found):
    assert (found.counts[0], found.counts[-1]) == (0, 15)
    np.testing.assert_allclose(found.hidden[:, 0], found.alone[:, -1])
    whole = inspection.logits.softmax(dim=-1)[list(found.answers)]
    np.testing.assert_allclose(found.hidden[0, 0], whole, atol=1e-6)


def test_a_map_that_is_no_better_than_chance_is_said_to_fail(inspection, monkeypatch):
    monkeypatch.setattr(evidence, "random_map", lambda grid, seed: torch.ones(grid))
    monkeypatch.setattr(evidence, "_ask", lambda inspection, kept: torch.full((len(kept), 7), 1 / 7))
    found = evidence.evidence(inspection)
    assert not any(found.passed)
    assert found.sentence().endswith("one such choice does as well as the map: do not rely on it.")


def test_the_sentence_names_count_class_and_both_probabilities(found):
    step = found.chosen[0]
    sentence = found.sentence()
    assert sentence.startswith(
        f"Hide the {found.counts[step]} strongest of 15 patches, and “{found.names['class'][0]}” "
    )
    assert f"{100 * found.hidden[0, step, 0]:.1f} %" in sentence


def test_artifacts_are_hidden_last(inspection, monkeypatch):
    monkeypatch.setitem(inspection.__dict__, "artifacts", Artifacts((3, 7), 1, 9.0, 1.0))
    found = evidence.evidence(inspection)
    assert all(set(order[-2:]) == {3, 7} for order in found.order.tolist())
