"""Studies of labels, numbers and masks: the score of the task, its spread, a paired test, and a page in its words."""

import json
import re

import numpy as np
import pytest
import torch
from task_sets import task_model
from tiny_runs import make_task
from tiny_studies import MODELS, Heard, states

from vitreous.api.compare import compare
from vitreous.cli.main import main
from vitreous.comparison.entrants import Budget, configure, find_entrant
from vitreous.comparison.runs import predict_task
from vitreous.comparison.statistics import EXCHANGES
from vitreous.comparison.study import STUDIES, NamedStudy, StudyPart
from vitreous.data.splits import open_split
from vitreous.predict.scores import SCORES

TASKS = ("multilabel", "regress", "segment")
WORDS = {
    "multilabel": ("mAP", "Mean average precision is the mean of 3 seeds", "Label by label"),
    "regress": ("R²", "R² is the mean of 3 seeds", "Number by number"),
    "segment": ("mean IoU", "Mean IoU is the mean of 3 seeds", "Class by class"),
}


def study_of(data, folder, models=MODELS, **options):
    usual = {"epochs": 8, "batch_size": 10, "image_size": 8, "seeds": 3, "device": "cpu", "compiled": False}
    usual["learning_rates"] = (2e-3, 1e-6)  # one learns something
    return compare(models, str(data), folder, **{**usual, **options})


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Name of a task → its data, its study's folder, and what was found; made when they are asked for."""
    made = {}

    def find(task):
        if task not in made:
            folder = tmp_path_factory.mktemp(task)
            data = make_task(folder / "data", task)
            made[task] = data, folder / "study", study_of(data, folder / "study")
        return made[task]

    return find


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_scores_are_those_of_the_runs(studies, task):
    _, folder, found = studies(task)
    table, main_figure = found.tables[0], SCORES[task].main
    assert (table["task"], table["score"], table["images"], table["seeds"]) == (task, main_figure, 10, 3)
    for row in table["rows"]:
        results = [json.loads((folder / f"runs/{row['model']}-seed{i}/result.json").read_text()) for i in range(3)]
        assert row["scores"] == pytest.approx([result[main_figure] for result in results], abs=1e-5)
        assert row["score"] == pytest.approx(np.mean(row["scores"]))
        half = 4.302652729696142 * np.std(row["scores"], ddof=1) / np.sqrt(3)  # Student's t of two degrees of freedom
        assert row["interval"] == pytest.approx([row["score"] - half, row["score"] + half])
        for name, value in row["figures"].items():
            assert value == pytest.approx(np.mean([result[name] for result in results]), rel=1e-4)
    (pair,) = table["pairs"]
    assert pair["difference"] == pytest.approx(table["rows"][0]["score"] - table["rows"][1]["score"])
    assert 0 < pair["p_images"] <= 1
    saved = json.loads((folder / "comparison.json").read_text())["tables"][0]
    assert saved["rows"][0]["score"] == table["rows"][0]["score"]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_table_page_and_json_name_the_score_of_the_task(studies, task):
    _, folder, found = studies(task)
    name, sentence, heading = WORDS[task]
    page, written = (folder / "comparison.html").read_text(), (folder / "comparison.json").read_text()
    body = page[page.index("<body") :]
    assert re.search(rf"^{name}  +[\d−-]", found.table, re.MULTILINE)
    assert f"difference in {name} " in found.table
    assert f'<tr class="large"><th>{name}</th>' in body
    assert sentence in body
    assert f"p is the share of {EXCHANGES + 1:,} such exchanges" in body
    assert f"<h3>{heading}</h3>" in body
    for text in (found.table, body, written, found._repr_html_()):
        assert "accurac" not in text.lower().replace("pixel accuracy", "").replace("pixel_accuracy", "")
    assert page.count("<img ") == page.count('<img src="data:image/png')
    drawn = sum(len(side["images"]) for side in found.tables[0]["pairs"][0]["disagreements"].values())
    assert drawn
    assert body.count("<img ") == drawn * (4 if task == "segment" else 1)


@pytest.mark.slow
def test_numbers_have_their_errors_in_the_table(studies):
    _, _, found = studies("regress")
    assert re.search(r"^MAE of top  +\d", found.table, re.MULTILINE)
    assert re.search(r"^MAE of left  +\d", found.table, re.MULTILINE)


@pytest.mark.slow
def test_the_same_command_again_changes_no_run(studies):
    data, folder, found = studies("segment")
    before = states(folder)
    again = study_of(data, folder)
    assert states(folder) == before
    assert again.tables[0]["rows"] == found.tables[0]["rows"]


@pytest.mark.slow
def test_a_better_model_gets_a_verdict_by_seeds_and_images(tmp_path):
    boxes = make_task(tmp_path / "data", "regress", images=300)
    found = study_of(boxes, tmp_path / "study", epochs=12)
    (pair,) = found.tables[0]["pairs"]
    assert pair["verdict"] == MODELS[0]
    assert pair["p_images"] == 0.0005
    assert re.search(rf"{MODELS[0]} is better than {MODELS[1]} by \d\.\d{{3}} of R² with this budget", found.table)
    page = found.page.read_text()
    assert '<td class="best">' in page


@pytest.mark.slow
def test_one_seed_gives_neither_an_interval_nor_a_verdict(tmp_path):
    found = study_of(make_task(tmp_path / "data", "segment"), tmp_path / "study", seeds=1, epochs=1)
    assert found.tables[0]["rows"][0]["interval"] is None
    assert "unknown: 3 seeds would give one" in found.table
    assert "one seed: no verdict" in found.table
    assert "which is not the same for all models" not in found.page.read_text()
    assert "the sizes differ" not in found.table
    assert (
        "One seed does not tell how far seeds spread, so there is no interval and no verdict." in found.page.read_text()
    )


@pytest.mark.slow
def test_masks_of_different_resolutions_are_spoken_of(tmp_path):
    boxes = make_task(tmp_path / "data", "segment")
    found = study_of(boxes, tmp_path / "study", seeds=1, epochs=1, image_size=None)
    assert [row["image_size"] for row in found.tables[0]["rows"]] == [[8, 8], [32, 32]]
    assert "which is not the same for all models" in found.page.read_text()
    assert "the sizes differ: a coarser one has an easier task" in found.table


@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_answers_nan_is_one_line(task, tmp_path):
    _, tested = open_split(make_task(tmp_path / "data", task))
    model = task_model(task, tested.class_names)
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    with pytest.raises(ValueError, match="tiny answers NaN: `vitreous doctor`"):
        predict_task(model, tested, device="cpu")


@pytest.mark.slow
def test_a_resnet_learns_labels_and_numbers(tmp_path):
    found = study_of(
        make_task(tmp_path / "data", "regress"), tmp_path / "study", (MODELS[0], "resnet18_small"), seeds=1, epochs=1
    )
    assert [row["kind"] for row in found.tables[0]["rows"]] == ["ViT", "ResNet"]


@pytest.mark.parametrize("models", [("resnet18_small", MODELS[0]), (MODELS[0], "timm:resnet10t")])
def test_a_network_without_patch_tokens_is_refused_for_masks_in_one_line(models, tmp_path, capsys):
    boxes = make_task(tmp_path / "data", "segment")
    with pytest.raises(SystemExit):
        main(["compare", *models, "--data", str(boxes), "-o", str(tmp_path / "study")])
    error = capsys.readouterr().err
    assert "is no ViT, and masks are read from the patch tokens of a ViT: compare ViTs" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "study/runs").exists()


def test_a_named_study_of_other_data_is_refused(tmp_path, monkeypatch):
    boxes = make_task(tmp_path / "data", "regress")
    part = StudyPart(MODELS, Budget(data=str(boxes)), {MODELS[0]: 98.1}, "")
    monkeypatch.setitem(STUDIES, "numbers", NamedStudy("numbers", (part,)))
    with pytest.raises(ValueError, match=r"a named study compares classes, and .* has numbers"):
        compare(study="numbers", output=tmp_path / "study")


@pytest.mark.slow
def test_the_task_can_be_named(tmp_path):
    table = make_task(tmp_path / "data", "regress")
    table.write_text(table.read_text().replace("top,left", "label,left"))
    with pytest.raises(ValueError, match="needs a folder with images/ and masks/|masks are not read from it"):
        study_of(table, tmp_path / "study", task="segment")
    heard = Heard()
    found = study_of(table, tmp_path / "study", seeds=1, epochs=1, task="regress", listeners=[heard])
    assert found.tables[0]["task"] == "regress"
    assert "--task regress" in found.command


@pytest.mark.parametrize("task", TASKS)
def test_all_models_get_the_defaults_of_finetune_or_train_for_the_task(task, tmp_path):
    learned, _ = open_split(make_task(tmp_path / "data", task))
    entrants = [find_entrant(name) for name in MODELS]
    for config in configure(Budget("x"), entrants, learned):
        config.check_task(task)
        assert (config.task, config.mixup, config.cutmix, config.label_smoothing) == (task, 0.0, 0.0, 0.0)
        assert (config.optimizer, config.shift) == ("muon", 0.0 if task == "regress" else 0.1)
    tuned = [find_entrant("packaged:cifar10"), find_entrant("packaged:cifar10@head")]
    assert [config.epochs for config in configure(Budget("x"), tuned, learned)] == [40, 40]
    named = configure(Budget("x", recipe="cifar10"), entrants, learned)[0]
    named.check_task(task)
    assert named.flip == (task != "regress")


def test_numbers_of_a_study_in_bf16_are_computed_in_fp32(tmp_path):
    _, tested = open_split(make_task(tmp_path / "data", "regress"))
    model = task_model("regress", tested.class_names)
    with torch.no_grad():
        model.head.bias += 1990  # as a model of years has it
    exact, half = (predict_task(model, tested, device="cpu", precision=each) for each in ("fp32", "bf16"))
    np.testing.assert_array_equal(half.rows, exact.rows)
    assert len(np.unique(exact.rows[:, 0])) > len(exact.rows) // 2
