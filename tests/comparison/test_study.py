"""A study's folder: written once, read again, refused to another study; and the studies known by name."""

import json
from dataclasses import replace

import pytest
from tiny_studies import MODELS, budget_of

from vitreous.comparison.study import STUDIES, open_study, read_study
from vitreous.training.recipes import RECIPES


@pytest.fixture
def folder(tmp_path):
    opened = open_study(tmp_path / "study", MODELS, budget_of("digits"), 2)
    assert [run.config.seed for run in opened.runs()] == [0, 0, 1, 1]
    return opened.folder


def test_a_study_is_read_as_it_was_written(folder):
    assert open_study(folder, MODELS, budget_of("digits"), 2) == read_study(folder)


def test_another_study_in_the_folder_is_refused_in_one_line(folder):
    with pytest.raises(ValueError, match=r"holds another study \(epochs 2 → 3\): choose another --output"):
        open_study(folder, MODELS, replace(budget_of("digits"), epochs=3), 2)
    with pytest.raises(ValueError, match=r"seeds 2 → 5"):
        open_study(folder, MODELS, budget_of("digits"), 5)


def test_a_study_of_another_version_is_refused_in_one_line(folder):
    values = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**values, "version": 99}))
    with pytest.raises(ValueError, match=r"study\.json was written by another version \(99\): choose another --output"):
        open_study(folder, MODELS, budget_of("digits"), 2)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"holds no study, but thesis.tex"):
        open_study(tmp_path, MODELS, budget_of("digits"), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_reports_figures_are_quoted_beside_the_right_model():
    femto, tuned = "vit_femto_patch4_32", ("torchvision:vit_b_16@attention", "torchvision:resnet152@full")
    drawn = f"{femto}:position_std=1"  # as the report draws its positions
    quoted = {(name, p.budget.data): p.quoted for name, s in STUDIES.items() for p in s.parts}
    assert quoted == {
        ("scratch-vit-vs-resnet", "mnist"): {femto: 98.10},
        ("scratch-vit-vs-resnet", "cifar10"): {femto: 56.41},
        ("scratch-vit-vs-cnn", "mnist"): {drawn: 98.10},
        ("scratch-vit-vs-cnn", "cifar10"): {drawn: 56.41},
        ("finetuned-vit-vs-resnet", "cifar10"): dict(zip(tuned, (97.97, 96.67), strict=True)),
        ("finetuned-vit-vs-resnet", "cifar100"): dict(zip(tuned, (87.41, 82.67), strict=True)),
        ("finetuned-vit-vs-resnet", "flowers102"): dict(zip(tuned, (89.12, 89.02), strict=True)),
        ("finetuned-vit-vs-resnet", "pets"): dict(zip(tuned, (93.65, 93.24), strict=True)),
    }
    assert "not N(0, 1)" in STUDIES["scratch-vit-vs-resnet"].description  # beside its figure, that ViT differs
    for study in STUDIES.values():
        for part in study.parts:
            assert set(part.quoted) <= set(part.models)
            assert part.budget.recipe in RECIPES
            assert part.budget.batch_size == 64
