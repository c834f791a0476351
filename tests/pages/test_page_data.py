import numpy as np
import pytest
import torch
from payloads import opened
from PIL import Image

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.inside.capture import capture
from vitreous.models.vit import ViT, ViTConfig
from vitreous.pages.page_data import page_data
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.maps import heat
from vitreous.views.registry import VIEWS
from vitreous.weights.card import Card

SMALL = {"image_size": (32, 48), "patch_size": 8, "width": 24, "depth": 3, "heads": 4, "classes": 7}


def scene_of(**changes):
    model = noise(ViT(ViTConfig(**SMALL | changes)))
    preprocess = Preprocess(size=model.config.size, resize=model.config.size, mean=HALF, std=HALF)
    head = "classifier" if model.config.classes else "none"
    model.card = Card("small", preprocess, tuple("abcdefg"), head=head)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    return Inspection(model, Image.fromarray(pixels), name="noise")


def test_attention_on_the_page_is_the_models_own():
    inspection = scene_of()
    _, array, _ = opened(page_data(inspection))
    with torch.inference_mode(), capture(inspection.vit, "attention") as seen:
        inspection.vit(inspection.x)
    found = array("attention") * array("attention.scale")[..., None]
    truth = seen.stack("attention")[:, 0].numpy()
    assert found.shape == truth.shape
    assert np.abs(found - truth).max() <= truth.max() / 255
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=0.05)


def test_relevance_goes_along_for_the_likeliest_classes():
    inspection = scene_of()
    header, array, _ = opened(page_data(inspection))
    assert [each["index"] for each in header["explained"]] == inspection.logits.argsort(descending=True)[:5].tolist()
    for place, each in enumerate(header["explained"]):
        truth = heat("relevance", Inspection(inspection.model, inspection.image, Choice(target=each["index"]))).numpy()
        found = array("map/relevance")[place] * array("map/relevance.scale")[place]
        np.testing.assert_allclose(found, truth, atol=np.abs(truth).max() / 200 + 1e-9)


def test_predictions_are_the_models_and_sorted():
    inspection = scene_of()
    header, _, _ = opened(page_data(inspection))
    assert [round(each["logit"], 4) for each in header["predictions"]] == [
        round(value, 4) for value in sorted(inspection.logits.tolist(), reverse=True)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"class_token": False, "pool": "mean"},
        {"registers": 4, "prefix_positions": False},
        {"distillation_token": True, "distillation_head": True},
        {"classes": 0},
        {"position": "none"},
        {"position": "sine-2d"},
    ],
    ids=str,
)
def test_every_family_has_a_page(changes):
    header, array, _ = opened(page_data(scene_of(**changes)))
    tokens = len(header["model"]["prefix"]) + 4 * 6
    assert array("attention").shape == (3, 4, tokens, tokens)
    assert ("positions" in header["arrays"]) == (changes.get("position") != "none")
    assert ("map/relevance" in header["arrays"]) == (changes.get("classes") != 0)


def test_what_takes_long_comes_when_asked_for():
    plain, whole = page_data(scene_of()), page_data(scene_of(), frozenset({"ablation", "trust"}))
    assert "ablation" not in plain.header["arrays"]
    assert whole.header["arrays"]["ablation"]["shape"] == [3, 4]
    assert {each["name"] for each in whole.header["trust"]} >= {"relevance", "random", "centre"}


def test_every_sentence_of_the_views_is_on_the_page():
    header, _, _ = opened(page_data(scene_of()))
    assert {name: view["read"] for name, view in header["views"].items()} == {n: v.read for n, v in VIEWS.items()}


def test_no_path_of_this_machine_is_on_the_page(tmp_path):
    inspection = scene_of()
    inspection.model.card.files = (str(tmp_path / "secret/model.pth"),)
    inspection.model.card.name, inspection.name = str(tmp_path / "secret/model.pth"), str(tmp_path / "secret/photo.png")
    text = page_data(inspection).to_bytes()
    assert b"secret" not in text
    assert b"model.pth" in text
    assert b"photo.png" in text


def test_the_class_in_question_comes_first_and_every_map_of_one_class_is_its():
    inspection = scene_of()
    third = inspection.logits.argsort(descending=True)[2].item()
    asked = Inspection(inspection.model, inspection.image, Choice(target=third))
    header, array, _ = opened(page_data(asked))
    assert header["explained"][0]["index"] == third
    truth = heat("integrated gradients", asked).numpy()
    found = array("map/integrated gradients")[0] * array("map/integrated gradients.scale")[0]
    np.testing.assert_allclose(found, truth, atol=np.abs(truth).max() / 100)


def test_the_page_says_who_answers():
    assert not page_data(scene_of()).header["model"]["readsMean"]
    assert page_data(scene_of(pool="mean")).header["model"]["readsMean"]  # whether there is a class token or not


def test_too_much_attention_leaves_the_rows_of_who_answers(monkeypatch):
    monkeypatch.setattr("vitreous.pages.page_data.MOST_NUMBERS", 10)
    inspection = scene_of(class_token=False, pool="mean")
    _, array, _ = opened(page_data(inspection))
    with torch.inference_mode(), capture(inspection.vit, "attention") as seen:
        inspection.vit(inspection.x)
    truth = seen.stack("attention")[:, 0].mean(dim=2, keepdim=True).numpy()
    found = array("attention") * array("attention.scale")[..., None]
    np.testing.assert_allclose(found, truth, atol=truth.max() / 255)


def test_what_was_chosen_on_the_command_line_is_where_the_page_starts():
    inspection = scene_of()
    chosen = Inspection(inspection.model, inspection.image, Choice(layer=1, head=2, query=5, residual=1.0))
    header, array, _ = opened(page_data(chosen))
    assert header["start"] == {"layer": 1, "head": 2, "query": 5}
    np.testing.assert_allclose(array("rollout") * array("rollout.scale")[:, None], np.eye(25), atol=0.01)
