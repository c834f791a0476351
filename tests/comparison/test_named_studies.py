"""Studies known by name, models that do not begin alike, and the command."""

import json

import pytest
import torch
from tiny_studies import MODELS, budget_of, make_zoo, tiny

from vitreous.cli.main import main
from vitreous.comparison import compare as comparing
from vitreous.comparison.studies import STUDIES, NamedStudy, Part
from vitreous.models.vit import ViT, ViTConfig
from vitreous.training.recipes import RECIPES
from vitreous.weights.card import Card
from vitreous.weights.save import save, usual_preprocess


def test_the_reports_figures_are_quoted_beside_the_right_model():
    quoted = {(name, p.budget.data): list(p.quoted.values()) for name, s in STUDIES.items() for p in s.parts}
    assert quoted == {
        ("seed-001", "mnist"): [98.10],
        ("seed-001", "cifar10"): [56.41],
        ("seed-004", "cifar10"): [97.97],
        ("seed-004", "cifar100"): [87.41],
        ("seed-004", "flowers102"): [89.12],
        ("seed-004", "pets"): [93.65],
    }
    for study in STUDIES.values():
        for part in study.parts:
            assert set(part.quoted) <= set(part.models)
            assert part.budget.recipe in RECIPES
            assert part.budget.batch_size == 64


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A study of one dataset that is there and one that is not."""
    zoo = make_zoo(tmp_path / "zoo")
    here = Part(MODELS, budget_of(zoo), {MODELS[0]: 98.1}, "how to get it")
    gone = Part(MODELS, budget_of(tmp_path / "gone"), {MODELS[0]: 56.41}, "run this once with a network")
    monkeypatch.setitem(comparing.STUDIES, "two", NamedStudy("two datasets", (here, gone)))
    return zoo


def test_what_is_missing_is_told_and_the_rest_goes_on(named, tmp_path, capsys):
    words = ["compare", "--study", "two", "--seeds", "1", "--device", "cpu", "--skip-compiled", "-o"]
    main([*words, str(tmp_path / "study")])
    out = capsys.readouterr().out
    assert "the report's own figure (quoted)" in out
    assert "98.10 %" in out
    assert "nothing was run." in out
    assert "run this once with a network" in out
    page = (tmp_path / "study/comparison.html").read_text()
    assert "All datasets" in page
    assert "Nothing was run" in page
    assert "56.41 %" in page
    assert str(tmp_path) not in json.loads((tmp_path / "study/comparison.json").read_text())["command"]


def test_one_dataset_of_a_study_can_be_asked_for(named, tmp_path):
    message = comparing.run_named("two", tmp_path / "study", 1, only=(str(named),), device="cpu", compiled=False)
    assert len(message["tables"]) == 1
    elsewhere = (f"{tmp_path / 'gone'}={named}",)
    message = comparing.run_named("two", tmp_path / "moved", 1, only=elsewhere, device="cpu", compiled=False)
    assert message["tables"][0]["rows"][0]["quoted"] == 56.41
    with pytest.raises(ValueError, match="has no dataset 'pets'"):
        comparing.run_named("two", tmp_path / "study", 1, only=("pets",))
    with pytest.raises(ValueError, match="the studies are seed-001, seed-004"):
        comparing.run_named("seed-002", tmp_path / "study", 1)


def checkpoint(folder):
    torch.manual_seed(5)
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=4))
    model.card = Card("mine", usual_preprocess(model.config))
    save(model, folder)
    return str(folder)


def test_of_models_that_began_differently_no_verdict_is_drawn(tmp_path):
    models = (checkpoint(tmp_path / "mine") + "@full", "vit_pico_patch2_8")
    message = tiny(make_zoo(tmp_path / "zoo"), tmp_path / "study", models=models)
    table = message["tables"][0]
    assert [row["start"] for row in table["rows"]] == ["fine-tuned (full)", "from scratch"]
    assert table["rows"][0]["name"] == "mine@full"
    assert not table["alike"]
    assert [pair["verdict"] for pair in table["pairs"]] == [""]
    page = (tmp_path / "study/comparison.html").read_text()
    assert "Different starts: no verdict" in page
    assert str(tmp_path) not in page  # folders of this machine are nobody's business
    assert 'class="best"' not in page


def test_a_small_resnet_beside_a_fine_tuned_head_on_the_command_line(tmp_path, capsys):
    zoo = make_zoo(tmp_path / "zoo")
    words = ["compare", "resnet18_small", "vit_pico_patch2_8", "--data", str(zoo), "--epochs", "1", "--seeds", "1"]
    words += ["--batch-size", "8", "--recipe", "digits", "--device", "cpu", "--skip-compiled", "--json"]
    main([*words, "-o", str(tmp_path / "study")])
    message = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in message["tables"][0]["rows"]] == ["ResNet", "ViT"]
    assert message["tables"][0]["rows"][0]["image_size"] == [8, 8]
    assert message["command"].startswith("vitreous compare resnet18_small vit_pico_patch2_8 --data ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name two models or more, or a study"),
        (["resnet18", "--study", "seed-001"], "name two models or more, or a study"),
        (["resnet18", "resnet34"], "--data NAME"),
        (["resnet18", "--data", "digits"], "two models or more, each once"),
        (["resnet18", "resnet18", "--data", "digits"], "each once"),
        (["resnet18", "resnet34", "--data", "digits", "--seeds", "0"], "--seeds must be at least 1"),
        (["resnet18", "resnet34", "--data", "digits", "--epochs", "1", "--minutes", "1"], "not both"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["compare", *words])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
