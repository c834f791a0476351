"""What the user says about a checkpoint: checked, compared with the files, reported; and the advice of errors works."""

import json
import re

import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

from conftest import assert_same, noise
from vitreous.api.explain import explain
from vitreous.data.preprocess import HALF
from vitreous.weights.assume import parse_assumptions
from vitreous.weights.inspect import inspect
from vitreous.weights.load import load

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def bare(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **SMALL))
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    return tmp_path / "mine.pth"


def refused(path, message, assume):
    with pytest.raises(ValueError, match=message) as error:
        load(path, assume=assume)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("assume", "message"),
    [
        ({"head": 4}, "nothing called head can be assumed: did you mean heads"),
        (
            {"zzz": 4},
            "nothing called zzz can be assumed: expected a field of",
        ),
        ({"heads": "six"}, "heads must be of type int, got 'six'"),
        ({"heads": True}, "heads must be of type int, got True"),
        ({"image_size": "big"}, "image_size must be one or two whole numbers of pixels, got 'big'"),
        ({"patch_size": (8, 8, 8)}, "patch_size must be one or two whole numbers of pixels"),
        ({"heads": 4, "activation": "nope"}, "activation must be one of gelu, .*, got 'nope'"),
        ({"architecture": "vit_bas_patch16_224"}, "'vit_bas_patch16_224' is not a supported one of timm's"),
        (["heads=4"], "assume takes a dict, such as {'heads': 6}"),
        ({"heads": 4, "width": 64}, "you assume width=64, but its tensors say width=48"),
        (
            {"heads": 4, "image_size": 16},
            "your assumption says image_size=16×16, which makes 2×2 patches, but",
        ),
        ({"heads": 4, "ignored": "typo"}, "you want typo ignored, and no tensor or field of config.json has that name"),
    ],
)
def test_an_assumption_that_cannot_be_used_is_refused_in_one_line(bare, assume, message):
    refused(bare, message, assume)


def test_a_resnet_has_nothing_to_assume(tmp_path):
    torch.save(resnet18().state_dict(), tmp_path / "resnet.pth")
    refused(tmp_path / "resnet.pth", "it is a ResNet, which has no heads to assume", {"heads": 4})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["heads"], "--assume takes FIELD=VALUE, such as heads=6, got 'heads'"),
        (["heads=six"], "--assume heads takes a value such as 12, got 'six'"),
        (["heads=4", "heads=6"], "--assume heads is given twice, as 4 and as 6"),
    ],
)
def test_a_flag_that_cannot_be_read_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        parse_assumptions(words)


def test_an_assumption_that_was_not_needed_is_reported_as_such(bare):
    report = load(bare, assume={"heads": 4, "depth": 3}).card.report
    assert report.assumed["heads"] == "4 (as you said)"
    assert report.assumed["depth"] == "3 (as you said, and its tensors too)"
    report = load("packaged:vit_tiny", assume={"heads": 3}).card.report
    assert report.assumed["heads"] == "3 (as you said, and config.json too)"


def test_what_was_assumed_is_in_doctors_report_and_on_the_page(bare):
    model = load(bare, assume={"heads": 4})
    assert "assumed           heads = 4 (as you said)" in str(inspect(model))
    payload = explain(torch.zeros(3, 32, 32), model, views=["card"]).payload()
    assert "heads = 4 (as you said)" in payload.to_bytes().decode("utf-8", "ignore")


def test_the_report_gives_back_the_flags_that_were_passed(bare):
    tensors = torch.load(bare) | {"gate": torch.ones(3)}
    torch.save(tensors, bare)
    words = ["heads=4", "image_size=32x32", "ignored=gate"]
    flags = load(bare, assume=parse_assumptions(words)).card.report.flags()
    assert flags == "".join(f" --assume {word}" for word in words)


def test_a_field_of_a_section_of_a_config_can_be_ignored(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **SMALL))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    pretrained = {"input_size": [3, 32, 32], "mean": HALF, "std": HALF, "mystery": 3}
    arguments = {name: value for name, value in SMALL.items() if name != "num_classes"}
    config = {"architecture": "vit_base_patch16_224", "num_classes": 7, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config | {"pretrained_cfg": pretrained}))
    refused(tmp_path, "pretrained_cfg has the field mystery=3, .*--assume ignored=mystery", {})
    ours = load(tmp_path, assume={"ignored": "mystery"})
    assert "mystery (as you said)" in ours.card.report.ignored
    with torch.no_grad():
        assert_same(ours(X), theirs(X))


KINDS = ("N", "NAME", "EPS", "HEIGHTxWIDTH")
ASKED = {  # an architecture of timm's, small, and what the user knows of it
    "clip": ("vit_base_patch16_clip_224", {"activation": "gelu"}),
    "quick": ("vit_base_patch16_clip_quickgelu_224", {"activation": "quick_gelu"}),
    "sixteen_heads": ("vit_base_patch16_gap_224", {"heads": 16, "activation": "gelu"}),
    "no_qkv_bias": ("vit_base_patch16_224_miil", {}),
    "relative": ("vit_relpos_small_patch16_224", {"image_size": "64x64"}),
    "rotary": ("vit_small_patch16_rope_224", {"architecture": "vit_small_patch16_rope_224"}, {"img_size": 224}),
    "scaled": ("deit3_small_patch16_224", {"architecture": "deit3_small_patch16_224"}),
    "siglip": ("vit_base_patch16_siglip_224", {"activation": "gelu_tanh"}),
    "no_final_norm": ("vit_tiny_patch16_224", {}, {"final_norm": False}),
    "no_square": ("vit_tiny_patch16_224", {"image_size": "32x96"}, {"img_size": (32, 96)}),
    "other_patches": ("vit_tiny_patch16_224", {}, {"patch_size": (16, 32), "img_size": (64, 128)}),
    "fewer_blocks": ("vit_tiny_patch16_224", {"heads": 3}, {"depth": 7}),
    "scaled_clip": ("vit_base_patch16_clip_224", {"activation": "gelu"}, {"init_values": 0.1, "reg_tokens": 2}),
}


def error_of(path, words):
    try:
        load(path, assume=parse_assumptions(words))
    except ValueError as error:
        return error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("case", ASKED)
@torch.no_grad()
def test_following_the_advice_of_the_error_makes_a_bare_file_exact(case, tmp_path):
    """A machine reads the advice; where it names a kind of value (N, NAME) it fills in what the user would know."""
    name, knows, changes = (*ASKED[case], {})[:3]
    theirs = noise(timm.create_model(name, num_classes=7, **{"img_size": 64} | changes))
    for module in theirs.modules():  # tables that timm computes and does not store
        getattr(module, "init_non_persistent_buffers", lambda: None)()
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    words: list[str] = []
    while (error := error_of(tmp_path / "mine.pth", words)) is not None:
        advice = re.findall(r"--assume (\w+)=([\w.x-]+)", str(error))
        new = [f"{field}={knows[field] if value in KINDS else value}" for field, value in advice]
        assert set(new) - set(words), error
        words += [word for word in new if word not in words]
    ours = load(tmp_path / "mine.pth", assume=parse_assumptions(words))
    assert words
    x = torch.randn(1, 3, *ours.config.size)
    assert_same(ours(x), theirs(x))
