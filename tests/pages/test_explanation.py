import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from payloads import opened
from PIL import Image
from two_towers import write_open_clip, write_siglip

import vitreous
from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.data.sample_photos import samples
from vitreous.inside.capture import capture
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.explanation import Explanation
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.maps import heat_map
from vitreous.views.registry import VIEWS
from vitreous.weights.card import Card
from vitreous.weights.load import load

SMALL = {"image_size": (32, 48), "patch_size": 8, "width": 24, "depth": 3, "heads": 4, "classes": 7}


ALL = ["all", *(name for name, view in VIEWS.items() if view.slow)]


def inspection_of(**changes):
    model = noise(ViT(ViTConfig(**SMALL | changes)))
    preprocess = Preprocess(size=model.config.size, resize=model.config.size, mean=HALF, std=HALF)
    head = "classifier" if model.config.classes else "none"
    model.card = Card("small", preprocess, tuple("abcdefg"), head=head)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    return Inspection(model, Image.fromarray(pixels), name="noise")


def pack(inspection, views="all"):
    """What the page reads: its header, and a function that gives an array's values by name."""
    header, array, _ = opened(Explanation(inspection, views).payload())

    def values(name):
        found = array(name)
        return found * array(f"{name}.scale")[..., None] if f"{name}.scale" in header["arrays"] else found

    return header, values


def results(header):
    """Results by view and part."""
    return {(view["name"], each["part"]): each for view in header["views"] for each in view["results"]}


def test_attention_on_the_page_is_the_models_own():
    inspection = inspection_of()
    header, values = pack(inspection)
    with torch.inference_mode(), capture(inspection.vit, "attention") as seen:
        inspection.vit(inspection.x)
    found = values(results(header)["attention-rows", ""]["array"])
    truth = seen.stack("attention")[:, 0].numpy()
    assert found.shape == truth.shape
    assert np.abs(found - truth).max() <= truth.max() / 255
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=0.05)


def test_the_page_knows_which_part_of_the_image_the_model_sees():
    inspection = inspection_of()  # of 48×32 pixels
    inspection.image = Image.new("RGB", (90, 40))
    expected = {"squash": [0, 0, 90, 40], "crop": [15, 0, 75, 40], "pad": [0, 0, 90, 40]}
    for fit, crop in expected.items():
        inspection.model.card = replace(
            inspection.model.card, preprocess=inspection.model.card.preprocess.with_fit(fit)
        )
        image = pack(inspection, "predictions")[0]["image"]
        assert image["crop"] == crop
        assert image["size"] == [90, 40]
        assert image["preprocess"] == inspection.model.card.preprocess.describe()


def test_views_of_one_array_share_it():
    found = results(pack(inspection_of())[0])
    names = {found[key]["array"] for key in found if key[0].startswith("attention-")}
    assert names == {"attention-rows"}


def test_relevance_goes_along_for_the_likeliest_classes():
    inspection = inspection_of()
    header, values = pack(inspection)
    assert [each["index"] for each in header["classes"]] == inspection.logits.argsort(descending=True)[:5].tolist()
    for number, each in enumerate(header["classes"]):
        one = Inspection(inspection.model, inspection.image, Choice(target=each["index"]))
        truth = heat_map("relevance", one).numpy().flatten()
        found = values("relevance")[number]
        np.testing.assert_allclose(found, truth, atol=np.abs(truth).max() / 200 + 1e-9)


def test_predictions_are_the_models_and_sorted():
    inspection = inspection_of()
    header, _ = pack(inspection)
    assert [round(each["logit"], 4) for each in header["predictions"]] == [
        round(value, 4) for value in sorted(inspection.logits.tolist(), reverse=True)
    ]


@pytest.mark.slow
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
    header, values = pack(inspection_of(**changes))
    tokens = len(header["model"]["prefix"]) + 4 * 6
    assert values("attention-rows").shape == (3, 4, tokens, tokens)
    assert ("positions" in header["arrays"]) == (changes.get("position") != "none")
    assert ("relevance" in header["arrays"]) == (changes.get("classes") != 0)


def test_slow_views_come_when_asked_for():
    plain, _ = pack(inspection_of())
    whole, values = pack(inspection_of(), ALL)
    assert not {"ablation", "trust"} & {view["name"] for view in plain["views"]}
    assert values(results(whole)["ablation", "heads"]["array"]).shape == (3, 4)
    assert {*results(whole)["trust", ""]["panels"][0]["names"]} >= {"relevance", "random", "centre"}


WORDLESS = {name: view for name, view in VIEWS.items() if not {"sentences", "task"} & view.needs}
"""The views of a model without a text tower."""


def test_every_sentence_of_the_views_is_on_the_page():
    header, _ = pack(inspection_of(), ALL)
    found = {view["name"]: (view["title"], view["read"], view["beware"]) for view in header["views"]}
    assert found == {name: (view.title, view.read, view.beware) for name, view in WORDLESS.items()}


def test_groups_are_those_of_the_views():
    header, _ = pack(inspection_of(), ALL)
    assert [view["group"] for view in header["views"]] == [view.group for view in WORDLESS.values()]
    assert {view.group for view in VIEWS.values()} == set(header["groups"])


def test_no_path_of_this_machine_is_on_the_page(tmp_path):
    inspection = inspection_of()
    inspection.model.card.files = (str(tmp_path / "secret/model.pth"),)
    inspection.model.card.name, inspection.name = str(tmp_path / "secret/model.pth"), str(tmp_path / "secret/photo.png")
    text = Explanation(inspection).payload().to_bytes()
    assert b"secret" not in text
    assert b"model.pth" in text
    assert b"photo.png" in text


def test_a_target_that_is_not_the_answer_is_named_with_its_probability():
    inspection = inspection_of()
    order = inspection.logits.argsort(descending=True).tolist()
    first, *others = (
        Explanation(Inspection(inspection.model, inspection.image, Choice(target=order[rank]), inspection.name))
        for rank in (0, 2, 6)
    )
    assert "explained" not in first.summary
    for explanation, index in zip(others, (order[2], order[6]), strict=True):
        probability = inspection.logits.softmax(dim=-1)[index].item()
        named = f"{inspection.model.card.label(index)} {100 * probability:.1f}%"
        assert explanation.summary == f"{first.summary}; explained: {named}"


def test_the_target_comes_first_and_every_map_of_one_class_is_its():
    inspection = inspection_of()
    third = inspection.logits.argsort(descending=True)[2].item()
    asked = Inspection(inspection.model, inspection.image, Choice(target=third))
    header, values = pack(asked)
    assert header["classes"][0]["index"] == header["start"]["class"] == third
    truth = heat_map("integrated gradients", asked).numpy().flatten()
    np.testing.assert_allclose(values("integrated-gradients")[0], truth, atol=np.abs(truth).max() / 100)


def test_the_page_says_what_the_head_reads():
    assert not pack(inspection_of())[0]["model"]["readsMean"]
    assert pack(inspection_of(pool="mean"))[0]["model"]["readsMean"]  # whether there is a class token or not


@pytest.mark.parametrize("changes", [{}, {"class_token": False, "pool": "mean"}], ids=str)
def test_too_much_attention_leaves_the_rows_of_the_query(changes, monkeypatch):
    monkeypatch.setattr("vitreous.views.inspection.LARGEST_ATTENTION", 10)
    inspection = inspection_of(**changes)
    header, values = pack(inspection)
    with torch.inference_mode(), capture(inspection.vit, "attention") as seen:
        inspection.vit(inspection.x)
    whole = seen.stack("attention")[:, 0]
    truth = (whole.mean(dim=2) if changes else whole[:, :, 0]).numpy()
    np.testing.assert_allclose(values("attention-rows"), truth, atol=truth.max() / 255)
    assert results(header)["attention-rows", ""]["axes"] == ["block", "head"]
    assert "attention-matrix" not in {view["name"] for view in header["views"]}
    assert values("rollout").shape == (24,)


def test_the_choice_of_the_command_line_is_where_the_page_starts():
    inspection = inspection_of()
    chosen = Inspection(inspection.model, inspection.image, Choice(block=1, head=2, query=5, residual=1.0))
    header, values = pack(chosen)
    assert header["start"] == {"view": "removal", "block": 1, "head": 2, "query": 5, "class": chosen.target}
    np.testing.assert_allclose(values("rollout"), np.eye(25), atol=0.01)


def test_of_all_views_one_that_cannot_be_computed_is_left_out_and_noted():
    inspection = inspection_of(image_size=8, patch_size=8)
    explanation = Explanation(inspection)
    explanation.compute()
    assert list(explanation.skipped) == ["removal", "evidence", "block-similarity"]
    with pytest.raises(ValueError, match="at least 4 tokens"):
        Explanation(inspection, "block-similarity").compute()


@pytest.mark.parametrize("views", ["predictions, block-similarity", ["predictions", " block-similarity "]])
def test_a_named_view_that_cannot_be_computed_is_an_error_with_spaces_around_its_name_too(views):
    with pytest.raises(ValueError, match="at least 4 tokens"):
        Explanation(inspection_of(image_size=8, patch_size=8), views).compute()


def test_a_view_is_computed_once(monkeypatch):
    calls = []
    view = VIEWS["rollout"]
    monkeypatch.setitem(VIEWS, "rollout", replace(view, compute=lambda i: (calls.append(1), view.compute(i))[1]))
    explanation = Explanation(inspection_of(), "rollout")
    explanation.map("rollout")
    explanation.figure("rollout")
    explanation.html()
    assert calls == [1]


def test_it_shows_itself_in_a_notebook_and_reads_well():
    explanation = Explanation(inspection_of(), ["rollout", "filters"])
    assert repr(explanation).startswith("Explanation of noise: ")
    assert repr(explanation).endswith("(2 views: rollout, filters)")
    frame = explanation._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert frame.count("<") == 2  # the frame and its end: all of the page is escaped


def test_maps_are_arrays_and_other_views_say_so():
    explanation = Explanation(inspection_of())
    assert explanation.map("relevance").shape == (4, 6)
    np.testing.assert_allclose(
        explanation.map("rollout"), heat_map("rollout", explanation.inspection).numpy(), atol=1e-6
    )
    with pytest.raises(ValueError, match="'filters' is no heat map"):
        explanation.map("filters")
    with pytest.raises(ValueError, match="has no figure 'x': it has '', 'heads'"):
        explanation.figure("attention-maps", "x")


def test_names_of_images_are_escaped():
    inspection = inspection_of()
    inspection.name = "<b>evil</b>.png"
    inspection.model.card.name = "<i>model</i>"
    text = Explanation(inspection, "rollout").html()
    assert "<b>evil" not in text
    assert "<i>model" not in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)  # nothing outside the file


@pytest.mark.parametrize(
    ("write", "other", "compares"),
    [(write_open_clip, "a photo", "100 % are shared"), (write_siglip, "anything else", "by itself")],
)
def test_a_sentence_is_text_on_the_page_and_a_long_one_is_shortened(write, other, compares, tmp_path):
    write(tmp_path)
    model, image = load(tmp_path), samples()["chelsea"]
    for sentence in ("the \"bell\" <script>alert('x')</script> </title> tower", "<script>" + "red circle " * 90):
        explanation = vitreous.explain(image, model, "relevance", target=sentence, device="cpu")
        assert "<script>alert" not in explanation.html()
        header, _, _ = opened(explanation.payload())
        name, second = header["classNames"]
        assert second == other
        assert compares in header["model"]["compares"]
        assert len(name) <= 80
        assert name == sentence or (name.endswith("…") and sentence.startswith(name[:-1]))
        assert (header["classes"][0]["index"], header["classes"][0]["class_name"]) == (0, name)


@pytest.mark.slow
def test_the_page_of_a_photograph_has_at_most_a_megabyte_and_a_half(tmp_path):
    """Attention of all heads in 255 steps is most of it; a photograph full of detail, such as this one, weighs most."""
    inspection = Inspection(load("packaged:vit_tiny"), samples()["chelsea"], name="chelsea")
    assert Explanation(inspection).save(tmp_path / "page.html").stat().st_size < 1.5e6
