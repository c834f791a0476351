"""The checkpoint formats that are read, and which one a file is: decided by its keys alone."""

from collections.abc import Mapping

from torch import Tensor

from vitreous.weights.formats import clip, dino, google_npz, huggingface, timm, torchvision
from vitreous.weights.keymap import Format
from vitreous.weights.read import CheckpointError

FORMATS: dict[str, Format] = {  # looked through in this order: the more particular before the more general
    known.name: known
    for known in (
        google_npz.BIG_VISION,
        google_npz.GOOGLE,
        torchvision.TORCHVISION,
        clip.HUGGINGFACE_CLIP_CLASSIFIER,
        clip.HUGGINGFACE_CLIP,
        clip.OPENAI_CLIP,
        huggingface.DINOV2_REGISTERS,
        huggingface.DINOV2,
        huggingface.VIT,
        dino.DINOV2_REGISTERS,
        dino.DINOV2,
        timm.TIMM,
    )
}


def recognise(tensors: Mapping[str, Tensor]) -> Format:
    """The format that these keys are of.

    >>> import torch
    >>> recognise({"class_token": torch.zeros(1), "encoder.pos_embedding": torch.zeros(1)}).name
    'torchvision'
    """
    for known in FORMATS.values():
        if known.recognise(tensors):
            return known
    first = ", ".join(list(tensors)[:5])
    raise CheckpointError(
        f"these keys are of no format known here ({', '.join(FORMATS)}); the first are {first}: "
        "is this a Vision Transformer?"
    )
