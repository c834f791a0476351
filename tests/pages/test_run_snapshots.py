"""Snapshots in a run's page: every number arrives, nothing is stored twice, gaps are handled."""

import numpy as np

from vitreous.pages.run_snapshots import moment, snapshots_payload
from vitreous.training.snapshots import Snapshot


def snapshot(epoch, seed=0):
    random = np.random.default_rng(seed)
    return Snapshot(
        epoch,
        filters=random.integers(0, 256, (4, 2, 2, 1)).astype(np.uint8),
        positions=random.uniform(-1, 1, (2, 2, 2, 2)),
        distances=random.uniform(1, 5, (3, 2)),
        maps=random.uniform(0, 1, (2, 2, 2)),
        images=random.integers(0, 256, (2, 8, 8, 1)).astype(np.uint8),
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
    payload = snapshots_payload(given, [])
    assert payload.header["views"] == {name: [0, 1, 2] for name in ("positions", "filters", "distance", "attention")}
    for number, seen in enumerate(given):
        assert np.array_equal(array_of(payload, f"filters/{number}"), seen.filters)
        assert np.abs(array_of(payload, f"positions/{number}") - seen.positions).max() <= 1 / 127
        assert np.abs(array_of(payload, f"attention/{number}") - seen.maps).max() <= 1 / 255
        assert np.allclose(array_of(payload, f"distance/{number}"), seen.distances)
    assert np.array_equal(array_of(payload, "images"), given[-1].images)
    assert payload.header["labels"] == ["zero", "one"]
    assert 0 < payload.header["peak"] <= 1


def test_a_moments_caption_holds_accuracy_and_loss():
    rows = [{"epoch": 2, "test_top1": 0.5, "test_loss": 1.25}, {"epoch": 4, "loss": 0.5, "test_top1": 0.99978}]
    captions = [
        each["caption"] for each in snapshots_payload([snapshot(0), snapshot(2), snapshot(4)], rows).header["moments"]
    ]
    assert captions == [
        "before training",
        "epoch 2 · 50.00 % held out · loss 1.25",
        "epoch 4 · 99.98 % held out · loss 0.5",
    ]
    assert moment(1, {"loss": float("nan")})["caption"] == "epoch 1"


def test_an_unchanged_array_is_stored_once():
    same = [Snapshot(epoch, positions=np.ones((2, 2, 2, 2))) for epoch in (0, 1, 2)]
    payload = snapshots_payload(same, [])
    assert payload.header["views"] == {"positions": [0, 0, 0]}
    assert "positions/1" not in payload.header["arrays"]


def test_snapshots_without_finite_numbers_are_left_out():
    assert snapshots_payload([], []) is None
    assert snapshots_payload([Snapshot(1)], []) is None
    black = np.zeros((1, 4, 4, 3), np.uint8)
    empty = Snapshot(0, distances=np.full((2, 2), np.nan), maps=np.full((1, 2, 2), np.nan), images=black)
    assert snapshots_payload([empty], []) is None
    later = Snapshot(1, maps=np.full((1, 2, 2), 0.25), images=black)
    assert snapshots_payload([empty, later], []).header["views"] == {"attention": [None, 0]}
