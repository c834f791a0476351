"""`classify`, `evaluate`, `doctor` and the others on the command line, for labels, numbers and masks."""

import csv
import json

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from task_sets import NAMES, TASKS, make_task_data, task_model

from vitreous.cli.main import main
from vitreous.cli.options import ModelOptions
from vitreous.predict.classify import classify


@pytest.fixture(params=TASKS)
def task(request):
    return request.param


@pytest.fixture
def model(task, monkeypatch):
    """The model that every command loads."""
    model = task_model(task)
    monkeypatch.setattr(ModelOptions, "load", lambda self, console=None: model)
    return model


@pytest.fixture
def data(task, tmp_path):
    return make_task_data(tmp_path / "data", task, images=6)


@pytest.fixture
def images(data, tmp_path):
    return tmp_path / "data/images"


def failure(capsys, *words):
    """The one line of a command that is refused."""
    with pytest.raises(SystemExit) as error:
        main([str(word) for word in words])
    assert error.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def answered(capsys, *words):
    main([str(word) for word in words])
    return capsys.readouterr().out


def test_json_is_what_python_returns(model, images, capsys):
    found = json.loads(answered(capsys, "classify", images, "--json", "--top", "2"))
    expected = [answer.to_dict() for answer in classify(images, model, top=2, device="cpu")]
    assert found == json.loads(json.dumps(expected))


def test_one_image_has_a_table_and_many_share_one(model, task, images, capsys):
    lines = answered(capsys, "classify", images / "00.png", "--top", "3").splitlines()
    assert lines[0].strip() == str(images / "00.png")
    header = {
        "multilabel": ["label", "probability", "of", "each", "by", "itself", "present", "logit", "index"],
        "regress": ["number", "value"],
        "segment": ["class", "share", "of", "pixels", "index"],
    }
    assert lines[1].split() == header[task]
    assert [line.split()[0] for line in lines[2:]] == [name for name, _ in classify(images / "00.png", model).rows()]
    answer = classify(images / "00.png", model, device="cpu")
    if task == "regress":
        assert [line.split() for line in lines[2:]] == [list(row) for row in answer.rows()]
        assert "%" not in "".join(lines)
    many = answered(capsys, "classify", images).splitlines()
    columns = {
        "multilabel": "image labels",
        "regress": "image light height",
        "segment": "image class share of pixels then",
    }
    assert " ".join(many[0].split()) == columns[task]
    assert len(many) == 7
    assert [line.split()[0] for line in many[1:]] == [str(images / f"{i:02d}.png") for i in range(6)]
    if task != "segment":
        assert " ".join(many[1].split()[1:]) == (
            answer.brief() if task == "multilabel" else " ".join(v for _, v in answer.rows())
        )


@pytest.mark.parametrize("task", ["multilabel"], indirect=True)
def test_labels_that_top_cuts_are_named_below(model, images, capsys):
    model.card.thresholds = (0.0, 0.0, 0.0)
    lines = answered(capsys, "classify", images / "00.png", "--top", "1").splitlines()
    labels = classify(images / "00.png", model, device="cpu").labels
    assert lines[2].split()[0] == labels[0]
    assert lines[3:] == [f"also present: {labels[1]}, {labels[2]}"]


def own_columns(task):
    """The columns of a table of answers that a task has, without those of classes."""
    return ["labels"] if task == "multilabel" else list(NAMES[task])


def test_files_hold_the_same_answers(model, task, images, tmp_path, capsys):
    (images / "zz.png").write_bytes(b"no image")
    answers = classify(sorted(images.glob("0*.png")), model, device="cpu")
    for suffix in (".csv", ".parquet", ".json"):
        with pytest.raises(SystemExit):
            main(["classify", str(images), "-o", str(tmp_path / f"answers{suffix}")])
    with (tmp_path / "answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = pyarrow.parquet.read_table(tmp_path / "answers.parquet")
    assert table.column_names == ["image", *own_columns(task), *(OF_LABELS if task == "multilabel" else ()), "error"]
    assert (
        [row["image"] for row in rows]
        == table["image"].to_pylist()
        == [*(a.image for a in answers), str(images / "zz.png")]
    )
    assert rows[-1]["error"] == table["error"].to_pylist()[-1] != ""
    for i, answer in enumerate(answers):
        cells = [table[name][i].as_py() for name in own_columns(task)]
        if task == "multilabel":
            assert cells == [list(answer.labels)]
            assert rows[i]["labels"] == ";".join(answer.labels)
            assert rows[i]["class_name"] == answer.best.class_name
        else:
            shares = {share.class_name: share.share for share in answer.shares or ()}
            expected = [(answer.numbers or shares).get(name, 0.0) for name in NAMES[task]]
            assert cells == pytest.approx(expected)
            assert [float(rows[i][name]) for name in NAMES[task]] == pytest.approx(expected)
    found = json.loads((tmp_path / "answers.json").read_text())
    assert found[:-1] == json.loads(json.dumps([answer.to_dict() for answer in answers]))


OF_LABELS = ("class_name", "index", "probability", "class_names", "probabilities")


@pytest.mark.parametrize("task", ["multilabel", "regress"], indirect=True)
def test_a_folder_of_parts_holds_labels_and_numbers(model, task, images, tmp_path, capsys):
    answered(capsys, "classify", images, "-o", tmp_path / "parts", "--part-size", "4")
    table = pyarrow.parquet.read_table(tmp_path / "parts")
    answers = classify(images, model, device="cpu")
    expected = [list(answer.labels) if task == "multilabel" else answer.numbers["light"] for answer in answers]
    found = table[own_columns(task)[0]].to_pylist()
    assert found == (expected if task == "multilabel" else pytest.approx(expected))
    if task == "multilabel":
        model.card.thresholds = (0.9, 0.1, 0.3)
        words = ["classify", images, "-o", tmp_path / "parts", "--part-size", "4"]
        assert "other weights" in failure(capsys, *words)


@pytest.mark.parametrize("task", ["segment"], indirect=True)
def test_masks_are_written_beside_their_names(model, task, images, tmp_path, capsys):
    (images / "zz.png").write_bytes(b"no image")
    with pytest.raises(SystemExit):
        main(["classify", str(images), "-o", str(tmp_path / "out")])
    assert f"wrote {tmp_path / 'out'}: 6 masks" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"{i:02d}.png" for i in range(6)] + [
        "classes.json"
    ]
    for answer in classify(sorted(images.glob("0*.png")), model, device="cpu"):
        path = tmp_path / "out" / answer.image.rpartition("/")[2]
        assert np.array_equal(np.asarray(Image.open(path)), answer.mask)
    assert json.loads((tmp_path / "out/classes.json").read_text())["1"] == "box"
    line = failure(capsys, "classify", images, "-o", images)
    assert "00.png is there already, and no mask of these classes: choose another folder with -o" in line


def test_evaluate_prints_and_writes_the_figures(model, task, data, tmp_path, capsys):
    found = json.loads(answered(capsys, "evaluate", "--data", data, "--json", "-o", tmp_path / "out"))
    written = json.loads((tmp_path / "out/result.json").read_text())
    assert found["task"] == task
    assert {name: found[name] for name in written} == written
    assert set(found["per_class"]) == set(NAMES[task])
    lines = answered(capsys, "evaluate", "--data", data).splitlines()
    assert lines[0].split() == ["task", task]
    assert sum(line.startswith("  ") for line in lines) == len(NAMES[task])


def test_a_probe_is_refused(model, task, data, capsys):
    assert "a probe learns classes, and" in failure(capsys, "evaluate", "--data", data, "--probe", "knn")


def test_words_are_refused(model, images, capsys):
    line = failure(capsys, "classify", images, "--classes", "a cat", "a dog")
    assert "of its own: leave the words out" in line


def test_doctor_tells_the_task_and_tries_no_preprocessings(model, task, data, capsys):
    rows = [line.split(maxsplit=1) for line in answered(capsys, "doctor", "--trace").splitlines()]
    assert ["task", task] in rows
    assert json.loads(answered(capsys, "doctor", "--json"))["task"] == task
    assert [line.split()[1] for line in answered(capsys, "doctor", "--classes").splitlines()] == list(NAMES[task])
    line = failure(capsys, "doctor", "--data", data)
    assert "preprocessings are tried on images with a class each, and tiny has" in line


def test_maps_are_not_compared(data, tmp_path, capsys):
    line = failure(capsys, "compare", "packaged:cifar10", "--maps", "--data", data, "-o", tmp_path / "maps")
    assert "heat maps are measured on images with a class each, and" in line


def test_datasets_are_shown(data, tmp_path, capsys):
    out = answered(capsys, "datasets", "--show", data, "-o", tmp_path / "shown.png")
    assert "6 images" in out
    assert Image.open(tmp_path / "shown.png").width > 500


def test_a_table_without_names_for_its_columns_is_refused_before_any_image(images, tmp_path, capsys, monkeypatch):
    model = task_model("regress")
    model.card.class_names = None
    monkeypatch.setattr(ModelOptions, "load", lambda self, console=None: model)
    monkeypatch.setattr(model, "forward", lambda x: pytest.fail("an image was computed"))
    assert "have no names for columns" in failure(capsys, "classify", images, "-o", tmp_path / "answers.csv")


def test_a_run_whose_held_out_numbers_are_all_the_same_ends_with_its_error_alone(tmp_path, capsys):
    table = make_task_data(tmp_path / "data", "regress", images=12)
    lines = [line.rsplit(",", 1)[0] for line in table.read_text().splitlines()]  # the number `light`
    split = [f"{line},train" for line in lines[1:10]] + [f"{line.rpartition(',')[0]},7,test" for line in lines[10:]]
    table.write_text("\n".join([f"{lines[0]},split", *split]))
    run = tmp_path / "run"
    words = ["--model", "vit_pico_patch2_8", "--image-size", "8", "--epochs", "1", "--device", "cpu"]
    main(["train", "digits", "--data", str(table), "--output", str(run), "--batch-size", "3", *words])
    out = capsys.readouterr()
    assert "R²" not in out.out + out.err
    assert "mean error" in out.out + out.err
    assert "r2" not in json.loads((run / "result.json").read_text())
    assert "mean absolute error" in (run / "run.html").read_text()
