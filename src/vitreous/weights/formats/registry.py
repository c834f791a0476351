"""Recognise a checkpoint's format by its keys, and reject families that resemble a ViT but compute something else."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from vitreous.weights.formats import clip, google, huggingface, timm, torchvision
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
        clip.OPENAI_CLIP,
        huggingface.DINOV2_REGISTERS,
        huggingface.DINOV2,
        huggingface.VIT,
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


UNSUPPORTED: dict[str, tuple[str, str]] = {  # family: (pattern of its keys, pattern of its name in a config file)
    "Swin Transformer": (r"relative_position_index$|layers\.\d+\.(blocks\.\d+\.att|downsample)", r"swin"),
    "ViT with rotary positions": (r"^(rope|rope_embed)\.|\.rope\.", r"_rope_|rope_vit"),
    "DINOv3": (r"^(backbone\.)?(rope_embed\.periods|storage_tokens)$", r"dinov3"),
    "EVA": (
        r"blocks\.\d+\.attn\.(rope|inner_attn_ln|q_proj)|^rope\.freqs|blocks\.\d+\.mlp\.w1\.weight$",
        r"^eva([-\d]|$)|eva02",
    ),
    "BEiT": (r"relative_position_bias_table|attn\.q_bias$", r"beit"),
    "SigLIP": (r"attn_pool\.(latent|probe)|vision_model\.head\.probe|MAPHead_0/probe", r"siglip"),
    "Perception Encoder": (r"attn_pool\.(?!latent|probe)", r"vit_pe_|^pe_"),
    "hybrid ViT with a convolutional stem": (
        r"patch_embed\.(backbone|conv)|conv_root/kernel|conv_proj\.conv_bn_relu",
        r"vit_.*_(r26|r50|r_s16|resnet)|hybrid",
    ),
    "ViT with parallel or post-norm blocks": (
        r"blocks\.\d+\.(attns|ffns)\.\d|blocks\.\d+\.in_norm",
        r"parallel|_rpn_|_18x2_",
    ),
    "NaFlex ViT": (r"^embeds\.(proj|pos_embed)", r"naflex"),
    "hierarchical or convolutional network": (
        r"^stages\.\d+\.|^(features|downsample_layers)\.\d|^stem\.\d",
        r"^(convnext|efficientnet|mvit|pvt|maxvit|levit|twins|cait|crossvit|xcit)",
    ),
    "relative-position ViT": (r"rel_pos\.(relative|mlp)|rel_pos_[hw]$", r"relpos|^sam([-_]|$)|samvit"),
}


def check_family(keys: Iterable[str], sidecar: Mapping[str, Any], file_name: str = "") -> None:
    """Raise for a checkpoint of an unsupported family: recognised by its config, its file's name or its keys.

    >>> check_family(["cls_token", "blocks.0.norm1.weight"], {}, "vit_base_patch16_224.pth")
    """
    names = {f"its config says {name!r}": name for name in (sidecar.get("model_type"), sidecar.get("architecture"))}
    names[f"its name is {file_name}"] = file_name
    by_name = {evidence: str(name).lower() for evidence, name in names.items() if name}
    by_key = {f"it has {key}": key for key in keys}
    for part, found in ((1, by_name), (0, by_key)):
        for family, patterns in UNSUPPORTED.items():
            if evidence := next((e for e, text in found.items() if re.search(patterns[part], text)), None):
                raise CheckpointError(
                    f"the family {family} is not supported ({evidence}): supported are ViT, DeiT, AugReg, MAE, DINO, "
                    "DINOv2, CLIP and torchvision's ResNets"
                )
