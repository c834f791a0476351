"""`FORMATS`: the checkpoint formats that are read, and which of them a file's keys belong to."""

from collections.abc import Mapping

from torch import Tensor

from vitreous.weights.formats import clip, google, huggingface, open_clip, pretraining, siglip, timm, torchvision
from vitreous.weights.keymap import Format
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
        siglip.SIGLIP,
        siglip.DINOV3_GATED,
        siglip.DINOV3,
        huggingface.DINOV2_REGISTERS,
        huggingface.DINOV2,
        huggingface.VIT,
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


def recognise(tensors: Mapping[str, Tensor]) -> Format:
    """Return the format of these keys.

    >>> import torch
    >>> recognise({"class_token": torch.zeros(1), "encoder.pos_embedding": torch.zeros(1)}).name
    'torchvision'
    """
    for known in FORMATS.values():
        if known.recognise(tensors):
            return known
    raise CheckpointError(
        f"its keys match none of the formats {', '.join(FORMATS)}; the first keys are {', '.join(list(tensors)[:5])}: "
        "check that it is a Vision Transformer"
    )
