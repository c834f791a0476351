"""What a card and a report show, and what of them goes into `config.json`."""

import json
from dataclasses import replace

import pytest
import torch

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card, LoadReport, card_of, fold_standard, rows_to_text
from vitreous.weights.load import load
from vitreous.weights.save import save

PREPROCESS = Preprocess(size=(16, 24), resize=(16, 24), mean=HALF, std=HALF)
SMALL = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 1, "heads": 2}


def test_a_card_is_readable():
    card = Card("mine", PREPROCESS, class_names=("cat", "dog"))
    assert repr(card).splitlines() == [
        "Card: mine",
        "  family          ViT",
        "  image size      16×24",
        "  preprocessing   squash to 16×24 (bicubic), mean 0.5 0.5 0.5, std 0.5 0.5 0.5",
        "  classes         2: cat, dog",
        "  assumed         nothing",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "  classes         without names"),
        ({"head": "none"}, "  head            none"),
        ({"head": "projection"}, "  head            projection"),
        ({"class_names": ("sun", "rain"), "task": "multilabel"}, "  labels          2: sun, rain"),
        ({"class_names": ("angle",), "task": "regress"}, "  numbers         1: angle"),
        ({"class_names": ("cat", "not"), "task": "segment"}, "  pixel classes   2: cat, not"),
        ({"task": "segment"}, "  task            segment"),
        ({"task": "multilabel", "thresholds": (0.25, 0.5)}, "  thresholds      class 0 0.25, class 1 0.5"),
        ({"report": LoadReport(assumed={"heads": "3 (usual)"})}, "  assumed         heads = 3 (usual)"),
    ],
)
def test_a_card_shows_what_is_unknown_and_assumed(changes, line):
    assert line in repr(Card("mine", PREPROCESS, **changes)).splitlines()


def test_html_is_escaped():
    card = Card("<b>", PREPROCESS, class_names=("<i>",), report=LoadReport(format="<u>"))
    for page in (card._repr_html_(), card.report._repr_html_()):
        assert page.startswith("<table>")
        assert not any(tag in page for tag in ("<b>", "<i>", "<u>"))


def test_a_report_lists_everything_and_shortens_long_lists():
    report = LoadReport("timm", 3, "float32", ("module.",), ignored=[f"k{n}" for n in range(9)], nonfinite={"a": 2})
    text = repr(report)
    for line in ("unwrapped        module.", "ignored          … and 3 more", "NaN or infinite  a: 2 values"):
        assert f"  {line}\n" in f"{text}\n"
    assert "k6" not in text


def test_labels_of_any_length_stay_in_one_column():
    assert rows_to_text([("a" * 20, "1"), ("b", "2")]).splitlines() == [f"  {'a' * 20}  1", f"  b{' ' * 21}2"]
    assert rows_to_text([]) == ""


def test_a_dict_of_the_card_is_json():
    stored = Card("mine", PREPROCESS, report=LoadReport(assumed={"heads": "3", "preprocessing": "usual"})).to_dict()
    assert json.loads(json.dumps(stored)) == stored
    assert stored["assumed"] == {"preprocessing": "usual"}  # the config states the heads from now on


def test_a_model_made_in_memory_has_the_usual_card_and_a_resnet_has_none():
    assert card_of(ViT(ViTConfig(**SMALL)), "x").preprocess.size == (16, 16)
    assert card_of(ViT(ViTConfig(**SMALL, channels=1))).preprocess.mean == (0.5,)
    with pytest.raises(ValueError, match=r"set model\.card"):
        card_of(ResNet(ResNetConfig(18, 2)))


def test_several_labels_are_each_true_or_false_by_itself():
    assert Card("mine", PREPROCESS, task="multilabel").independent
    assert not Card("mine", PREPROCESS).independent
    assert Card("sentences", PREPROCESS, independent=True).independent


def test_a_dense_model_made_in_memory_has_pixel_classes():
    assert card_of(ViT(ViTConfig(**SMALL, dense="linear", dense_blocks=(0,)))).task == "segment"


def numbers(kind):
    if kind == "resnet":
        model = ResNet(ResNetConfig(18, 2, image_size=32)).eval()
        noise(model.fc)  # noise is no variance of a batch norm
    else:
        distilled = {"distillation_token": True, "distillation_head": True} if kind == "distilled" else {}
        model = noise(ViT(ViTConfig(**SMALL, classes=2, **distilled)))
    card = {"task": "regress", "class_names": ("width", "weight"), "standard": ((180.0, 25.0), (-0.5, 0.001))}
    model.card = Card("mine", replace(PREPROCESS, size=model.config.size, resize=model.config.size), **card)
    return model


@pytest.mark.parametrize("kind", ["vit", "distilled", "resnet"])
@torch.no_grad()
def test_folded_numbers_are_in_their_own_units(kind):
    model = numbers(kind)
    x = torch.randn(4, 3, *model.config.size)
    wanted = model(x).double() * torch.tensor([25.0, 0.001]) + torch.tensor([180.0, -0.5])
    fold_standard(model)
    assert model.card.standard is None
    torch.testing.assert_close(model(x).double(), wanted, rtol=1e-6, atol=1e-6)
    again = model(x)
    fold_standard(model)  # what is folded stays
    assert torch.equal(model(x), again)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
@torch.no_grad()
def test_a_model_that_still_learns_numbers_is_folded_when_it_is_loaded(kind, tmp_path):
    model = numbers(kind)
    save(model, tmp_path)
    found = load(tmp_path)
    fold_standard(model)
    x = torch.randn(2, 3, *model.config.size)
    assert torch.equal(found(x), model(x))
    assert (found.card.task, found.card.standard, found.card.class_names) == ("regress", None, ("width", "weight"))


def test_numbers_without_a_bias_cannot_be_folded():
    model = numbers("vit")
    model.head.bias = None
    with pytest.raises(ValueError, match="whose last layer has a bias"):
        fold_standard(model)


@pytest.mark.parametrize("build", [lambda: ViT(ViTConfig(classes=3, **SMALL)), lambda: ResNet(ResNetConfig(classes=3))])
def test_a_new_heads_classes_have_none_of_the_old_ones_names(build):
    model = build()
    model.card = old = Card(
        "mine", PREPROCESS, class_names=("a", "b", "c"), task="multilabel", thresholds=(0.1, 0.2, 0.3), independent=True
    )
    model.reset_classifier(5)
    card = model.card
    assert (card.class_names, card.thresholds, card.task, card.independent) == (None, None, "classify", False)
    assert (card.head, card.label(4), card.preprocess) == ("classifier", "class 4", PREPROCESS)
    model.reset_classifier(0)
    assert model.card.head == "none"
    assert old.class_names == ("a", "b", "c")  # of another model, perhaps
    if isinstance(model, ViT):
        model.reset_dense(4, "linear")
        assert (model.card.task, model.card.head) == ("segment", "classifier")
