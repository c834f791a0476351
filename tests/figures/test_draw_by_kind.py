"""Every kind of result is drawn, and what is drawn is what the result says."""

import numpy as np
import pytest

from vitreous.figures.draw_by_kind import DRAWERS, draw
from vitreous.figures.kinds import (
    Bars,
    Crop,
    Diagram,
    Dots,
    LinePanel,
    Lines,
    Map,
    Mask,
    Matrix,
    Part,
    Removal,
    Result,
    Steps,
    Story,
    StoryStep,
    Table,
    Tiles,
)
from vitreous.figures.style import encode

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
HEAT = np.linspace(0, 1, 7, dtype=np.float32)
LINE = {"relevance": np.array([0.9, 0.5, 0.1])}
ATTENTION = np.random.default_rng(1).random((2, 3, 7, 7)).astype(np.float32)

PART = Part("MLP", "48 → 192 → 48", "7 × 48")
STEP = StoryStep("Image", "The image is cropped.", "x", (("image", "32 × 48 × 3"),), "image")

RESULTS = {
    "map": Map(HEAT, (2, 3), "Heat", prefix=1),
    "colours": Map(np.random.default_rng(0).random((6, 3)), (2, 3), "Colours", colours=True),
    "one panel axis": Map(
        ATTENTION,
        (2, 3),
        "Heads",
        axes=("block", "head", "query"),
        at={"block": 1, "query": 2},
        prefix=1,
        panels=("head",),
    ),
    "two panel axes": Map(
        ATTENTION, (2, 3), "All", axes=("block", "head", "query"), at={"query": 0}, prefix=1, panels=("block", "head")
    ),
    "positions": Map(np.eye(6), (2, 3), "Positions", axes=("query",), at={"query": 4}, signed=True, over_image=False),
    "position tiles": Map(np.eye(6), (2, 3), "Tiles", axes=("query",), panels=("query",), over_image=False),
    "attention matrix": Matrix(ATTENTION, "Matrix", "query", "key", axes=("block", "head"), at={"block": 0}, prefix=1),
    "heads": Matrix(np.eye(3), "Heads", "block", "head", signed=True),
    "similarity": Matrix(np.eye(3), "Blocks", "block", "block"),
    "dots": Dots(np.eye(3), "Distance", "px"),
    "predictions": Bars(["cat"], np.array([0.9]), "Predictions", logits=np.array([3.0])),
    "ranking": Bars(["block 0, head 1"], np.array([-0.9]), "Ranking", label="change"),
    "steps": Steps(["embedding"], ["cat"], np.array([0.9]), np.array([[0.9]]), {"class": ["cat"]}, "Lens"),
    "lines": Lines(
        (
            LinePanel("D", "deleted", LINE, {"relevance": 0.5}, "lower"),
            LinePanel("I", "inserted", LINE, {"relevance": 0.5}, "higher"),
        ),
        "Trust",
    ),
    "removal": Removal(
        [0, 2, 6],
        np.arange(6)[None],
        np.array([[[0.9], [0.2], [0.1]]]),
        np.array([[[0.1], [0.7], [0.9]]]),
        [[[("cat", 0.9), ("dog", 0.4), ("dog", 0.3)], [("dog", 0.3), ("cat", 0.7), ("cat", 0.9)]]],
        {"class": ["cat"]},
        [3],
        ["cat"],
        [1],
        np.array([0.8]),
        np.array([0.7]),
        [True],
        (90, 100, 110),
        "Hidden",
    ),
    "crop": Crop(IMAGE, (0.1, 0, 0.9, 1), IMAGE, ("as it came", "as the model gets it"), "Seen"),
    "mask": Mask(IMAGE, IMAGE, [("box", "#e69f00", 0.7), ("ground", "#56b4e9", 0.3)], [1, 0], "Mask"),
    "diagram": Diagram([PART, PART], (PART, PART, PART, PART), "Architecture"),
    "story": Story([STEP], HEAT[None], None, HEAT[None], HEAT[None], HEAT[None], 1, 0, "Story"),
    "tiles": Tiles(np.zeros((3, 4, 4, 3)), "Filters", shares=[0.5, 0.3, 0.1]),
    "patches": Tiles(IMAGE[None], "Patches", grid=(4, 6)),
    "table": Table([("patches", "6×48")], "Shapes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_every_kind_is_drawn_under_its_title(name):
    figure = draw(RESULTS[name], IMAGE)
    assert encode(figure, dpi=40).startswith(b"\x89PNG")
    assert figure.texts[0].get_text() == RESULTS[name].title


def test_there_is_a_drawer_for_each_kind_and_a_result_for_each_drawer():
    assert {Map, *DRAWERS} == set(Result.__args__) == {type(result) for result in RESULTS.values()}


@pytest.mark.slow
def test_a_map_shows_its_patches_alone():
    np.testing.assert_array_equal(RESULTS["map"].shown(), HEAT[1:].reshape(2, 3))
    right = draw(RESULTS["map"], IMAGE).axes[2]
    np.testing.assert_array_equal(right.images[0].get_array(), HEAT[1:].reshape(2, 3))


def test_an_axis_without_an_index_is_averaged_and_queries_over_patches_alone():
    axes = ("block", "head", "query")
    found = Map(ATTENTION, (2, 3), "x", axes=axes, at={"block": 1, "head": None, "query": None}, prefix=1).shown()
    np.testing.assert_allclose(found, ATTENTION[1].mean(axis=0)[1:].mean(axis=0)[1:].reshape(2, 3), rtol=1e-6)


def test_titles_name_what_is_shown():
    title = "{class}, {block}, {head}, the {query}"
    names = {"class": ["cat", "dog"], "query": ["class token", "patch (0, 0)"]}
    one = Map(HEAT, (2, 3), title, at={"class": 1, "block": 3, "head": 2, "query": 1}, names=names)
    assert one.filled_title == "dog, block 3, head 2, the patch (0, 0)"
    assert Map(HEAT, (2, 3), "{head}, the {query}").filled_title == "mean over heads, the average patch"


def test_a_footer_names_model_and_image_and_leaves_the_rest_in_its_place():
    plain, named = draw(RESULTS["dots"]), draw(RESULTS["dots"], footer="ViT-Ti · dome.png")
    assert named.texts[1].get_text() == "ViT-Ti · dome.png"
    assert named.get_size_inches()[1] > plain.get_size_inches()[1]
    heights = [figure.axes[0].get_position().height * figure.get_size_inches()[1] for figure in (plain, named)]
    assert heights[0] == pytest.approx(heights[1])
    assert "ViT-Ti" not in "".join(text.get_text() for text in draw(RESULTS["dots"]).texts)


def test_panels_of_attention_say_what_goes_to_the_class_token():
    result = RESULTS["one panel axis"]
    share = 100 * result.values[1, 2, 2, 0]
    figure = draw(result, IMAGE)
    assert f"head 2 · {share:.1f} %" in [text.get_text() for axes in figure.axes for text in axes.texts]
    notes = " ".join(text.get_text() for text in figure.texts)
    assert "Own scale for each tile, from 0 to its 97th percentile." in notes
    assert "the share that goes to the class token" in notes


@pytest.mark.parametrize(("outliers_from", "said"), [(1, True), (2, False)])
def test_artifacts_are_noted_only_where_a_panel_leaves_some_out(outliers_from, said):
    values = np.random.default_rng(0).random((2, 4))
    look = {"axes": ("block",), "at": {"block": 0}, "panels": ("block",), "outliers": (3,)}
    figure = draw(Map(values, (2, 2), "Norm after {block}", outliers_from=outliers_from, **look), IMAGE)
    words = " ".join(text.get_text() for text in figure.texts)
    assert ("artifact tokens" in words) == said
    assert "Norm after each block" in words


def test_predictions_have_indices_and_a_strip_of_all_classes():
    everything = np.array([0.05, 0.9, 0.05])
    result = Bars(["cat"], everything[1:2], "P", logits=np.array([3.0]), indices=[1], everything=everything)
    figure = draw(result)
    assert "1 cat" in [text.get_text() for text in figure.texts]
    assert "all 3 classes, by index" in [text.get_text() for text in figure.texts]
    segments = figure.axes[0].collections[0].get_segments()
    assert [float(segment[1, 1]) for segment in segments] == everything.tolist()
