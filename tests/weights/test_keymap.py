"""Key templates: what they match in both directions, what is missing, and what another library cannot hold."""

import pytest
import torch

from conftest import assert_same, noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.adapt import adapted
from vitreous.weights.convert import convert
from vitreous.weights.keymap import JOIN_QKV, TABLE, TOKEN, TRANSPOSE, pattern, rule, strip_prefix, to_ours, to_theirs
from vitreous.weights.positions import fold_class_position
from vitreous.weights.safety import CheckpointError

RULES = (
    rule("cls_token", "embed.cls", transform=TOKEN),
    rule("pos_embed", "embed.table", transform=TABLE),
    rule("head.{p}", "classifier.{p}", older=["fc.{p}"]),
    rule("blocks.{n}.mlp.fc1.weight", "layer{n}/kernel", transform=TRANSPOSE),
    rule("blocks.{n}.attn.qkv.{p}", "q.{n}.{p}", "k.{n}.{p}", "v.{n}.{p}", transform=JOIN_QKV),
)


@pytest.fixture
def theirs():
    parts = {f"{part}.{n}.weight": torch.randn(4, 4) for part in "qkv" for n in (0, 11)}
    return parts | {
        "embed.cls": torch.randn(4),
        "embed.table": torch.randn(5, 4),
        "classifier.bias": torch.randn(3),
        "layer11/kernel": torch.randn(4, 8),
    }


def test_every_tensor_is_translated_there_and_back(theirs):
    ours, stray = to_ours(theirs | {"extra": torch.zeros(1)}, RULES)
    assert stray == ["extra"]
    assert {name: tuple(value.shape) for name, value in ours.items()} == {
        "blocks.0.attn.qkv.weight": (12, 4),
        "blocks.11.attn.qkv.weight": (12, 4),
        "cls_token": (1, 1, 4),
        "pos_embed": (1, 5, 4),
        "head.bias": (3,),
        "blocks.11.mlp.fc1.weight": (8, 4),
    }
    joined = torch.cat([theirs[f"{part}.11.weight"] for part in "qkv"])
    assert torch.equal(ours["blocks.11.attn.qkv.weight"], joined)
    assert torch.equal(ours["blocks.11.mlp.fc1.weight"], theirs["layer11/kernel"].T)
    back = to_theirs(ours, RULES, ViTConfig())
    assert back.keys() == theirs.keys()
    for name, value in back.items():
        assert torch.equal(value, theirs[name]), name
        assert value.is_contiguous(), name  # as safetensors wants it


def test_an_older_spelling_is_read_and_never_written():
    ours, stray = to_ours({"fc.bias": torch.ones(3)}, RULES)
    assert (list(ours), stray) == (["head.bias"], [])
    assert list(to_theirs(ours, RULES, ViTConfig())) == ["classifier.bias"]


def test_a_part_that_is_missing_is_named(theirs):
    del theirs["k.11.weight"]
    with pytest.raises(CheckpointError, match=r"has q\.11\.weight but not k\.11\.weight: it is incomplete"):
        to_ours(theirs, RULES)


def test_a_tensor_that_the_target_lacks_is_named():
    with pytest.raises(ValueError, match="no name for reg_token"):
        to_theirs({"reg_token": torch.zeros(1)}, RULES, ViTConfig())


def test_a_template_matches_complete_names_only():
    found = pattern("blocks.{n}.{p}")
    assert found.fullmatch("blocks.10.bias")
    for name in ("blocksx10.bias", "blocks.a.bias", "blocks.1.biases", "x.blocks.1.bias"):
        assert not found.fullmatch(name), name
    assert pattern("mask.*").fullmatch("mask.anything.at.all")


def test_a_prefix_is_taken_off_once_where_there_is_one():
    found = strip_prefix("vit.", "model.")({"vit.a": 1, "model.b": 2, "c": 3, "vit.vit.d": 4, "x.vit.e": 5})
    assert found == {"a": 1, "b": 2, "c": 3, "vit.d": 4, "x.vit.e": 5}


def test_the_class_tokens_position_goes_into_the_token_where_registers_stand_behind_it():
    given = {"cls_token": torch.randn(1, 1, 4), "pos_embed": torch.randn(1, 10, 4), "head.bias": torch.zeros(2)}
    assert fold_class_position(given) is given
    given["reg_token"] = torch.randn(1, 2, 4)
    before = dict(given)
    folded = fold_class_position(given)
    assert torch.equal(folded["cls_token"], given["cls_token"] + given["pos_embed"][:, :1])
    assert torch.equal(folded["pos_embed"], given["pos_embed"][:, 1:])
    assert folded.keys() == given.keys()
    assert given == before  # what was handed in stays as it was


def test_what_torchvision_cannot_hold_is_named(tmp_path):
    model = ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, registers=2, layer_scale=1e-5))
    with pytest.raises(ValueError, match=r"registers=2.*layer_scale=1e-05"):
        convert(model, tmp_path / "out.pth", to="torchvision")
    assert not list(tmp_path.iterdir())


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned", "sine-2d", "none"])
def test_positions_become_a_learned_table_with_one_for_the_class_token(position):
    config = ViTConfig(
        image_size=16, patch_size=8, width=16, depth=1, heads=2, position=position, prefix_positions=False
    )
    model = noise(ViT(config))
    tensors, plain = adapted(model, prefix_positions=1)
    assert (plain.position, plain.prefix_positions) == ("learned", True)
    assert tensors["pos_embed"].shape == (1, 5, 16)
    again = ViT(plain).eval()
    again.load_state_dict(tensors)
    x = torch.randn(2, 3, 16, 16)
    assert_same(again(x), model.eval()(x))


@torch.no_grad()
def test_a_missing_bias_becomes_zeros():
    model = noise(ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, classes=3, head_bias=False)))
    tensors, config = adapted(model, prefix_positions=None)
    assert config.head_bias
    assert tensors["head.bias"].tolist() == [0, 0, 0]
    assert "head.bias" not in adapted(model, prefix_positions=None, head_bias=False)[0]
