"""Snapshots on their way to a run's page: every number arrives, nothing is held twice, gaps are borne."""

import numpy as np

from vitreous.pages.run_inside import moment, moments_payload
from vitreous.training.snapshots import Snapshot


def snapshot(epoch, seed=0):
    chance = np.random.default_rng(seed)
    return Snapshot(
        epoch,
        filters=chance.integers(0, 256, (4, 2, 2, 1)).astype(np.uint8),
        positions=chance.uniform(-1, 1, (2, 2, 2, 2)),
        distances=chance.uniform(1, 5, (3, 2)),
        maps=chance.uniform(0, 1, (2, 2, 2)),
        images=chance.integers(0, 256, (2, 8, 8, 1)).astype(np.uint8),
        labels=("zero", "one"),
    )


def array_of(payload, name):
    """As `payload.js` reads it."""
    message = payload.header["arrays"][name]
    values = np.frombuffer(b"".join(payload.parts), message["type"], int(np.prod(message["shape"])), message["offset"])
    values = values.reshape(message["shape"])
    if f"{name}.scale" not in payload.header["arrays"]:
        return values
    scale = array_of(payload, f"{name}.scale")
    return values * scale.reshape(scale.shape + (1,) * (values.ndim - scale.ndim))


def test_every_number_arrives():
    given = [snapshot(0, 1), snapshot(2, 2), snapshot(4, 3)]
    payload = moments_payload(given, [])
    assert payload.header["views"] == {name: [0, 1, 2] for name in ("positions", "filters", "distance", "attention")}
    for number, seen in enumerate(given):
        assert np.array_equal(array_of(payload, f"filters/{number}"), seen.filters)
        assert np.abs(array_of(payload, f"positions/{number}") - seen.positions).max() <= 1 / 127
        assert np.abs(array_of(payload, f"attention/{number}") - seen.maps).max() <= 1 / 255
        assert np.allclose(array_of(payload, f"distance/{number}"), seen.distances)
    assert np.array_equal(array_of(payload, "images"), given[-1].images)
    assert payload.header["labels"] == ["zero", "one"]
    assert 0 < payload.header["peak"] <= 1


def test_a_moment_says_how_good_the_model_was():
    rows = [{"epoch": 2, "test_top1": 0.5, "test_loss": 1.25}, {"epoch": 4, "loss": 0.5, "test_top1": 0.99978}]
    said = [each["said"] for each in moments_payload([snapshot(0), snapshot(2), snapshot(4)], rows).header["moments"]]
    assert said == ["before training", "epoch 2 · 50.0 % held out · loss 1.25", "epoch 4 · 99.9 % held out · loss 0.5"]
    assert moment(1, {"loss": float("nan")})["said"] == "epoch 1"


def test_what_did_not_change_is_held_once():
    same = [Snapshot(epoch, positions=np.ones((2, 2, 2, 2))) for epoch in (0, 1, 2)]
    payload = moments_payload(same, [])
    assert payload.header["views"] == {"positions": [0, 0, 0]}
    assert "positions/1" not in payload.header["arrays"]


def test_nothing_finite_and_nothing_at_all_are_borne():
    assert moments_payload([], []) is None
    assert moments_payload([Snapshot(1)], []) is None
    black = np.zeros((1, 4, 4, 3), np.uint8)
    empty = Snapshot(0, distances=np.full((2, 2), np.nan), maps=np.full((1, 2, 2), np.nan), images=black)
    assert moments_payload([empty], []) is None
    later = Snapshot(1, maps=np.full((1, 2, 2), 0.25), images=black)
    assert moments_payload([empty, later], []).header["views"] == {"attention": [None, 0]}
