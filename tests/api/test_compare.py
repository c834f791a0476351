"""`compare` end to end: a study of one's own, one by name, and what it returns."""

import json
import re

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from tiny_studies import MODELS, budget_of, make_zoo, states, tiny

from vitreous.api.compare import compare
from vitreous.comparison.runs import Predictions
from vitreous.comparison.study import STUDIES, NamedStudy, StudyPart
from vitreous.data.preprocess import default_preprocess
from vitreous.models.timm_classifier import TimmClassifier
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card
from vitreous.weights.load import load
from vitreous.weights.save import save

pytestmark = pytest.mark.slow
SIZED = {"timm:test_vit": {"img_size": 32}}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "study"
    return folder, tiny("digits", folder, batch_size=64)


def test_a_study_leaves_its_runs_a_table_and_a_page(study):
    folder, found = study
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == ["comparison.html", "comparison.json", "runs", "speed.json", "study.json"]
    folders = sorted(path.name for path in (folder / "runs").iterdir())
    assert folders == sorted(f"{model}-seed{seed}" for model in MODELS for seed in (0, 1))
    saved = json.loads((folder / "comparison.json").read_text())
    assert "folder" not in saved["tables"][0]
    assert [row["model"] for row in saved["tables"][0]["rows"]] == list(MODELS)
    assert found.tables[0]["images"] == 360


def test_the_table_holds_the_results_of_the_runs(study):
    folder, found = study
    for row in found.tables[0]["rows"]:
        results = [json.loads((folder / f"runs/{row['model']}-seed{i}/result.json").read_text()) for i in (0, 1)]
        assert row["accuracies"] == pytest.approx([result["top1"] for result in results], abs=1e-6)
        assert row["accuracy"] == pytest.approx(np.mean(row["accuracies"]))
        assert (row["start"], row["interval_over"], row["epochs"]) == ("from scratch", "images", 2)
        assert row["learning"] == row["parameters"]
        assert row["memory"] is None
        assert row["joules"] is None
        assert row["joules_why"] == "the device has no energy counter"
        assert row["eager"] > 0
        assert row["compiled"] is None


def test_the_page_shows_the_batch_size_that_was_used(tmp_path):
    found = tiny(make_zoo(tmp_path / "zoo"), tmp_path / "study", models=MODELS[::-1], batch_size=999, seeds=1, epochs=1)
    size = found.tables[0]["common"]["batch_size"]
    assert 0 < size < 36
    page = (tmp_path / "study/comparison.html").read_text()
    assert f"batches of {size} " in page
    assert "; 1 epoch; one seed a model" in page


def test_disagreements_are_images_that_every_seed_of_one_and_no_seed_of_the_other_gets_right(study):
    folder, found = study
    correct = {
        m: np.stack([Predictions.read(folder / f"runs/{m}-seed{i}/predictions.npz").correct for i in (0, 1)])
        for m in MODELS
    }
    (pair,) = found.tables[0]["pairs"]
    one, other = correct[MODELS[0]], correct[MODELS[1]]
    assert pair["disagreements"]["one"]["count"] == (one.all(axis=0) & ~other.any(axis=0)).sum()
    assert pair["disagreements"]["other"]["count"] == (other.all(axis=0) & ~one.any(axis=0)).sum()
    assert pair["disagreements"]["other"]["count"] > 0
    for each in pair["disagreements"]["other"]["images"]:
        assert other[:, each["image"]].all()
        assert not one[:, each["image"]].any()


def test_the_page_is_complete_and_makes_no_request(study):
    folder, _ = study
    text = (folder / "comparison.html").read_text()
    assert text.count("<img ") == text.count('src="data:image/png')
    assert not re.search(r"<script src|<link|(src|href)=.?http|url\(", text)
    for heading in ("Over epochs", "Over seconds", "Class by class", "is right and", "What was not the same for all"):
        assert heading in text, heading
    assert "Wilson's 95 % interval over images" in text  # two seeds give none over seeds
    assert "Student's" not in text


def test_a_comparison_shows_itself(study):
    _, found = study
    assert repr(found).startswith("digits: 360 test images, 2 seeds, recipe digits\n")
    assert repr(found).endswith(str(found.page))
    html = found._repr_html_()
    for row in found.tables[0]["rows"]:
        assert f"<th>{row['name']}</th>" in html
        assert f"{100 * row['accuracy']:.2f} %" in html


def test_the_same_command_again_changes_no_run(study):
    folder, found = study
    before = states(folder)
    again = tiny("digits", folder, batch_size=64)
    assert states(folder) == before
    assert again.tables[0]["rows"] == found.tables[0]["rows"]


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A study of one dataset that is there and one that is not."""
    zoo = make_zoo(tmp_path / "zoo")
    present = StudyPart(MODELS, budget_of(zoo), {MODELS[0]: 98.1}, "how to get it")
    gone = StudyPart(MODELS, budget_of(tmp_path / "gone"), {MODELS[0]: 56.41}, "run this once with a network")
    monkeypatch.setitem(STUDIES, "two", NamedStudy("two datasets", (present, gone)))
    return zoo


def test_a_missing_dataset_is_reported_and_the_rest_goes_on(named, tmp_path):
    found = compare(study="two", seeds=1, device="cpu", compiled=False, output=tmp_path / "study")
    assert "the report's own figure (quoted)" in found.table
    assert "98.10 %" in found.table
    assert "nothing was run." in found.table
    assert "run this once with a network" in found.table
    page = found.page.read_text()
    assert "All datasets" in page
    assert "Nothing was run" in page
    assert "56.41 %" in page
    links = re.findall(r'<a href="([^"]+)"', page)
    assert len(links) == 2
    assert all((tmp_path / "study" / link).is_file() for link in links)
    assert str(tmp_path) not in json.loads((tmp_path / "study/comparison.json").read_text())["command"]


def test_a_study_that_ran_nothing_is_an_error_and_writes_no_page(named, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing was run: .*gone: .*run this once with a network"):
        compare(study="two", data=tmp_path / "gone", seeds=1, device="cpu", output=tmp_path / "study")
    assert list((tmp_path / "study").rglob("*.html")) == []


def test_one_dataset_of_a_study_can_be_chosen(named, tmp_path):
    options = {"study": "two", "seeds": 1, "device": "cpu", "compiled": False}
    found = compare(data=named, output=tmp_path / "study", **options)
    assert len(found.tables) == 1
    found = compare(data=f"{tmp_path / 'gone'}={named}", output=tmp_path / "moved", **options)
    assert found.tables[0]["rows"][0]["quoted"] == 56.41
    with pytest.raises(ValueError, match="has no dataset 'pets'"):
        compare(data="pets", output=tmp_path / "study", **options)
    with pytest.raises(ValueError, match=f"the studies are {', '.join(STUDIES)}"):
        compare(study="no-such-study", output=tmp_path / "study")


def checkpoint(folder):
    torch.manual_seed(5)
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=4))
    model.card = Card("mine", default_preprocess(model.config))
    save(model, folder)
    return str(folder)


def test_models_that_began_differently_get_no_verdict(tmp_path):
    models = (checkpoint(tmp_path / "mine") + "@full", "vit_pico_patch2_8")
    found = tiny(make_zoo(tmp_path / "zoo"), tmp_path / "study", models=models)
    table = found.tables[0]
    assert [row["start"] for row in table["rows"]] == ["fine-tuned (full)", "from scratch"]
    assert table["rows"][0]["name"] == "mine@full"
    assert not table["alike"]
    assert [pair["verdict"] for pair in table["pairs"]] == [""]
    page = (tmp_path / "study/comparison.html").read_text()
    assert "Different starts: no verdict" in page
    assert str(tmp_path) not in page  # local paths are not written to files that may be shared
    assert 'class="best"' not in page


def test_a_timm_classifier_is_compared_resumed_and_loaded_again(tmp_path):
    zoo = make_zoo(tmp_path / "zoo")
    models = ("vit_pico_patch2_8", "timm:test_resnet", "timm:test_vit")
    found = tiny(zoo, tmp_path / "study", models=models, image_size=32, seeds=1)
    before = states(tmp_path / "study")
    assert tiny(zoo, tmp_path / "study", models=models, image_size=32, seeds=1).tables == found.tables
    assert states(tmp_path / "study") == before
    rows = {row["model"]: row for row in found.tables[0]["rows"]}
    for name in models[1:]:
        model = load(tmp_path / f"study/runs/{name.replace(':', '-')}-seed0/model")
        assert isinstance(model, TimmClassifier)
        assert (model.config.classes, model.card.class_names) == (3, ("cat", "dog", "owl"))
        theirs = timm.create_model(name.removeprefix("timm:"), num_classes=3, in_chans=1, **SIZED.get(name, {})).eval()
        theirs.load_state_dict(load_file(model.card.files[0]))  # the keys are timm's own
        x = torch.randn(2, 1, 32, 32)  # the recipe's images are grey
        with torch.no_grad():
            assert torch.equal(model(x), theirs(x))
        assert rows[name]["parameters"] == sum(p.numel() for p in theirs.parameters())
        assert rows[name]["flops"] > 0
        assert rows[name]["kind"] == "timm"
    page = (tmp_path / "study/comparison.html").read_text()
    assert "A timm classifier is trained without dropout" in page
    assert "timm:test_resnet" in page


def test_weights_by_file_are_fine_tuned_and_their_folder_is_not_shown(tmp_path):
    weights = tmp_path / "mine.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", num_classes=7).state_dict(), weights)
    zoo, model = make_zoo(tmp_path / "zoo"), f"timm:test_resnet@{weights}@head"
    found = tiny(zoo, tmp_path / "study", models=(model, "vit_pico_patch2_8"), image_size=32, seeds=1)
    row = found.tables[0]["rows"][0]
    assert (row["name"], row["start"]) == ("timm:test_resnet@head", "fine-tuned (head)")
    assert row["learning"] < row["parameters"]
    folder = next((tmp_path / "study/runs").glob("timm*"))
    trained, first = load(folder / "model").network.state_dict(), load_file(weights)
    changed = {key for key in first if first[key].shape != trained[key].shape or (first[key] != trained[key]).any()}
    assert changed == {"fc.weight", "fc.bias"}
    assert str(tmp_path) not in found.page.read_text()
    assert str(tmp_path) not in found.command
    assert found.command.endswith(" --skip-compiled")
