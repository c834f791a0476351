"""What a card and a report show, and what of them goes into `config.json`."""

import json

import pytest

from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card, LoadReport, card_of, rows_to_text

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
