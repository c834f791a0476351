"""A run's page: every section, the right numbers, nothing fetched from elsewhere; for finished runs and others."""

import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser

import numpy as np
import pytest

from vitreous.pages.run import LEVELS, column, config_docs, curves, run_page, spell, time_to_accuracy, write_run_page
from vitreous.pages.run_held_out import outputs_section
from vitreous.pages.run_snapshots import snapshots_payload
from vitreous.training.config import TrainConfig
from vitreous.training.held_out import HeldOutAnswers, HeldOutOutputs, write_answers
from vitreous.training.loop import train
from vitreous.training.run_folder import RunFolder
from vitreous.training.snapshots import Snapshot, SnapshotRecorder, write_snapshot

TRAINING = ["loss", "accuracy", "learning-rate", "time"]
INSIDE = ["positions", "filters", "distance", "attention"]


class Read(HTMLParser):
    """A page taken apart: sections, addresses, charts, words; and whether every tag that was opened is closed."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.addresses, self.charts, self.payloads, self.open, self.words = [], [], [], [], [], ""
        self.kind = None
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if tag == "section" else []
        self.addresses += [found[name] for name in ("src", "href", "action", "srcset") if name in found]
        self.kind = found.get("type") if tag == "script" else self.kind
        assert tag not in ("link", "iframe", "object")
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.charts += [json.loads(data)] if self.kind == "application/json" else []
            self.payloads += [data] if self.kind == "application/vitreous" else []
        elif self.open[-1:] != ["style"]:
            self.words += data


def assert_alone(page):
    """No request is made: links stay on the page, the style names no address, the policy forbids the rest."""
    for name in page.addresses:
        if not name.startswith("data:image/png;base64,"):
            assert name.startswith("#")
            assert name[1:] in page.ids
    style = re.search(r"<style>(.*?)</style>", page.text, re.DOTALL)[1]
    assert not re.search(r"url\(|@import|https?:", style)
    assert not re.search(r"https?://", page.text.replace("http://www.w3.org/2000/svg", ""))  # the name of SVG
    assert "default-src 'none'" in page.text


def row(epoch, top1=None, seconds=1.0):
    known = {"epoch": epoch, "loss": 2.0 / epoch, "top1": 0.5, "learning_rate": 1e-3}
    if top1 is not None:
        known |= {"test_top1": top1, "test_top5": 1.0, "test_loss": 1.0, "test_images": 1234}
    return known | {"seconds": seconds}


def folder_of(path, config, rows, result=None, snapshots=()):
    folder = RunFolder(path)
    path.mkdir()
    folder.begin(config)
    for line in rows:
        folder.add_metrics(line)
    for snapshot in snapshots:
        write_snapshot(folder.snapshots, snapshot)
    if result is not None:
        folder.result.write_text(json.dumps(result))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        path = tmp_path_factory.mktemp("runs") / "digits"
        config = TrainConfig(epochs=2, channels=1, validation=0.9, device="cpu", learning_rate=2e-3)
        return train(config, path, listeners=[SnapshotRecorder()]), Read(write_run_page(path))


@pytest.mark.slow
def test_a_finished_runs_page_has_every_section(finished):
    result, page = finished
    assert page.ids == [*TRAINING, *INSIDE, "settings"]
    assert f"{100 * result['top1']:.2f} %" in page.words
    assert "vit_pico_patch2_8 on digits" in page.words
    assert "1,293 training images held out for validation" in page.words
    assert "not finished" not in page.words
    assert_alone(page)


@pytest.mark.slow
def test_every_setting_is_explained_and_changed_ones_stand_out(finished):
    _, page = finished
    docs = config_docs()
    assert list(docs) == [field.name for field in fields(TrainConfig)]
    table = page.text[page.text.index('id="settings"') :].replace(' scope="row"', "")
    for name, text in docs.items():
        assert f"<th>{name}</th>" in table
        assert text.replace("`", "") in page.words
    changed = re.findall(r'<tr class="changed"><th>(\w+)</th>', table)
    assert changed == ["validation", "channels", "epochs", "learning_rate", "device"]
    assert "<b>0.002</b> <small>default 0.001</small>" in table


def test_a_page_is_written_from_a_path_too_and_is_the_same_each_time(tmp_path):
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=3), [row(1, 0.1), row(2, 0.55), row(3, 0.61)])
    first = write_run_page(folder).read_bytes()
    assert write_run_page(str(tmp_path / "run")).read_bytes() == first
    assert {path.name for path in folder.path.iterdir()} == {"config.json", "metrics.jsonl", "run.html"}


def test_an_unfinished_run_says_so_and_shows_what_there_is(tmp_path):
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=40), [row(1), row(2, 0.625, 75.0), row(3, None, 80.0)])
    with folder.metrics.open("a") as file:
        file.write('{"epoch": 4, "lo')  # cut short
    page = Read(write_run_page(folder))
    assert page.ids == [*TRAINING, "settings"]
    assert "not finished" in page.words
    assert "62.50 %" in page.words
    assert "after epoch 2" in page.words
    assert "3 of 40" in page.words
    assert "1 min 20 s" in page.words
    assert_alone(page)


def test_an_unfinished_page_has_one_accuracy_and_the_epochs_that_are_done(tmp_path):
    """Snapshots are older than the last evaluation: their accuracy would stand under another one."""
    seen = Snapshot(1, filters=np.zeros((1, 2, 2, 3), np.uint8))
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=40), [row(1, 0.8028), row(13, 0.9167)], snapshots=[seen])
    page = Read(write_run_page(folder))
    assert "Trained from scratch for 13 of 40 epochs" in page.words
    assert "91.67 %" in page.words
    assert snapshots_payload([seen], ()).header["moments"][0]["caption"] == "epoch 1"
    assert page.payloads == [snapshots_payload([seen], ()).to_text()]


def some_answers(classes=3, epoch=2, trained=(5, 5, 5)):
    labels = np.array([0, 0, 1, classes - 1])
    names = tuple(f"<class {i}>" for i in range(classes))
    counts = np.array([*trained, *[5] * (classes - len(trained))])
    images = np.full((1, 4, 4, 3), 9, np.uint8)
    mistakes = np.array([1]), np.array([0.93]), ("a&b.png",), images
    return HeldOutAnswers(epoch, names, counts, labels, np.array([0, 1, 1, classes - 1]), *mistakes)


def test_mistakes_and_confusions_of_the_last_evaluation_are_shown(tmp_path):
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=3), [row(1, 0.2), row(2, 0.75), row(3)])
    write_answers(folder.held_out, some_answers())
    page = Read(write_run_page(folder))
    assert page.ids == [*TRAINING, "mistakes", "settings"]
    assert "<class 0>, taken for <class 1> with 93 % a&b.png" in page.words.replace("\xa0", " ")
    assert "Wrong answers after epoch 2: 1 of 4 held-out images." in page.words
    assert len([name for name in page.addresses if name.startswith("data:")]) == 1
    assert "Classes of unequal size" not in page.words
    assert_alone(page)
    folder.add_metrics(row(4, 0.9))  # a later evaluation, whose answers were not written
    assert "mistakes" not in Read(write_run_page(folder)).ids


def test_classes_that_are_called_by_their_numbers_are_numbered_once(tmp_path):
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=2), [row(2, 0.75)])
    write_answers(folder.held_out, replace(some_answers(), class_names=("0", "1", "owl")))
    rows = re.findall(r'<th scope="row">([^<]*)</th>', write_run_page(folder).read_text())
    assert rows[:3] == ["0", "1", "2 owl"]


def test_of_many_classes_the_most_frequent_confusions_are_listed(tmp_path):
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=2), [row(2, 0.75)])
    write_answers(folder.held_out, some_answers(classes=40))
    page = Read(write_run_page(folder))
    assert "The most frequent confusions." in page.words
    assert "1 of 2" in page.words


def test_classes_of_unequal_size_have_a_table_and_a_balanced_accuracy(tmp_path):
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=2), [row(2, 0.75)])
    write_answers(folder.held_out, some_answers(trained=(30, 5, 9)))
    words = Read(write_run_page(folder)).words
    assert "the mean over classes: 83.33 %" in words
    assert "50.00 %" in words


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    page = Read(write_run_page(folder_of(tmp_path / "run", TrainConfig(), [])))
    assert page.ids == ["settings"]
    assert "0 of 60" in page.words


def test_a_run_of_one_epoch_has_a_page(tmp_path):
    result = {"top1": 0.4, "top5": 0.9, "loss": 1.5, "images": 360, "epochs": 1, "seconds": 2.0}
    folder = folder_of(tmp_path / "run", TrainConfig(epochs=1), [row(1, 0.4)], result, [Snapshot(1)])
    page = Read(write_run_page(folder))
    assert page.ids == [*TRAINING, "settings"]
    assert "40.00 %" in page.words
    assert "1epoch" in page.words
    assert "has not reached 50\N{NO-BREAK SPACE}%" in page.words


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run: expected .*config.json"):
        write_run_page(tmp_path)


def test_names_are_escaped_and_local_paths_are_not_written(tmp_path):
    config = TrainConfig(data="/home/someone/<b>pets", model="/secret/place/vit", pretrained=True, policy="head")
    page = Read(write_run_page(folder_of(tmp_path / "run", config, [row(1, 0.5)])))
    assert "vit on <b>pets" in page.words
    assert "Fine-tuned (head)" in page.words
    assert "someone" not in page.text
    assert "secret" not in page.text


def test_times_are_those_of_the_first_evaluation_that_was_good_enough():
    rows = [row(1, 0.3, 10), row(2, None, 20), row(3, 0.86, 30), row(4, 0.7, 40), row(5, 0.95, 50)]
    assert time_to_accuracy(rows) == [(0.85, 3, 30), (0.95, 5, 50)]
    assert time_to_accuracy(rows, [0.5, 0.9]) == [(0.5, 3, 30), (0.9, 5, 50)]
    assert time_to_accuracy(rows, [0.99]) == time_to_accuracy([], LEVELS) == []


def test_curves_are_the_metrics_in_percent_where_they_were_measured(tmp_path):
    rows = [row(1, 0.25), row(2), row(3, 0.75)]
    page = Read(write_run_page(folder_of(tmp_path / "run", TrainConfig(), rows)))
    loss, accuracy, rate = (chart["series"] for chart in page.charts)
    assert loss[0]["y"] == [2.0, 1.0, 2 / 3]
    assert [line["x"] for line in accuracy] == [[1, 2, 3], [1, 3]]
    assert accuracy[1] == {"label": "held out", "x": [1, 3], "y": [25, 75]}
    assert len(rate) == 1
    assert column([row(1)], "test_top1") == ([], [])
    assert curves([], TrainConfig()) == []


def test_the_text_says_what_makes_training_images_harder():
    charts = {chart.name: chart for chart in curves([row(1)], TrainConfig(mixup=0.4, warmup=5))}
    assert "mixed" in charts["loss"].beware
    assert "larger share" in charts["accuracy"].beware
    assert "5 epochs" in charts["learning-rate"].read
    assert "mixed" not in curves([row(1)], TrainConfig())[0].beware


def test_a_resnets_page_shows_its_filters_alone(tmp_path):
    snapshots = [Snapshot(epoch, filters=np.full((4, 3, 3, 3), epoch, np.uint8)) for epoch in (0, 1)]
    page = Read(write_run_page(folder_of(tmp_path / "run", TrainConfig(epochs=1), [row(1, 0.4)], None, snapshots)))
    assert page.ids == [*TRAINING, "filters", "settings"]
    assert len(page.payloads) == 1
    assert 'id="scrubber"' in page.text


def test_a_view_that_never_changed_says_so_and_has_no_row_of_moments(tmp_path):
    same = [Snapshot(epoch, positions=np.ones((2, 2, 2, 2))) for epoch in (0, 1, 2)]
    page = Read(write_run_page(folder_of(tmp_path / "run", TrainConfig(), [row(1)], None, same)))
    assert "This did not change in this run." in page.words
    assert "All moments" not in page.words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (1e-5, "1e-05"),
        ("auto", "auto"),
        ("C:\\Users\\me\\pets", "…/pets"),
        ("~/pets", "…/pets"),
        (64, "64"),
    ],
)
def test_settings_are_spelled_as_one_reads_them(value, words):
    assert spell(value) == words


@pytest.mark.parametrize(("classes", "shown"), [(3, False), (5, False), (6, True), (None, True)])
def test_top5_is_shown_where_there_are_more_classes(classes, shown):
    result = {"top1": 0.9, "top5": 1.0, "loss": 0.25, "images": 24, "epochs": 5, "seconds": 9.0}
    text = run_page(TrainConfig(), [], result, None, classes)
    assert ("first five guesses" in text) == shown
    assert "loss is 0.25" in text


def test_labels_of_held_out_images_are_present_from_the_models_thresholds_on():
    rows = np.array([[0.1, 0.7], [0.25, 0.8], [0.3, 0.9]], np.float32)  # best thresholds 0.175 and 0.85
    targets, images = np.array([[0, 0], [1, 0], [1, 1]], np.float32), np.zeros((3, 4, 4, 3), np.uint8)
    shown = np.arange(3), ("0.png", "1.png", "2.png"), images, np.zeros((2, 0, 0, 0), np.uint8)
    found = outputs_section(HeldOutOutputs(1, "multilabel", ("cat", "dog"), rows, targets, *shown))
    assert [lists for _, _, lists in found["shown"]] == [{}, {"has": ["cat"]}, {"has": ["cat", "dog"]}]
