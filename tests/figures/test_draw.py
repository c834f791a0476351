"""Every kind of result is drawn, and what is drawn is what the result says."""

import numpy as np
import pytest

from vitreous.figures.draw import DRAWERS, draw
from vitreous.figures.kinds import Bars, Dots, LinePanel, Lines, Map, Matrix, Result, Steps, Table, Tiles
from vitreous.figures.style import encode

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
HEAT = np.linspace(0, 1, 7, dtype=np.float32)
LINE = {"relevance": np.array([0.9, 0.5, 0.1])}
ATTENTION = np.random.default_rng(1).random((2, 3, 7, 7)).astype(np.float32)

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
    assert set(DRAWERS) == set(Result.__args__) == {type(result) for result in RESULTS.values()}


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
