"""`FORMATS`: the checkpoint formats that are read, and which of them a file's keys belong to."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from vitreous.weights.formats import (
    cait,
    clip,
    dinov3,
    eva,
    google,
    huggingface,
    huggingface_aimv2,
    huggingface_beit,
    huggingface_dinov3,
    huggingface_dpt,
    naflex,
    open_clip,
    pretraining,
    sapiens2,
    siglip,
    timm,
    torchvision,
)
from vitreous.weights.keymap import Format, rule
from vitreous.weights.safety import CheckpointError

FORMATS: dict[str, Format] = {  # tried in this order: specific formats before general ones
    known.name: known
    for known in (
        google.BIG_VISION,
        google.GOOGLE,
        torchvision.TORCHVISION,
        clip.HUGGINGFACE_CLIP_CLASSIFIER,
        clip.HUGGINGFACE_CLIP,
        open_clip.OPEN_CLIP,
        open_clip.OPEN_CLIP_TIMM,
        siglip.SIGLIP2_CLASSIFIER,
        siglip.SIGLIP2,
        siglip.SIGLIP_CLASSIFIER,
        siglip.SIGLIP,
        huggingface_dinov3.DINOV3_GATED,
        huggingface_dinov3.DINOV3,
        huggingface_aimv2.AIMV2,
        huggingface_beit.BEIT,
        huggingface_dpt.DPT,
        huggingface.DINOV2_REGISTERS,
        huggingface.DINOV2,
        huggingface.VIT,
        cait.CAIT,
        naflex.NAFLEX_FACTORIZED,
        naflex.NAFLEX_SIGLIP,
        naflex.NAFLEX,
        sapiens2.SAPIENS2,
        dinov3.DINOV3,
        eva.EVA,
        pretraining.MAE,
        pretraining.MOCO_V3,
        pretraining.IBOT,
        pretraining.DINOV2_REGISTERS_TRAINING,
        pretraining.DINOV2_TRAINING,
        timm.BEIT,
        timm.DINOV2_REGISTERS,
        timm.DINOV2,
        timm.TIMM,
    )
}
OURS = {known.ours for format in FORMATS.values() for known in format.rules}
"""Templates of all keys that a model of ours can have: what any format is translated to."""
FORMATS[timm.TIMM.name] = replace(  # our own files have timm's keys, and ours where timm has others (CaiT's layers)
    timm.TIMM, rules=(*timm.RULES, *(rule(key, key) for key in sorted(OURS - {known.ours for known in timm.RULES})))
)


def recognise(tensors: Mapping[str, Tensor], model_type: object = None) -> Format:
    """Recognise the format that a file's keys belong to; `model_type` is what its config file says, if there is one.

    >>> import torch
    >>> recognise({"class_token": torch.zeros(1), "encoder.pos_embedding": torch.zeros(1)}).name
    'torchvision'
    """
    for known in FORMATS.values():
        if known.recognise(tensors) or (known.model_type and known.model_type == model_type):
            return known
    raise CheckpointError(
        f"its keys match none of the formats {', '.join(FORMATS)}; the first keys are {', '.join(list(tensors)[:5])}: "
        "check that it is a Vision Transformer"
    )
