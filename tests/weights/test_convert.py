"""Every conversion keeps the function, the preprocessing and the class names."""

import json
from dataclasses import replace

import pytest
import torch

from conftest import assert_same, noise
from vitreous.data.preprocess import HALF, default_preprocess
from vitreous.models.text import with_sentences
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card
from vitreous.weights.convert import convert
from vitreous.weights.load import load
from vitreous.weights.save import save

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def ours_with_half_statistics():
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=3)))
    preprocess = replace(default_preprocess(model.config), mean=HALF, std=HALF)
    model.card = Card(name="mine", preprocess=preprocess, class_names=("cat", "dog", "owl"))
    return model


@pytest.mark.parametrize(
    ("to", "out"),
    [
        ("torchvision", "folder"),
        ("torchvision", "file.pth"),
        ("timm", "file.safetensors"),
        ("google", "file.npz"),
        ("timm", "folder"),
        ("huggingface", "folder"),
        ("vitreous", "folder"),
    ],
)
@torch.no_grad()
def test_preprocessing_and_class_names_survive_every_conversion(to, out, tmp_path):
    model = ours_with_half_statistics()
    convert(model, tmp_path / out, to=to)
    again = load(tmp_path / out, assume={"heads": 4})
    assert again.card.preprocess.mean == HALF
    assert again.card.preprocess.std == HALF
    assert again.card.class_names == ("cat", "dog", "owl")
    assert "preprocessing" not in again.card.report.assumed
    assert_same(again(X), model(X))


@pytest.mark.parametrize("to", ["timm", "torchvision", "huggingface", "google"])
def test_a_head_with_a_norm_is_held_by_no_other_library(to, tmp_path):
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=3, head_norm=True)))
    with pytest.raises(ValueError, match="does not support head_norm=True"):
        convert(model, tmp_path / "folder", to=to)


@pytest.mark.parametrize("to", ["timm", "torchvision", "huggingface", "google"])
@pytest.mark.parametrize("dense", ["linear", "decoder"])
def test_a_dense_head_is_held_by_no_other_library(to, dense, tmp_path):
    model = ours_with_half_statistics()
    model.reset_dense(3, dense)
    model.card.task = "segment"
    with pytest.raises(
        ValueError, match=f"{to} has no head with a class for each pixel: export the model as onnx"
    ) as caught:
        convert(model, tmp_path / "folder", to=to)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    convert(model, tmp_path / "folder", to="vitreous")
    assert load(tmp_path / "folder").config == model.config


@pytest.mark.parametrize("to", ["timm", "torchvision", "huggingface", "google", "vitreous"])
@pytest.mark.parametrize("task", ["multilabel", "regress"])
@torch.no_grad()
def test_the_task_survives_every_conversion(to, task, tmp_path):
    model = ours_with_half_statistics()
    model.card = replace(model.card, task=task)
    wanted = model(X)
    if task == "multilabel":
        model.card.thresholds = (0.25, 0.5, 0.75)
    else:
        model.card.standard = ((10.0, 2.0),) * 3
        wanted = wanted * 2 + 10
    convert(model, tmp_path / "folder", to=to)
    again = load(tmp_path / "folder", assume={"heads": 4})
    assert (again.card.task, again.card.thresholds) == (task, model.card.thresholds)
    assert again.card.standard is None
    assert again.card.independent == (task == "multilabel")
    assert_same(again(X), wanted)
    if to == "huggingface":
        problem = json.loads((tmp_path / "folder/config.json").read_text())["problem_type"]
        assert problem == {"multilabel": "multi_label_classification", "regress": "regression"}[task]


@pytest.mark.parametrize("to", ["timm", "torchvision", "huggingface", "google"])
def test_the_norms_of_the_first_transformer_have_no_form_in_other_libraries(to, tmp_path):
    shape = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 1, "heads": 4, "classes": 3}
    model = ViT(ViTConfig(**shape, residual_norm=True))
    with pytest.raises(ValueError, match="residual_norm=True"):
        convert(model, tmp_path / "folder", to)
    assert not (tmp_path / "folder").exists()


def renamed():
    """Another checkpoint of the same shapes."""
    model = ours_with_half_statistics()
    model.card.class_names = ("elm", "fir", "oak")
    return model


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("vitreous", "google", "model.safetensors"),
        ("huggingface", "timm", "preprocessor_config.json"),
        ("huggingface", "vitreous", "preprocessor_config.json"),
    ],
)
def test_files_are_not_written_among_those_of_another_checkpoint(first, second, kept, tmp_path):
    convert(renamed(), tmp_path, first)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"holds {kept} of another checkpoint, .* name another folder"):
        convert(ours_with_half_statistics(), tmp_path, second)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_weights_written_over_those_of_a_folder_bring_their_own_names(tmp_path):
    convert(renamed(), tmp_path, "vitreous")
    convert(ours_with_half_statistics(), tmp_path / "model.safetensors", "timm")
    for name in (tmp_path, tmp_path / "model.safetensors"):
        assert load(name).card.class_names == ("cat", "dog", "owl")


def test_the_json_of_another_file_is_not_written_over(tmp_path):
    model = ours_with_half_statistics()
    convert(model, tmp_path / "mine.pth", "timm")
    convert(model, tmp_path / "mine.safetensors", "timm")  # the same model: the same .json
    with pytest.raises(ValueError, match=r"mine\.json describes mine\.\w+, and would be written over"):
        convert(renamed(), tmp_path / "mine.npz", "google")
    assert not (tmp_path / "mine.npz").exists()
    convert(renamed(), tmp_path / "yours.pth", "timm")
    convert(model, tmp_path / "yours.pth", "timm")  # written over with its own .json
    assert load(tmp_path / "yours.pth").card.class_names == ("cat", "dog", "owl")


@torch.no_grad()
def test_an_embedding_is_no_classifier_after_a_conversion(tmp_path):
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=3, head_bias=False)))
    model.card = Card(name="clip", preprocess=default_preprocess(model.config), head="projection")
    convert(model, tmp_path / "folder", "timm")
    again = load(tmp_path / "folder")
    assert again.card.head == "projection"
    assert_same(again(X), model(X))


def test_words_as_classes_are_neither_saved_nor_converted(tmp_path):
    model = ours_with_half_statistics()
    worded = with_sentences(model, torch.randn(2, 3), torch.tensor(1.0))
    worded.card = replace(model.card, class_names=("a cat", "a dog"))
    for to in ("timm", "vitreous"):
        with pytest.raises(ValueError, match="words as classes are not stored: save the model without them"):
            convert(worded, tmp_path / "folder", to)
    with pytest.raises(ValueError, match="or export it as a graph"):
        save(worded, tmp_path / "folder")
    assert not list(tmp_path.iterdir())
