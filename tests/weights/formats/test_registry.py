"""Which format a file's keys are recognised as."""

import pytest
import torch

from vitreous.weights.formats.registry import FORMATS, recognise
from vitreous.weights.safety import CheckpointError

KEYS = {
    "google": ["embedding/kernel", "Transformer/posembed_input/pos_embedding"],
    "google-big-vision": ["params/img/embedding/kernel", "params/img/pos_embedding"],
    "torchvision": ["class_token", "encoder.pos_embedding"],
    "huggingface": ["vit.embeddings.patch_embeddings.projection.weight"],
    "huggingface-dinov2": [
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.layer_scale1.lambda1",
    ],
    "huggingface-dinov2-registers": [
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.layer_scale1.lambda1",
        "embeddings.register_tokens",
    ],
    "huggingface-clip": ["vision_model.embeddings.class_embedding"],
    "huggingface-clip-classifier": ["vision_model.embeddings.class_embedding", "classifier.weight"],
    "clip": ["visual.class_embedding"],
    "dinov2": ["patch_embed.proj.weight", "mask_token", "blocks.0.norm1.weight"],
    "dinov2-registers": ["patch_embed.proj.weight", "mask_token", "register_tokens", "blocks.0.norm1.weight"],
    "timm": ["patch_embed.proj.weight", "blocks.0.norm1.weight"],
}


def test_every_format_has_a_case_here():
    assert set(KEYS) == set(FORMATS)


@pytest.mark.parametrize("name", KEYS)
def test_specific_formats_are_recognised_before_general_ones(name):
    assert recognise(dict.fromkeys(KEYS[name], torch.zeros(1))).name == name


def test_unknown_keys_are_shown_with_the_formats_that_are_read():
    with pytest.raises(CheckpointError, match=r"formats google.*timm; the first keys are stem, body: check"):
        recognise(dict.fromkeys(["stem", "body"], torch.zeros(1)))
