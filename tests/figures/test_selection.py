import numpy as np
import pytest
import torch

from vitreous.figures.selection import layer_normed, log_scaled


def attention(*shape: int):
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    return values / values.sum(axis=-1, keepdims=True)


def test_layer_norm_for_display_gives_each_row_mean_zero_and_spread_one():
    shown = layer_normed(attention(3, 5, 50), eps=0.0)
    np.testing.assert_allclose(shown.mean(axis=-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(np.square(shown).mean(axis=-1), 1.0, rtol=1e-5)


def test_layer_norm_for_display_is_torchs_own():
    matrix = attention(6, 20)
    theirs = torch.nn.functional.layer_norm(torch.from_numpy(matrix), (20,)).numpy()
    np.testing.assert_allclose(layer_normed(matrix), theirs, rtol=1e-4, atol=1e-5)


def test_the_logarithm_stays_finite():
    assert log_scaled(np.array([10.0, 0.1, 0.0]), floor=1e-3).tolist() == pytest.approx([1, -1, -3])
