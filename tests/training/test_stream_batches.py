"""Learning from streams: every image once in an epoch, the same bits after a break, shares that do not overlap."""

import pytest
import torch
from tiny_runs import LogKeeper, bits, break_off, differing, make_shards, make_task_shards, parts_of, plain, tiny

pytest.importorskip("datasets")

import vitreous
from vitreous.data.preprocess import Preprocess
from vitreous.predict.scores import SCORES
from vitreous.runtime.distributed import Rank
from vitreous.training.loop import train
from vitreous.training.loss import in_units
from vitreous.training.stream_batches import StreamSource, open_stream

VIEW = Preprocess(size=(8, 8), resize=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
CPU, ALONE = torch.device("cpu"), Rank()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.1, raising=False)  # 5 s after each epoch


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("shards") / "zoo")


def source_of(shards, rank=ALONE, **changes):
    config = plain(shards, stream=True, **changes)
    return StreamSource(open_stream(config, None)[0], VIEW, config, CPU, rank)


def shown(source, epoch=0, batch_size=6, first=0):
    """Each image of an epoch as bytes."""
    return [p.numpy().tobytes() for batch in source.epoch(epoch, batch_size, first) for p in batch.pixels]


def test_an_epoch_shows_every_image_once_in_another_order_each_time(shards):
    source = source_of(shards)
    assert len(source.data) == 36
    first, second = shown(source, 0), shown(source, 1)
    assert len(set(first)) == 36
    assert set(first) == set(second)
    assert first != second
    assert first == shown(source_of(shards), 0)


def test_labels_belong_to_their_images(shards):
    for batch in source_of(shards).epoch(0, 6):
        bright = (batch.pixels.float().mean(dim=(1, 2, 3)) - 30) // 60  # 60 for the first class, then 120, then 180
        assert torch.equal(bright.long(), batch.labels)


def test_an_epoch_resumed_in_the_middle_continues_with_the_same_images(shards):
    source = source_of(shards)
    assert shown(source, 1, first=4) == shown(source, 1)[4 * 6 :]
    batches = list(source.epoch(1, 6)), list(source.epoch(1, 6, first=4))
    assert torch.equal(batches[0][4].indices, batches[1][0].indices)  # which seed the augmentation


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_show_different_images_and_all_of_them(shards, ranks):
    parts = [shown(source_of(shards, Rank(rank, ranks))) for rank in range(ranks)]
    assert {len(part) for part in parts} == {36 // ranks}
    assert len({image for part in parts for image in part}) == 36
    numbers = [batch.indices for rank in range(ranks) for batch in source_of(shards, Rank(rank, ranks)).epoch(0, 6)]
    assert sorted(torch.cat(numbers).tolist()) == list(range(36))


@pytest.mark.slow
def test_a_rank_that_is_at_its_end_too_early_begins_anew(tmp_path):
    make_shards(tmp_path / "zoo", files=2, each=5)
    source = source_of(tmp_path / "zoo", Rank(0, 2), epoch_images=24)
    seen = shown(source)
    assert len(seen) == 12
    assert len(set(seen)) == 5
    assert shown(source, first=2) == seen[2 * 3 :]


@pytest.mark.slow
def test_a_run_on_a_stream_broken_off_ends_with_the_same_bits(shards, tmp_path, monkeypatch):
    config = tiny(shards, stream=True, save_every=0, crop=(0.4, 1.0))
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 6)
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []


@pytest.mark.slow
def test_a_stream_learns(shards, tmp_path):
    config = plain(shards, stream=True, epochs=12, learning_rate=3e-3)
    assert train(config, tmp_path / "run")["top1"] > 0.8


def test_the_number_of_images_can_be_set(shards):
    parts = parts_of(plain(shards, stream=True, epoch_images=17))
    assert parts.steps_per_epoch == 2
    assert len(list(parts.train_source.epoch(0, 8))) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 2}, "repeats, validation and balance do not work"),
        ({"validation": 0.1}, "repeats, validation and balance do not work"),
        ({"epoch_images": 0}, "at least 1"),
        ({"stream": False, "epoch_images": 8}, "needs stream"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(shards, changes, message):
    with pytest.raises(ValueError, match=message):
        plain(shards, **{"stream": True, **changes})


def test_a_folder_of_images_is_no_stream(tmp_path):
    from tiny_runs import make_images

    make_images(tmp_path / "zoo")
    with pytest.raises((ValueError, FileNotFoundError), match="zoo"):
        open_stream(plain(tmp_path / "zoo", stream=True), None)


# --- several labels, numbers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    return {task: make_task_shards(tmp_path_factory.mktemp(task) / "boxes", task) for task in ("multilabel", "regress")}


def test_targets_belong_to_their_images(boxes):
    for batch in source_of(boxes["regress"]).epoch(0, 6):
        rows = (batch.pixels.float().mean(dim=(1, 3)) > 100).float().argmax(dim=1)  # the first bright row
        assert batch.labels.dtype == torch.float32
        assert torch.equal(batch.labels[:, 0], 10.0 * rows - 3)
    for batch in source_of(boxes["multilabel"]).epoch(0, 6):
        rows = (batch.pixels.float().mean(dim=(1, 3)) > 100).float().argmax(dim=1)
        assert torch.equal(batch.labels[:, 0], (rows < 2).float())


def test_numbers_are_standardised_by_the_streams_own(boxes):
    parts = parts_of(plain(boxes["regress"], stream=True))
    labels = torch.cat([batch.labels for batch in parts.train_source.epoch(0, 6)])
    assert labels.mean(dim=0).abs().max() < 1e-5  # all 36 images are looked at beforehand
    assert labels.std(dim=0, unbiased=False).tolist() == pytest.approx([1, 1], rel=1e-5)
    back = in_units(parts.test_source.labels, parts.model.card.standard)
    assert torch.allclose(back, torch.tensor(parts.test_data.targets), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_a_run_on_a_stream_of_another_task_broken_off_ends_with_the_same_bits(boxes, task, tmp_path, monkeypatch):
    config = tiny(boxes[task], stream=True, save_every=0)
    train(config, tmp_path / "whole")
    break_off(config, tmp_path / "broken", monkeypatch, 6)
    train(config, tmp_path / "broken")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "broken")) == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_a_stream_of_another_task_learns(task, tmp_path):
    folder, kept = make_task_shards(tmp_path / "boxes", task, each=60), LogKeeper()
    config = plain(
        folder, stream=True, epochs=25, batch_size=20, learning_rate=3e-3, optimizer="muon", evaluate_every=25
    )
    result = train(config, tmp_path / "run", listeners=[kept])
    assert result[SCORES[task].main] > 0.8
    assert any(line.startswith(f"task: {task} (2 ") for line in kept.lines)
    card = vitreous.load(tmp_path / "run/model").card
    assert (card.task, card.standard) == (task, None)


@pytest.mark.slow
def test_finetune_leaves_out_what_does_not_fit_the_task_of_a_stream(boxes, tmp_path):
    brief = {"epochs": 1, "warmup": 0, "snapshots": 0, "device": "cpu", "progress": False, "batch_size": 12}
    run = vitreous.finetune(boxes["regress"], "packaged:cifar10", "head", stream=True, output=tmp_path / "run", **brief)
    assert run.task == "regress"
    assert (run.config.label_smoothing, run.config.flip, run.config.crop) == (0.0, False, None)


def test_a_number_that_never_changes_is_refused(tmp_path):
    import pyarrow.parquet as pq

    folder = make_task_shards(tmp_path / "boxes", "regress", files=1)
    table = pq.read_table(folder / "train-00000-of-00001.parquet")
    same = table.set_column(1, "top", [[5.0] * len(table)])
    pq.write_table(same, folder / "train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match=r"the number 'top' is 5 for all 12 images to learn from"):
        open_stream(plain(folder, stream=True), None)


def test_masks_from_a_stream_are_refused(boxes):
    with pytest.raises(ValueError, match="masks are not read from a stream"):
        open_stream(plain(boxes["regress"], stream=True, task="segment"), None)
