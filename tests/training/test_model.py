"""A config and its data to a model: fresh or from a checkpoint, with the right head and preprocessing."""

from dataclasses import replace

import pytest
import torch
from tiny_runs import make_images, parts_of, plain
from two_towers import write_open_clip, write_siglip

from conftest import noise
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.preprocess import default_preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.words import with_words
from vitreous.training.loop import train
from vitreous.training.model import build_model, choose_forward, is_convolutional
from vitreous.training.setup import make_teacher
from vitreous.weights.card import Card
from vitreous.weights.load import load
from vitreous.weights.save import save

DATA = ImageDataset("zoo", ("cat", "dog", "owl"), (0, 1, 2), lambda i: None)
SMALL = ViTConfig(image_size=16, patch_size=4, width=16, depth=2, heads=2, classes=5)


@pytest.fixture
def checkpoint(tmp_path):
    model = noise(ViT(SMALL))
    save(model, tmp_path / "model")
    return str(tmp_path / "model")


def test_fresh_weights_follow_the_seed():
    one, same, other = (build_model(plain("x", seed=seed), DATA) for seed in (0, 0, 1))
    for (name, a), b, c in zip(one.state_dict().items(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert not a.any() or a.dim() == 1 or not torch.equal(a, c), name
    assert one.training
    assert one.card.class_names == ("cat", "dog", "owl")
    assert one.config.classes == 3


def test_fields_of_the_config_reach_the_model():
    model = build_model(
        plain("x", image_size=12, channels=1, dropout=0.2, stochastic_depth=0.3, statistics="unit"), DATA
    )
    assert model.config.size == (12, 12)
    assert (model.config.dropout, model.config.stochastic_depth) == (0.2, 0.3)
    assert (model.card.preprocess.size, model.card.preprocess.mean, model.card.preprocess.std) == ((12, 12), (0,), (1,))


def test_small_images_come_whole_and_large_ones_lose_their_edges():
    small, large = (build_model(plain("x", model="resnet18", image_size=size), DATA) for size in (64, 224))
    assert small.card.preprocess.resize == 64
    assert large.card.preprocess.resize == 256


def test_a_checkpoint_keeps_its_weights_and_gets_a_fresh_head(checkpoint):
    lines = []
    model = build_model(plain("x", model=checkpoint, pretrained=True, dropout=0.3), DATA, lines.append)
    before = load(checkpoint)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.state_dict().items() if "head" not in k)
    assert model.head.weight.shape == (3, 16)
    assert not model.head.weight.any()
    assert model.config.dropout == 0.3
    assert model.pos_drop.p == 0.3
    assert any("new head for 3 classes replaces the one for 5" in line for line in lines)


def test_what_a_checkpoint_dropped_while_it_was_trained_is_not_dropped_again(tmp_path):
    save(noise(ViT(ViTConfig(**{**vars(SMALL), "dropout": 0.4, "stochastic_depth": 0.2}))), tmp_path)
    model = build_model(plain("x", model=str(tmp_path), pretrained=True), DATA, lambda line: None)
    assert (model.config.dropout, model.config.stochastic_depth) == (0.0, 0.0)
    assert (model.blocks[1].mlp.drop.p, model.blocks[1].skip.p) == (0.0, 0.0)


def test_what_was_assumed_of_a_checkpoint_is_none_of_the_new_models_remarks(tmp_path):
    model = noise(ViT(SMALL))
    model.card = Card("x", default_preprocess(SMALL))
    model.card.report.assumed = {"preprocessing": "as is usual", "class names": "ImageNet-1k's"}
    save(model, tmp_path)
    lines = []
    tuned = build_model(plain("x", model=str(tmp_path), pretrained=True), DATA, lines.append)
    assert "assumed preprocessing = as is usual" in lines
    assert tuned.card.report.assumed == {}


def test_a_checkpoint_of_the_same_classes_keeps_its_head(tmp_path):
    model = noise(ViT(ViTConfig(**{**vars(SMALL), "classes": 3})))
    model.card = Card("x", default_preprocess(model.config), class_names=DATA.class_names)
    save(model, tmp_path)
    lines = []
    again = build_model(plain("x", model=str(tmp_path), pretrained=True), DATA, lines.append)
    assert torch.equal(again.head.weight, model.head.weight)
    assert any("its head is kept" in line for line in lines)


@pytest.mark.parametrize("write", [write_open_clip, write_siglip])
def test_a_head_begun_with_text_gives_the_zero_shot_logits_before_the_first_step(write, tmp_path):
    write(tmp_path)
    zoo = make_images(tmp_path / "zoo", ("n02123045_tabby_cat", "dog", "church"), each=4, size=32)
    settings = {"model": str(tmp_path), "pretrained": True, "policy": "head", "head": "text"}
    parts = parts_of(plain(zoo, batch_size=4, template="a photo of {}", **settings))
    words = ["church", "dog", "tabby cat"]  # in the folders' order
    zero_shot = with_words(load(tmp_path), words, ["a photo of {}"])
    save(parts.model, tmp_path / "model")
    with torch.no_grad():
        x = torch.randn(5, 3, 32, 32)
        assert torch.allclose(parts.model.eval()(x), zero_shot(x), atol=1e-4)
        assert torch.allclose(load(tmp_path / "model")(x), zero_shot(x), atol=1e-4)
    assert parts.model.card.class_names == ("church", "dog", "n02123045_tabby_cat")


@pytest.mark.parametrize(
    ("settings", "names", "words"),
    [
        ({"head": "text", "pretrained": False}, DATA.class_names, "needs the weights of a CLIP or SigLIP"),
        ({"template": "a {}"}, DATA.class_names, "a template is for head=text"),
        ({"head": "text"}, DATA.class_names, "has no text tower"),
        ({"head": "text", "model": "clip"}, ("1", "2"), "'1' is no word"),
        ({"head": "text", "model": "clip", "template": "a cat"}, DATA.class_names, "has {} once"),
    ],
)
def test_a_head_that_cannot_begin_with_text_is_refused_in_one_line(settings, names, words, checkpoint, tmp_path):
    write_open_clip(tmp_path)
    model = str(tmp_path) if settings.get("model") else checkpoint
    data = ImageDataset("zoo", names, (0, 1), lambda i: None)
    with pytest.raises(ValueError, match=words) as raised:
        build_model(plain("x", **{"pretrained": True} | settings | {"model": model}), data, lambda line: None)
    assert "\n" not in str(raised.value)


def test_another_image_size_resizes_positions(checkpoint):
    model = build_model(plain("x", model=checkpoint, pretrained=True, image_size=24), DATA, lambda line: None)
    assert model.pos_embed.shape == (1, 37, 16)
    assert model.card.preprocess.size == (24, 24)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "vit_pice_patch2_8"}, "did you mean vit_pico_patch2_8"),
        ({"model": "vit_pico_patch2_8:channels=3", "channels": 1}, "states channels=3, and the run has channels=1"),
        ({"model": "vit_pico_patch2_8:dropout=0.1"}, "states dropout=0.1, and the run has dropout=0.0"),
        ({"model": "resnet18_small:channels=3", "channels": 1}, "states channels=3, and the run has channels=1"),
        ({"model": "timm:resnet18", "dropout": 0.1}, "a timm classifier has no dropout"),
        ({"model": "timm:resnet18", "optimizer": "muon"}, "muon is for the blocks of a ViT"),
        ({"model": "resnet18", "optimizer": "muon"}, "muon is for the blocks of a ViT: .* for a ResNet"),
        ({"model": "timm:resnet18", "parallel": "fsdp"}, "fsdp does not work with a timm classifier"),
        ({"model": "timm:resnet81"}, "no model called 'resnet81': did you mean"),
        ({"model": "timm:resnet18@mine.safetensors"}, "names weights"),
        ({"model": "resnet20"}, "18, 34, 50, 101, 152"),
        ({"model": "resnet18", "dropout": 0.1}, "a ResNet has no dropout"),
        ({"model": "resnet18", "initial": "local"}, "a ResNet has no initial"),
        ({"model": "resnet18", "layer_decay": 0.5, "stochastic_depth": 0.1}, "no stochastic_depth, layer_decay"),
        ({"channels": 1, "statistics": "imagenet"}, "for colour"),
        ({"image_size": 7}, "not a whole number"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        build_model(plain("x", **changes), DATA)


def test_a_checkpoint_without_pretrained_is_sent_to_finetune(checkpoint):
    with pytest.raises(ValueError, match="vitreous finetune or --pretrained"):
        build_model(plain("x", model=checkpoint), DATA)


def test_a_checkpoint_of_other_channels_is_refused(checkpoint):
    with pytest.raises(ValueError, match="3 channels, not 1"):
        build_model(plain("x", model=checkpoint, pretrained=True, channels=1), DATA, lambda line: None)


@pytest.mark.slow
def test_a_resnet_is_saved_and_loaded_with_its_own_preprocessing(tmp_path):
    zoo = make_images(tmp_path / "zoo")
    train(plain(zoo, model="resnet18", image_size=32, epochs=1), tmp_path / "run")
    model = load(tmp_path / "run/model")
    assert isinstance(model, ResNet)
    assert model.card.class_names == ("cat", "dog", "owl")
    assert model.card.preprocess.size == (32, 32)
    assert model.card.preprocess.mean == (0.5, 0.5, 0.5)
    again = build_model(
        plain(zoo, model=str(tmp_path / "run/model"), pretrained=True, image_size=48), DATA, lambda x: 0
    )
    assert again.card.preprocess.size == (48, 48)
    assert again.config.image_size in (48, (48, 48))


def test_a_teacher_of_other_classes_is_refused(checkpoint, tmp_path):
    student = build_model(plain("x"), DATA)
    view = student.card.preprocess
    with pytest.raises(ValueError, match="has 5 classes, the data has 3"):
        make_teacher(plain("x", teacher=checkpoint), view, student, torch.device("cpu"))
    model = noise(ViT(ViTConfig(**{**vars(SMALL), "classes": 3})))
    model.card = Card("x", default_preprocess(model.config), class_names=("rose", "lily", "iris"))
    save(model, tmp_path / "flowers")
    with pytest.raises(ValueError, match="'rose' for 'cat' first"):
        make_teacher(plain("x", teacher=str(tmp_path / "flowers")), view, student, torch.device("cpu"))
    assert make_teacher(plain("x"), view, student, torch.device("cpu")) is None


def test_resnet_configs_name_the_depths():
    with pytest.raises(ValueError, match="18, 34"):
        ResNetConfig(20)


def test_a_small_resnet_is_built_by_name_at_32_pixels_or_any_other_size():
    usual = build_model(plain("x", model="resnet18_small"), DATA)
    assert (usual.config.stem, usual.card.preprocess.size, usual.card.family) == ("small", (32, 32), "ResNet")
    assert build_model(plain("x", model="resnet18_small", image_size=8), DATA).card.preprocess.size == (8, 8)
    with pytest.raises(ValueError, match="18, 34, 50, 101, 152"):
        build_model(plain("x", model="resnet20_small"), DATA)


@pytest.mark.parametrize(
    "unlike",
    [
        *({"talking_heads": True}, {"branch_bias": False}, {"residual_norm": True, "final_norm": False}),
        *({"mlp_norm": True}, {"attention_norm": True}, {"relative_position": "table", "position": "none"}),
    ],
    ids=str,
)
def test_fused_is_refused_for_every_block_that_its_kernels_are_not_written_for(unlike, tmp_path):
    save(ViT(replace(SMALL, **unlike)), tmp_path)
    with pytest.raises(ValueError, match="fused needs a plain GELU network"):
        build_model(plain("x", model=str(tmp_path), pretrained=True, fused=True), DATA, lambda line: None)


@pytest.mark.parametrize(("name", "expected"), [("resnet18", True), ("timm:resnet18", True), ("timm:test_vit", False)])
def test_convolutions_run_with_channels_last_on_a_gpu(name, expected):
    model, found = build_model(plain("x", model=name), DATA), []
    model.forward = lambda x: found.append(x.is_contiguous(memory_format=torch.channels_last))
    choose_forward(model, torch.device("cuda"))(model, torch.randn(2, 3, 32, 32))
    assert found == [expected]
    assert is_convolutional(model) == expected
