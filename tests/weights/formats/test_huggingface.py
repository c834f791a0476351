"""Tiny noisy transformers models → `save_pretrained` → loaded here → the same numbers; and written back."""

import pytest
import torch
import transformers
from originals import SMALL_CLASSIFIER
from safetensors.torch import save_file

from conftest import assert_same, noise
from vitreous.weights.convert import convert
from vitreous.weights.load import load

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
    config = getattr(transformers, f"{family}Config")(**SMALL_CLASSIFIER | extra)
    return noise(getattr(transformers, family + task)(config))


def outputs(model, x):
    """Logits, or what a headless model pools; and the last tokens where the model gives them."""
    out = model(x)
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    raise AssertionError(out.keys())


@pytest.mark.slow
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


@pytest.mark.slow
@torch.no_grad()
def test_a_full_google_vit_base_config_gives_transformers_logits(tmp_path):
    theirs = noise(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)))
    theirs.save_pretrained(tmp_path)
    x = torch.randn(1, 3, 224, 224)
    assert_same(load(tmp_path)(x), theirs(x).logits)
