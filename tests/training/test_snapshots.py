"""The inside of a run over its epochs: what is recorded, when, and that recording changes nothing."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from conftest import noise
from vitreous.inside.filters import principal_filters
from vitreous.inside.position_similarity import position_similarity
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.training.config import TrainConfig
from vitreous.training.listeners import Listener
from vitreous.training.loop import train
from vitreous.training.run_folder import RunFolder
from vitreous.training.snapshots import (
    MAX_VALUES,
    Snapshot,
    SnapshotRecorder,
    read_snapshots,
    selected_patches,
    snapshot_epochs,
    spread_over_classes,
    take_snapshot,
    thumbnails,
    write_snapshot,
)

SMALL = {"image_size": 8, "patch_size": 2, "width": 16, "depth": 2, "heads": 2, "classes": 3}
RUN = {
    "model": "vit_pico_patch2_8",
    "data": "digits",
    "channels": 1,
    "epochs": 2,
    "validation": 0.9,
    "device": "cpu",
    "dropout": 0.1,  # draws from torch's own generator, which recording must leave alone
}


# --- when -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 2000), st.integers(2, 40))
def test_snapshot_epochs_go_from_before_training_to_the_last_epoch_ever_further_apart(epochs, count):
    found = snapshot_epochs(epochs, count)
    steps = np.diff(found)
    assert found[0] == 0
    assert found[-1] == epochs
    assert len(found) == min(count, epochs + 1)
    assert (steps >= 1).all()
    assert count < 3 or (np.diff(steps[1:]) >= -1).all()  # but for rounding


def test_snapshot_epochs_of_a_doubling_are_powers_of_two():
    assert snapshot_epochs(1024, 12) == [0, *(2**i for i in range(11))]


def test_few_snapshots_are_the_last_and_then_the_first():
    assert [snapshot_epochs(7, count) for count in range(4)] == [[], [7], [0, 7], [0, 1, 7]]


def run_parts(epoch, step):
    return SimpleNamespace(state=SimpleNamespace(epoch=epoch, step=step))


def test_the_beginning_is_recorded_once_and_not_after_a_restart(monkeypatch, tmp_path):
    monkeypatch.setattr("vitreous.training.snapshots.some_images", lambda parts: (None, ()))
    recorded = []
    monkeypatch.setattr(SnapshotRecorder, "record", lambda self, epoch, parts: recorded.append(epoch))
    config = TrainConfig(epochs=8, snapshots=4)  # 0, 1, 3, 8
    for epoch, step in ((0, 0), (0, 3), (3, 0)):
        SnapshotRecorder().begin(run_parts(epoch, step), config, RunFolder(tmp_path))
    assert recorded == [0]
    recorder = SnapshotRecorder()
    recorder.begin(run_parts(2, 5), config, RunFolder(tmp_path))
    for epoch in range(3, 9):
        recorder.epoch({"epoch": epoch}, run_parts(epoch, 0))
    assert recorded == [0, 3, 8]


# --- what -------------------------------------------------------------------------------------------------------------


def test_positions_and_filters_are_what_the_views_show():
    model = noise(ViT(ViTConfig(**SMALL)))
    seen = take_snapshot(model, torch.randn(2, 3, 8, 8))
    np.testing.assert_allclose(seen.positions, position_similarity(model).numpy(), atol=1e-3)
    filters, _ = principal_filters(model.patch_embed.proj.weight, 28)
    np.testing.assert_allclose(seen.filters / 255, filters.numpy(), atol=0.5 / 255 + 1e-6)
    assert seen.filters.shape == (12, 2, 2, 3)  # as many components as a patch has numbers


@torch.no_grad()
def test_uniform_attention_has_its_closed_form():
    model = noise(ViT(ViTConfig(**SMALL)))
    for block in model.blocks:
        block.attn.qkv.weight.zero_()
        block.attn.qkv.bias.zero_()
    seen = take_snapshot(model, torch.randn(3, 3, 8, 8))
    np.testing.assert_allclose(seen.maps, np.full((3, 4, 4), 1 / 17), atol=1e-4)
    place = np.stack(np.mgrid[:4, :4], axis=-1).reshape(-1, 2) * 2.0
    far = np.linalg.norm(place[:, None] - place, axis=-1).mean()
    np.testing.assert_allclose(seen.distances, np.full((2, 2), far), rtol=1e-4)


def test_grey_models_without_positions_or_class_token_are_recorded_as_far_as_they_go():
    config = ViTConfig(**{**SMALL, "image_size": (8, 12)}, channels=1, position="none", class_token=False, pool="mean")
    seen = take_snapshot(noise(ViT(config)), torch.randn(2, 1, 8, 12))
    assert seen.positions is None
    assert seen.filters.shape == (4, 2, 2, 1)
    assert seen.maps.shape == (2, 4, 6)


def test_images_are_stored_as_far_as_patches_read_them(tmp_path):
    model = ViT(ViTConfig(**{**SMALL, "image_size": (9, 11), "patch_size": (2, 4)}, partial_patches=True)).eval()
    recorder = SnapshotRecorder()
    recorder.folder, recorder.labels = tmp_path, ("cat", "dog")
    recorder.pixels = torch.randint(0, 256, (2, 3, 9, 11), dtype=torch.uint8)
    evaluate = SimpleNamespace(current_model=lambda: model, augment=SimpleNamespace(plain=lambda pixels: pixels / 255))
    recorder.record(1, SimpleNamespace(evaluate=evaluate, world=SimpleNamespace(first=True)))
    (found,) = read_snapshots(tmp_path)
    assert found.maps.shape == (2, 4, 2)
    np.testing.assert_array_equal(found.images, recorder.pixels[:, :, :8, :8].permute(0, 2, 3, 1).numpy())


def test_weights_that_are_no_numbers_do_not_end_the_run():
    model = noise(ViT(ViTConfig(**SMALL)))
    with torch.no_grad():
        model.patch_embed.proj.weight.fill_(float("nan"))
    assert take_snapshot(model, torch.randn(1, 3, 8, 8)).filters is None


def test_of_a_resnet_the_filters_alone_are_recorded():
    seen = take_snapshot(ResNet(ResNetConfig(18, 10, 32)).eval(), torch.randn(1, 3, 32, 32))
    assert seen.filters.shape == (64, 7, 7, 3)
    assert seen.positions is seen.distances is seen.maps is None


@given(st.integers(1, 40), st.integers(1, 40))
def test_places_are_regular_within_the_grid_and_few_enough(height, width):
    rows, columns = selected_patches((height, width))
    assert len(rows) * len(columns) <= 64
    assert len(rows) * len(columns) * height * width <= MAX_VALUES
    for places, side in ((rows, height), (columns, width)):
        assert places[0] >= 0
        assert places[-1] < side
        assert len(set(np.diff(places))) <= 1
    if height * width <= 64:
        assert (rows, columns) == (list(range(height)), list(range(width)))


def test_images_are_of_as_many_classes_as_can_be():
    labels = sorted(list(range(10)) * 5)  # sorted by class, as folders are
    assert len({labels[i] for i in spread_over_classes(labels, 8)}) == 8
    assert spread_over_classes([1, 1], 8) == [0, 1]


def test_small_images_are_kept_as_they_are_and_large_ones_made_smaller():
    small = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    np.testing.assert_array_equal(thumbnails(small), small.permute(0, 2, 3, 1).numpy())
    large = torch.full((2, 3, 120, 240), 77, dtype=torch.uint8)
    assert thumbnails(large).shape == (2, 40, 80, 3)
    assert (thumbnails(large) == 77).all()


@pytest.mark.parametrize("patch", [14, 32])
def test_a_large_models_file_stays_small(tmp_path, patch):
    config = ViTConfig(image_size=patch * 37, patch_size=patch, width=16, depth=1, heads=2)
    seen = take_snapshot(noise(ViT(config)), torch.randn(1, 3, patch * 37, patch * 37))
    images = np.random.default_rng(0).integers(0, 256, (8, 80, 80, 3)).astype(np.uint8)  # the worst to compress
    whole = Snapshot(3, seen.filters, seen.positions, seen.distances, seen.maps.repeat(8, axis=0), images)
    assert write_snapshot(tmp_path, whole).stat().st_size < 330_000


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_by_epoch_and_damaged_files_are_left_out(tmp_path):
    written = Snapshot(120, np.zeros((4, 2, 2, 1), np.uint8), distances=np.ones((2, 2)), labels=("cat", "dog"))
    path = write_snapshot(tmp_path, written)
    assert path.name == "epoch-00120.npz"
    write_snapshot(tmp_path, Snapshot(8))
    (tmp_path / "epoch-00009.npz").write_bytes(path.read_bytes()[:100])
    (tmp_path / "epoch-00010.npz").write_bytes(b"")
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):  # bits that fell over, in headers and in packed numbers
        (tmp_path / f"epoch-{1000 + place:05d}.npz").write_bytes(whole[:place] + b"\xff\xff" + whole[place + 2 :])
    assert {8, 120} <= {each.epoch for each in read_snapshots(tmp_path)}
    for path in tmp_path.glob("epoch-01*.npz"):
        path.unlink()
    first, second = read_snapshots(tmp_path)
    assert first == Snapshot(8)
    assert (second.epoch, second.labels, second.maps) == (120, ("cat", "dog"), None)
    np.testing.assert_array_equal(second.filters, written.filters)
    assert read_snapshots(tmp_path / "nowhere") == []
    assert not list(tmp_path.glob(".*"))


# --- in a run ---------------------------------------------------------------------------------------------------------


class Chance(Listener):
    """Torch's random state after each epoch."""

    def __init__(self):
        self.seen = []

    def epoch(self, row, parts):
        self.seen.append(torch.get_rng_state())


@pytest.mark.slow
def test_a_recorded_run_ends_with_the_same_bits_as_one_that_is_not(tmp_path):
    plain, recorded = Chance(), Chance()
    config = TrainConfig(**RUN, average=0.9)
    train(TrainConfig(**RUN, average=0.9, snapshots=0), tmp_path / "plain", listeners=[SnapshotRecorder(), plain])
    train(config, tmp_path / "recorded", listeners=[SnapshotRecorder(), recorded])
    assert not (tmp_path / "plain/snapshots").exists()
    assert len(read_snapshots(tmp_path / "recorded/snapshots")) == 3
    for one, other in zip(plain.seen, recorded.seen, strict=True):
        assert torch.equal(one, other)
    for name in ("model/model.safetensors", "checkpoints/step-000000004.safetensors"):
        one, other = load_file(tmp_path / "plain" / name), load_file(tmp_path / "recorded" / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name


@pytest.mark.slow
def test_a_run_records_its_images_and_the_weights_of_each_epoch(tmp_path):
    train(TrainConfig(**RUN, evaluate_every=2), tmp_path / "run", listeners=[SnapshotRecorder()])
    found = read_snapshots(tmp_path / "run/snapshots")
    assert [snapshot.epoch for snapshot in found] == [0, 1, 2]
    for snapshot in found:
        assert snapshot.positions.shape == (4, 4, 4, 4)
        assert snapshot.maps.shape == (8, 4, 4)
        assert snapshot.images.shape == (8, 8, 8, 1)
        assert len(set(snapshot.labels)) == 8
        np.testing.assert_array_equal(snapshot.images, found[0].images)
    for before, after in pairwise(found):
        assert not np.array_equal(before.positions, after.positions)  # also of an epoch that was not evaluated
    from vitreous.weights.load import load

    last = position_similarity(load(str(tmp_path / "run/model"))).numpy()
    np.testing.assert_allclose(found[-1].positions, last, atol=1e-3)


class Fall(Listener):
    """The power goes while an epoch is being written down."""

    def epoch(self, row, parts):
        if row["epoch"] == 2:
            raise RuntimeError("no power")


@pytest.mark.slow
def test_a_run_that_crashed_and_resumed_has_the_snapshots_of_one_that_did_not(tmp_path):
    config = TrainConfig(**{**RUN, "epochs": 3}, save_every=0.0)
    train(config, tmp_path / "whole", listeners=[SnapshotRecorder()])
    with pytest.raises(RuntimeError, match="no power"):
        train(config, tmp_path / "fell", listeners=[Fall(), SnapshotRecorder()])
    assert [s.epoch for s in read_snapshots(tmp_path / "fell/snapshots")] == [0, 1]
    train(config, tmp_path / "fell", listeners=[SnapshotRecorder()])
    whole, fell = (read_snapshots(tmp_path / name / "snapshots") for name in ("whole", "fell"))
    assert [s.epoch for s in fell] == [s.epoch for s in whole] == [0, 1, 2, 3]
    for one, other in zip(whole, fell, strict=True):
        for name in ("filters", "positions", "distances", "maps", "images"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
