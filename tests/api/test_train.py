"""`vitreous.train` and `vitreous.finetune` from Python."""

import signal

import pytest
import torch
from tiny_runs import LogKeeper, after_update, make_images, tiny

import vitreous
from vitreous.training.loop import Stopped
from vitreous.training.recipes import POLICY_RATES
from vitreous.training.run_folder import RunFolder

BRIEF = {"epochs": 1, "batch_size": 8, "warmup": 0, "channels": 3, "device": "cpu", "snapshots": 0, "progress": False}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def zoo(tmp_path):
    return make_images(tmp_path / "zoo")


def test_a_run_shows_its_accuracy_and_folder_and_loads_its_model(zoo):
    run = vitreous.train("digits", data=str(zoo), output="out", **BRIEF)
    assert str(run.folder) == "out"
    assert run.accuracy == run.result["top1"] == RunFolder("out").read_result()["top1"]
    first, second = repr(run).splitlines()
    assert first.endswith(f"{run.accuracy:.2%} of {run.result['images']} held-out images after 1 epoch")
    assert second == "out"
    assert run.model is run.model
    assert run.model.card.class_names == ("cat", "dog", "owl")
    assert "<h1>" in run.page.read_text()


def test_without_an_output_finished_runs_get_a_number(zoo):
    runs = [vitreous.train("digits", data=str(zoo), **BRIEF) for _ in range(2)]
    assert [str(run.folder) for run in runs] == ["runs/digits", "runs/digits-2"]
    assert torch.equal(*(run.model.head.weight for run in runs))


def test_a_config_is_taken_as_it_is_and_listeners_hear_of_it(zoo):
    listener = LogKeeper()
    run = vitreous.train(tiny(zoo, epochs=1), output="out", listeners=[listener], progress=False)
    assert run.config == tiny(zoo, epochs=1)
    assert [row["epoch"] for row in listener.rows] == [1]


def test_finetuning_takes_the_learning_rate_of_its_policy(zoo):
    start = vitreous.train("digits", data=str(zoo), output="start", **BRIEF)
    brief = {name: value for name, value in BRIEF.items() if name != "channels"}
    run = vitreous.finetune(zoo, start.folder / "model", "head", **brief)
    assert str(run.folder) == "runs/zoo"
    assert (run.config.learning_rate, run.config.pretrained) == (POLICY_RATES["head"], True)
    changed = {n for n, v in run.model.state_dict().items() if not torch.equal(v, start.model.state_dict()[n])}
    assert changed == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("digit", {}, "no recipe is called 'digit': did you mean digits"),
        ("digits", {"epoch": 3}, "no setting 'epoch': did you mean epochs"),
        ("digits", {"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_a_mistake_names_what_was_meant(recipe, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        vitreous.train(recipe, **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_stopped_run_has_a_page_and_says_where_it_can_be_resumed(zoo, monkeypatch):
    with monkeypatch.context() as patch:
        after_update(patch, 1, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Stopped, match="stopped and saved at epoch 1, step 1 of") as stopped:
            vitreous.train("digits", data=str(zoo), output="out", **BRIEF)
    assert str(stopped.value.folder) == "out"
    assert RunFolder("out").read_result() is None
    assert (stopped.value.folder / "run.html").is_file()
    assert vitreous.train("digits", data=str(zoo), output="out", **BRIEF).result["epochs"] == 1
