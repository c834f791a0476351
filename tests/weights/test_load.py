"""What loading refuses, keeps and says: found by using the package as a stranger would."""

import pytest
import timm
import torch
import transformers

from conftest import assert_same, noise
from vitreous.data.preprocess import HALF
from vitreous.models.vit import ViT, ViTConfig
from vitreous.weights.card import Card, usual_preprocess
from vitreous.weights.convert import convert
from vitreous.weights.load import load
from vitreous.weights.save import save
from vitreous.weights.sidecar import imagenet_names

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 7}
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def theirs():
    return noise(timm.create_model("vit_base_patch16_224", **SMALL))


def ours_with_half_statistics():
    from dataclasses import replace

    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=3)))
    preprocess = replace(usual_preprocess(model.config), mean=HALF, std=HALF)
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
    again = load(tmp_path / out, heads=4)
    assert again.card.preprocess.mean == HALF
    assert again.card.preprocess.std == HALF
    assert again.card.class_names == ("cat", "dog", "owl")
    assert "preprocessing" not in again.card.report.assumed
    assert_same(again(X), model(X))


def test_an_assumption_stays_one_through_our_own_format(theirs, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    first = load(tmp_path / "mine.pth", heads=4)
    assert "preprocessing" in first.card.report.assumed
    save(first, tmp_path / "saved")
    assert "preprocessing" in load(tmp_path / "saved").card.report.assumed


@pytest.mark.parametrize("classes", [3, 1000])
def test_names_that_were_assumed_of_another_head_are_no_remark(classes, tmp_path):
    """A model that was fine-tuned from a checkpoint without names, as earlier versions wrote it."""
    model = ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, classes=classes))
    own = ("cat", "dog", "owl")
    model.card = Card("x", usual_preprocess(model.config), class_names=own if classes == 3 else imagenet_names())
    model.card.report.assumed["class names"] = "ImageNet-1k's names (there are 1,000 classes)"
    save(model, tmp_path)
    assert ("class names" in load(tmp_path).card.report.assumed) == (classes == 1000)


def test_a_model_of_ours_may_have_any_name(tmp_path):
    for name in ("samples", "swin-or-not", "hybrid"):
        save(ours_with_half_statistics(), tmp_path / name)
        assert load(tmp_path / name).card.class_names == ("cat", "dog", "owl")


@pytest.mark.parametrize("name", ["sample.pth", "evaluation.pth"])
def test_a_word_that_begins_as_a_family_does_is_none(theirs, tmp_path, name):
    torch.save(theirs.state_dict(), tmp_path / name)
    assert load(tmp_path / name, heads=4).config.classes == 7


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("vit_small_patch16_rope_ape_224.pth", "rotary"),
        ("vit_small_patch16_dinov3.pth", "DINOv3"),
        ("vit_base_patch16_rpn_224.pth", "post-norm"),
        ("eva02_tiny_patch14_224.pth", "EVA"),
        ("beit_base_patch16_224.pth", "BEiT"),
    ],
)
def test_a_telling_file_name_is_heeded(theirs, name, family, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / name)
    with pytest.raises(ValueError, match=family):
        load(tmp_path / name, heads=4)


@torch.no_grad()
def test_no_positions_are_taken_only_when_said(theirs, tmp_path):
    state = theirs.state_dict()
    del state["pos_embed"]
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="rotary positions are not supported"):
        load(tmp_path / "mine.pth", heads=4, image_size=32)
    theirs.pos_embed.zero_()
    assert_same(load(tmp_path / "mine.pth", heads=4, image_size=32, position="none")(X), theirs(X))


def test_a_missing_final_norm_is_an_error_unless_said(theirs, tmp_path):
    state = {key: value for key, value in theirs.state_dict().items() if not key.startswith("norm.")}
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="final_norm=False"):
        load(tmp_path / "mine.pth", heads=4)
    assert not load(tmp_path / "mine.pth", heads=4, final_norm=False).config.final_norm


def test_an_unknown_norm_is_an_error(tmp_path):
    config = transformers.OwlViTVisionConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
    )
    transformers.OwlViTVisionModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pre_layernorm"):
        load(tmp_path)


def test_whole_numbers_are_no_weights(theirs, tmp_path):
    state = {key: (value * 100).to(torch.int8) for key, value in theirs.state_dict().items()}
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="quantised"):
        load(tmp_path / "mine.pth", heads=4)


@torch.no_grad()
def test_a_training_modules_extras_are_left_out(theirs, tmp_path):
    state = {f"model.{key}": value for key, value in theirs.state_dict().items()}
    state |= {"loss.weight": torch.ones(7), "criterion.pos_weight": torch.ones(7)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "lightning.ckpt")
    ours = load(tmp_path / "lightning.ckpt", heads=4)
    assert_same(ours(X), theirs(X))
    assert set(ours.card.report.ignored) == {"loss.weight", "criterion.pos_weight"}


def test_averaged_weights_are_taken_and_said(theirs, tmp_path):
    other = {key: torch.zeros_like(value) for key, value in theirs.state_dict().items()}
    torch.save({"model": other, "model_ema": theirs.state_dict()}, tmp_path / "mine.pth")
    ours = load(tmp_path / "mine.pth", heads=4)
    assert_same(ours(X), theirs(X).detach())
    assert any("model_ema" in line for line in ours.card.report.remarks())


def test_what_was_guessed_is_said(theirs, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    report = load(tmp_path / "mine.pth", heads=4).card.report
    assert set(report.assumed) == {"image size", "pool", "norm_eps", "activation", "preprocessing"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": "nonsense"}, "resize must be one of google"),
        ({"image_size": 100_000}, "patches: 65,536 at most"),
        ({"image_size": 33}, r"try image_size=\(32, 32\)"),
        ({"depht": 3}, "unknown option depht"),
    ],
)
def test_a_wrong_option_is_refused(theirs, options, message, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "mine.pth", heads=4, **options)
