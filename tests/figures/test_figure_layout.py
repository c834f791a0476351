"""The worst that can come: nothing is cut off, nothing overlaps, no card is wider than the page."""

import numpy as np
import pytest
from drawn import assert_legible, photo

from vitreous.figures import bars, curves, maps, matrix, tiles

LONG = "Maltese dog, Maltese terrier, Maltese, and more words until the name of this class is a hundred long"
MANY = [LONG[i:] for i in range(7)]
RANDOM = np.random.default_rng(0)


def count(number):
    return [str(i) for i in range(number)]


CASES = {
    "map": lambda: maps.draw_map(photo(), RANDOM.random((14, 14)), title=LONG, label=LONG),
    "map of tiny numbers": lambda: maps.draw_map(photo(), RANDOM.random((7, 7)) * 1e-8, title="x", label="gradient"),
    "map of a tower": lambda: maps.draw_map(photo(90, 9), RANDOM.random((10, 1)), title=LONG, label="attention"),
    "map of a panorama": lambda: maps.draw_map(photo(9, 90), RANDOM.random((1, 10)), title="x", label="attention"),
    "one of many": lambda: maps.draw_maps(photo(), RANDOM.random((1, 3, 3)), [LONG], label=LONG, title=LONG),
    "maps": lambda: maps.draw_maps(photo(20, 30), RANDOM.random((8, 3, 3)), [LONG] * 8, label="y", marked=(2, 2)),
    "maps of towers": lambda: maps.draw_maps(photo(90, 9), RANDOM.random((30, 9, 1)), [LONG] * 30, label=LONG),
    "grid": lambda: maps.draw_grid(RANDOM.random((24, 16, 4, 4)), count(24), count(16), title=LONG, label=LONG),
    "grid of 48": lambda: maps.draw_grid(RANDOM.random((48, 25, 4, 4)), count(48), count(25), title="x", label="y"),
    "grid of one head": lambda: maps.draw_grid(RANDOM.random((12, 1, 4, 4)), count(12), ["0"], title=LONG, label="y"),
    "grid of one": lambda: maps.draw_grid(np.ones((1, 1, 4, 4)), ["0"], ["0"], label="attention"),
    "grid of words": lambda: maps.draw_grid(np.ones((2, 16, 2, 4)), [LONG] * 2, [LONG] * 16, label="attention"),
    "patches": lambda: maps.draw_patches(photo(96, 32), (12, 4), title=LONG),
    "colours": lambda: maps.draw_colours(photo(90, 9), RANDOM.random((10, 1, 3)), title=LONG),
    "matrix": lambda: matrix.draw_matrix(RANDOM.random((197, 197)), prefix=5, title=LONG),
    "matrix of 1374": lambda: matrix.draw_matrix(np.ones((1374, 1374)), title="x"),
    "matrix of one": lambda: matrix.draw_matrix([[1.0]]),
    "heads": lambda: matrix.draw_blocks_heads(RANDOM.random((24, 16)) - 0.5, title=LONG, label=LONG, diverging=True),
    "heads of 48": lambda: matrix.draw_blocks_heads(RANDOM.random((48, 25)), title="x", label="y"),
    "one layer": lambda: matrix.draw_blocks_heads(RANDOM.random((1, 12)), title="x", label="importance"),
    "one head": lambda: matrix.draw_blocks_heads(RANDOM.random((12, 1)), title=LONG, label="importance"),
    "similarity": lambda: matrix.draw_similarity(np.eye(49), [f"block {i}" for i in range(49)], title="x"),
    "similarity of words": lambda: matrix.draw_similarity(np.eye(4), [LONG] * 4, title=LONG),
    "tiles": lambda: tiles.draw_similarity_tiles(RANDOM.random((14, 14, 14, 14)), title=LONG),
    "tiles of 37": lambda: tiles.draw_similarity_tiles(np.ones((37, 37, 37, 37)), title="x"),
    "one tile": lambda: tiles.draw_similarity_tiles(np.ones((1, 1, 1, 1))),
    "one position": lambda: tiles.draw_similarity_one([[1.0]], (0, 0)),
    "filters": lambda: tiles.draw_filters(RANDOM.random((28, 16, 16, 3)), explained=[1 / 28] * 28, title=LONG),
    "many filters": lambda: tiles.draw_filters(RANDOM.random((150, 4, 4, 3)), explained=[1 / 150] * 150, title="x"),
    "distance": lambda: curves.draw_heads(RANDOM.random((48, 25)) * 200, label="distance (px)", title=LONG),
    "entropy": lambda: curves.draw_heads(np.full((12, 3), 5.2), label="entropy (nats)", ceiling=np.log(197), title="x"),
    "faithful": lambda: curves.draw_faithfulness(dict.fromkeys(MANY, ([1, 0], [0, 1])), dict.fromkeys(MANY, (0, 1))),
    "predictions": lambda: bars.draw_predictions([LONG] * 5, [0.99999, 0.1, 0.01, 1e-5, 0], [123.456, -23.4, 0, 0, 0]),
    "lens": lambda: bars.draw_lens([LONG] * 48, [LONG] * 48, [1.0] * 48, [1.0] * 48, LONG),
    "lens of one": lambda: bars.draw_lens(["0"], ["a"], [0.5], [0.5], "a"),
    "ranking": lambda: bars.draw_ranking([LONG] * 30, np.linspace(1234.5, -1234.5, 30), title=LONG, label=LONG),
    "table": lambda: bars.draw_table([(LONG, LONG), ("a", "b")], title=LONG),
    "small table": lambda: bars.draw_table([("a", "b")], title=LONG),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", CASES)
def test_every_word_can_be_read(case):
    assert_legible(CASES[case]())
