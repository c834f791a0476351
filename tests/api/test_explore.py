"""`vitreous.explore` as a program calls it: models of every task, and what a static site cannot hold."""

import json
from urllib.request import Request, urlopen

import pytest
from task_sets import TASKS, task_model

import vitreous
from vitreous.api.explore import write_site
from vitreous.cli.main import main
from vitreous.data.sample_photos import samples
from vitreous.pages.explanation import Explanation
from vitreous.views.inspection import Choice, Inspection

PHOTO = samples()["chelsea"]


def test_models_of_every_task_are_served_and_each_follows_its_own():
    models = [task_model(task) for task in TASKS]
    with vitreous.explore([*models, "packaged:cifar10"], device="cpu") as page:
        with urlopen(f"{page.url}api/models") as answer:
            tasks = {each["name"]: each["task"] for each in json.load(answer)}
        assert list(tasks.values()) == [*TASKS, "classify"]
        with urlopen(f"{page.url}api/samples/chelsea") as answer:
            photo = answer.read()
        found = {}
        for name, task in tasks.items():
            address = f"{page.url}api/ablate?model={name.replace(' ', '%20')}"
            with urlopen(Request(address, photo, {"Content-Type": "application/octet-stream"})) as answer:
                found[task] = json.load(answer)
    assert {each["class_name"] for each in found["regress"]} == {"light", "height"}
    assert "value" in found["regress"][0]
    assert sum(each["probability"] for each in found["segment"]) == pytest.approx(1)
    assert {"present", "probability"} <= set(found["multilabel"][0])
    assert found["classify"][0]["class_name"] == "cat"


@pytest.mark.parametrize("task", TASKS)
def test_a_static_site_of_another_task_is_refused_in_one_line(task, tmp_path):
    with pytest.raises(ValueError, match="a live page|one class") as error:
        write_site(tmp_path / "site", task_model(task))
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("port", ["8137", -1, 65536, None])
def test_a_port_that_is_none_is_refused_in_one_line(port):
    with pytest.raises(ValueError, match="a port is a number from 1 to 65535"):
        vitreous.explore("packaged:cifar10", port=port)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--static", "site", "--port", "3", "--open-browser"],
            "--static serves nothing: leave out --port, --open",
        ),
        (["--static", "site", "--precision", "bf16"], "--static serves nothing: leave out --precision"),
        (["--live", "int8"], "add --static FOLDER"),
    ],
)
def test_a_flag_without_effect_is_refused(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["explore", *words])
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", TASKS)
def test_the_summary_says_what_the_model_gives(task):
    model = task_model(task)
    model.card.thresholds = (0.0, 1.0, 0.0) if task == "multilabel" else None
    explanation = Explanation(Inspection(model, PHOTO, Choice(target=1), "photo"), "outputs")
    answer = vitreous.classify(PHOTO, model, device="cpu")
    assert explanation.summary == f"{answer.brief()}; explained: {model.card.label(1)}"
    assert explanation.answer.labels == answer.labels
    assert explanation.answer.numbers == pytest.approx(answer.numbers)
