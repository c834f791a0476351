"""Rotary positions: what a rotation is, that scores see offsets alone, and how other sizes are rescaled."""

import math
from dataclasses import replace

import pytest
import torch
from families import family, images

from conftest import noise
from vitreous.inside.capture import capture
from vitreous.models.last_block import logits_only
from vitreous.models.rope import RotaryPositions
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

KINDS = ("axial", "mixed", "dinov3")
SMALL = {"image_size": (16, 24), "patch_size": 4, "width": 32, "depth": 2, "heads": 2, "classes": 5}


def rotary(kind, **changes):
    rope = RotaryPositions(ViTConfig(**SMALL | {"rope": kind, "position": "none"} | changes))
    rope.reset_parameters()
    return rope


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_rotation_keeps_lengths_and_leaves_the_class_token(kind):
    x = torch.randn(2, 2, 25, 16)
    turned = rotary(kind)(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not torch.allclose(turned[:, :, 1:], x[:, :, 1:], atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_scores_depend_on_the_offset_of_two_patches_alone(kind):
    q, k = torch.randn(2, 16)
    rope = rotary(kind)
    rotated = [rope(x.expand(1, 2, 25, 16))[:, :, 1:].unflatten(2, (4, 6)) for x in (q, k)]  # [1 h rows columns k]
    scores = torch.einsum("b h i j k, b h r c k -> b h i j r c", *rotated)
    torch.testing.assert_close(scores[..., 0, 1, 2, 4], scores[..., 1, 2, 3, 5])
    assert not torch.allclose(scores[..., 0, 1, 2, 4], scores[..., 0, 1, 2, 3], atol=1e-3)


@torch.no_grad()
def test_axial_rotations_by_their_formula():
    """Pair i of the first half turns by row × temperature^(-i / 4), pair i of the second half by the column."""
    x = torch.randn(1, 2, 25, 16)
    turned = rotary("axial", rope_temperature=100.0, rope_offset=1.0)(x)
    row, column, pair = 2, 3, 1
    for coordinate, first in ((row, 0), (column, 8)):
        angle = (coordinate + 1) * 100.0 ** (-pair / 4)
        a, b = x[0, 1, 1 + row * 6 + column, first + 2 * pair : first + 2 * pair + 2]
        expected = torch.stack([a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)])
        found = turned[0, 1, 1 + row * 6 + column, first + 2 * pair : first + 2 * pair + 2]
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_the_order_xy_gives_the_first_half_of_the_channels_to_columns():
    x = torch.randn(1, 2, 25, 16)
    swapped = x.unflatten(-1, (2, 8)).flip(-2).flatten(-2)
    turned = rotary("axial", rope_order="xy")(swapped).unflatten(-1, (2, 8)).flip(-2).flatten(-2)
    torch.testing.assert_close(turned, rotary("axial")(x))


@torch.no_grad()
def test_dinov3s_coordinates_run_from_edge_to_edge_whatever_the_size():
    small = rotary("dinov3", image_size=(4, 12))  # one row, three columns: the middle patch stands at (0, 0)
    x = torch.randn(1, 2, 4, 16)
    torch.testing.assert_close(small(x)[:, :, 2], x[:, :, 2])
    rows, columns = small.coordinates((3, 2))
    torch.testing.assert_close(rows, torch.tensor([-2 / 3, -2 / 3, 0, 0, 2 / 3, 2 / 3]))
    torch.testing.assert_close(columns, torch.tensor([-0.5, 0.5] * 3))


@torch.no_grad()
def test_learned_rates_of_zero_rotate_nothing():
    rope = rotary("mixed")
    x = torch.randn(1, 2, 25, 16)
    assert not torch.equal(rope(x, 0), rope(x, 1))  # each block has its own
    rope.freqs.zero_()
    assert torch.equal(rope(x), x)


@torch.no_grad()
def test_a_reference_grid_rescales_coordinates():
    rope = rotary("axial", rope_reference=8)
    rows, columns = rope.coordinates((4, 16))
    assert rows.max() == 6  # row 3 of 4 stands at row 6 of 8
    assert columns[:3].tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_another_grid_is_that_of_a_model_of_another_size(kind):
    rope = rotary(kind, rope_reference=3 if kind == "axial" else 0)
    other = RotaryPositions(replace(rope.config, image_size=(8, 32)))
    other.load_state_dict(rope.state_dict())
    x = torch.randn(1, 2, 17, 16)
    with rope.at((2, 8)):
        assert torch.equal(rope(x), other(x))
    rope(torch.randn(1, 2, 25, 16))  # and afterwards it is as before


@pytest.mark.parametrize("name", ["rotary", "rotary, mixed", "rotary, dinov3"])
@torch.no_grad()
def test_capture_records_rotated_queries_and_leaves_the_logits(name):
    model = family(name)
    x = images(model)
    with capture(model, ["q", "k", "attention"]) as internals:
        logits = model(x)
    assert torch.equal(logits, model(x))
    q, k = internals["blocks.1.q"], internals["blocks.1.k"]
    attention = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
    torch.testing.assert_close(internals["blocks.1.attention"], attention)
    torch.testing.assert_close(logits_only(model, x), logits, rtol=1e-4, atol=1e-5)


def test_a_model_with_rotary_positions_knows_the_order_of_patches():
    plain, turned = (noise(ViT(ViTConfig(**SMALL | {"position": "none", "rope": rope}))) for rope in ("none", "axial"))
    x = torch.randn(1, 3, 16, 24)
    torch.testing.assert_close(plain(x), plain(x.roll(4, dims=-1)), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(turned(x), turned(x.roll(4, dims=-1)), atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope": "axial", "width": 20}, "a width that 4 divides, got 10"),
        ({"rope": "fourier"}, "rope must be one of none, axial"),
        ({"rope_reference": -1}, "must not be negative"),
    ],
)
def test_a_config_of_rotary_positions_says_what_to_change(changes, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**SMALL | changes)
