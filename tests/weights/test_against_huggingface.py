"""Tiny noisy transformers models → `save_pretrained` → loaded here → the same numbers; and written back."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from conftest import assert_same, noise
from vitreous.weights.convert import convert
from vitreous.weights.load import load

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 7,
}
CASES = {
    "vit": ("ViT", "ForImageClassification", {}),
    "vit_with_pooler": ("ViT", "Model", {}),
    "vit_not_square": ("ViT", "ForImageClassification", {"image_size": (24, 40), "patch_size": (8, 4)}),
    "vit_gelu_tanh_no_bias": ("ViT", "ForImageClassification", {"hidden_act": "gelu_pytorch_tanh", "qkv_bias": False}),
    "deit": ("DeiT", "ForImageClassification", {}),
    "deit_distilled": ("DeiT", "ForImageClassificationWithTeacher", {}),
    "dinov2": ("Dinov2", "ForImageClassification", {}),
    "dinov2_headless": ("Dinov2", "Model", {}),
    "dinov2_swiglu": ("Dinov2", "ForImageClassification", {"use_swiglu_ffn": True}),
    "dinov2_registers": ("Dinov2WithRegisters", "ForImageClassification", {}),
    "dinov2_registers_headless": ("Dinov2WithRegisters", "Model", {"use_swiglu_ffn": True}),
    "clip": ("CLIPVision", "Model", {}),
    "clip_projection": ("CLIPVision", "ModelWithProjection", {"projection_dim": 20}),
    "clip_gelu": ("CLIPVision", "ModelWithProjection", {"hidden_act": "gelu"}),
}


def build(case):
    family, task, extra = CASES[case]
    config = getattr(transformers, f"{family}Config")(**SMALL | extra)
    return noise(getattr(transformers, family + task)(config))


def outputs(model, x):
    """Logits, or what a headless model pools; and the last tokens where the model gives them."""
    out = model(x)
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    raise AssertionError(out.keys())


@pytest.mark.parametrize("spelling", ["saved", "in_memory"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_numbers_are_transformers_there_and_back(case, spelling, tmp_path):
    theirs = build(case)
    theirs.save_pretrained(tmp_path)
    if spelling == "in_memory":  # transformers 5's own names, which it renames on the way to disk
        save_file({k: v.contiguous() for k, v in theirs.state_dict().items()}, tmp_path / "model.safetensors")
    ours = load(tmp_path)
    x = torch.randn(2, 3, *ours.config.size)
    assert_same(ours(x), outputs(theirs, x))
    assert not ours.card.report.unexpected
    assert not set(ours.card.report.assumed) & {"heads", "norm_eps", "activation"}

    convert(ours, tmp_path / "back", to="huggingface")
    back, loading = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert_same(outputs(back.eval(), x), outputs(theirs, x))


@torch.no_grad()
def test_tokens_of_a_headless_model_are_transformers(tmp_path):
    theirs = build("dinov2_headless")
    theirs.save_pretrained(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    assert_same(load(tmp_path).forward_features(x), theirs(x).last_hidden_state)


@torch.no_grad()
def test_a_clip_classifier_averages_tokens_before_the_norm(tmp_path):
    config = transformers.CLIPConfig(vision_config=SMALL, num_labels=7)
    theirs = noise(transformers.CLIPForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    assert_same(load(tmp_path)(x), theirs(x).logits)


@torch.no_grad()
def test_a_whole_clip_gives_its_vision_tower(tmp_path):
    text = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 99,
    }
    config = transformers.CLIPConfig(vision_config=SMALL, text_config=text, projection_dim=24)
    theirs = noise(transformers.CLIPModel(config))
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    image = theirs.get_image_features(pixel_values=x)
    assert_same(ours(x), image if isinstance(image, torch.Tensor) else image.pooler_output)
    assert ours.card.head == "projection"
    assert any(key.startswith("text_model") for key in ours.card.report.ignored)


@torch.no_grad()
def test_a_full_google_vit_base_config_gives_transformers_logits(tmp_path):
    theirs = noise(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)))
    theirs.save_pretrained(tmp_path)
    x = torch.randn(1, 3, 224, 224)
    assert_same(load(tmp_path)(x), theirs(x).logits)


def test_labels_and_preprocessing_travel(tmp_path):
    config = transformers.ViTConfig(**SMALL | {"num_labels": 3}, id2label={0: "cat", 1: "dog", 2: "owl"})
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(tmp_path)
    card = load(tmp_path).card
    assert card.class_names == ("cat", "dog", "owl")
    assert card.preprocess.mean == (0.1, 0.2, 0.3)
    assert "preprocessing" not in card.report.assumed


def test_placeholder_labels_are_no_names(tmp_path):
    transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)).save_pretrained(tmp_path)
    assert load(tmp_path).card.class_names is None


def test_a_family_that_is_not_built_is_refused_by_name(tmp_path):
    config = transformers.SwinConfig(embed_dim=12, depths=[1], num_heads=[2], image_size=32)
    transformers.SwinModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Swin"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))  # by its keys alone
    with pytest.raises(ValueError, match="Swin"):
        load(tmp_path)
    assert load_file(tmp_path / "model.safetensors")


@torch.no_grad()
def test_a_dinov2_runs_at_the_size_that_its_processor_prepares(tmp_path):
    theirs = noise(transformers.Dinov2Model(transformers.Dinov2Config(**SMALL | {"image_size": 56})))
    theirs.save_pretrained(tmp_path)
    transformers.BitImageProcessor(size={"shortest_edge": 40}, crop_size=32).save_pretrained(tmp_path)
    ours = load(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x).pooler_output)
    assert ours.card.report.resized == ["pos_embed from 7×7 to 4×4 (huggingface's convention)"]
    assert (ours.card.preprocess.size, ours.card.preprocess.resize) == ((32, 32), 40)
    assert load(tmp_path, image_size=56).card.preprocess.resize == 70
