"""The story and the architecture are the model's own: shapes, queries, keys, what is seen of the image."""

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess, default_preprocess
from vitreous.inside.capture import capture
from vitreous.models.summary import trace
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.views.inspection import Inspection
from vitreous.views.story import STRIP, architecture, story
from vitreous.weights.card import Card


def inspection_of(photo=None, **changes):
    config = {"image_size": (24, 40), "patch_size": 8, "width": 48, "depth": 3, "heads": 4, "classes": 7} | changes
    model = noise(ViT(ViTConfig(**config)))
    model.card = Card("tiny", default_preprocess(model.config), tuple("abcdefg") if config["classes"] else None)
    pixels = np.random.default_rng(0).integers(0, 255, (30, 70, 3), dtype=np.uint8)
    return Inspection(model, photo or Image.fromarray(pixels))


def test_queries_and_keys_give_the_models_attention():
    inspection = inspection_of()
    told = story(inspection)
    with torch.inference_mode(), capture(inspection.vit, "attention", layers=[told.block], heads=[0]) as seen:
        inspection.vit(inspection.x)
    scores = torch.from_numpy(told.q @ told.k.T) / told.q.shape[1] ** 0.5
    truth = seen[f"blocks.{told.block}.attention"][0, 0]
    torch.testing.assert_close(scores.softmax(dim=-1), truth, rtol=1e-4, atol=1e-5)


def test_a_patch_and_its_position_add_up_to_its_token():
    inspection = inspection_of()
    told = story(inspection)
    with torch.inference_mode():
        tokens = inspection.vit.embed(inspection.x)[0, 1:, :STRIP].numpy()
    np.testing.assert_allclose(told.embedding + told.positions, tokens, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "embedding", "score"),
    [
        ({}, "z₀ = [x_class; x₁E; … xₙE] + E_pos", "√12"),
        ({"class_token": False, "pool": "attention"}, "z₀ = [x₁E; … xₙE] + E_pos", "√12"),
        ({"position": "none", "rope": "dinov3", "registers": 2}, "z₀ = [x_class; x₁E; … xₙE]", "√12"),
        ({"embedding_norm": True}, "z₀ = LN([x_class; x₁E; … xₙE] + E_pos)", "√12"),
        ({"relative_position": "table"}, "z₀ = [x_class; x₁E; … xₙE] + E_pos", "√12 + b"),
    ],
    ids=str,
)
def test_the_equations_of_the_story_are_those_of_the_model(changes, embedding, score):
    steps = story(inspection_of(**changes)).steps
    assert steps[2].equation == embedding
    assert steps[3].equation == f"s = q · k / {score}"
    assert ("rotated" in steps[3].text) == ("rope" in changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"class_token": False, "pool": "mean", "position": "none"}, {"registers": 4}, {"classes": 0}, {"depth": 1}],
    ids=str,
)
def test_shapes_of_architecture_and_story_are_those_of_a_forward_pass(changes):
    inspection = inspection_of(**changes)
    rows = {name: shape.replace("×", " × ") for name, shape in trace(inspection.vit)}
    (embedded,) = [name for name in rows if name.startswith("with ") or name == "first tokens"]
    assert ("class token" in embedded) == inspection.vit.config.class_token
    whole = {part.name: part.shape for part in architecture(inspection).whole}
    assert whole["embedding"] == rows[embedded]
    assert ("positions" in whole) == (changes.get("position") != "none")
    assert whole.get("head", "") == (rows["logits"] if inspection.vit.config.classes else "")
    steps = story(inspection).steps
    assert len(steps) == 8
    assert dict(steps[5].shapes)["hidden layer"] == rows["hidden layer of the MLP"]


@pytest.mark.parametrize(
    ("preprocess", "wanted"),
    [
        (Preprocess(size=(64, 64), resize=64, mean=HALF, std=HALF), (0.25, 0, 0.75, 1)),  # the middle of a wide image
        (Preprocess(size=(64, 64), resize=(64, 64), mean=HALF, std=HALF), (0, 0, 1, 1)),  # squashed
        (Preprocess(size=(64, 64), resize=80, mean=HALF, std=HALF), (0.3, 0.1, 0.7, 0.9)),
        (Preprocess(size=(64, 64), resize=(32, 64), mean=HALF, std=HALF), (0, -0.5, 1, 1.5)),  # black above and below
    ],
    ids=["crop", "squash", "smaller crop", "beyond the edges"],
)
def test_the_box_is_the_part_that_the_model_sees(preprocess, wanted):
    model = noise(ViT(ViTConfig(image_size=64, patch_size=16, width=24, depth=1, heads=3, classes=2)))
    model.card = Card("tiny", preprocess)
    inspection = Inspection(model, Image.new("RGB", (400, 200)))
    np.testing.assert_allclose(inspection.seen_box, wanted, atol=0.01)
