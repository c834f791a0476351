"""`SUPPORTED` families, and `UNSUPPORTED` ones that resemble a ViT: recognised by a name or by keys, and an error."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_architectures import find_architecture

SUPPORTED = (  # the one list: errors print it, and docs/guides/checkpoint.md has every name
    *("ViT", "AugReg", "FlexiViT", "DeiT", "DeiT-III", "MAE", "MoCo v3", "I-JEPA", "DINO", "iBOT", "DINOv2", "DINOv3"),
    *("CLIP", "SigLIP", "EVA", "EVA-02", "Perception Encoder", "BEiT", "BEiT-3", "Data2Vec", "AIMv2", "CaiT"),
    *("NaFlex ViT", "Sapiens 2", "MobileCLIP", "the ViT of DPT"),
    *("hybrids of BiT and ViT", "ViTs with rotary positions", "ViTs with relative positions", "torchvision's ResNets"),
)
UNSUPPORTED: dict[str, tuple[str, str]] = {  # family: (pattern of its keys, pattern of its name in a config file)
    "Swin Transformer": (r"layers\.\d+\.(blocks\.\d+\.att|downsample)", r"swin"),
    "EoMT (queries join its last blocks)": (r"^(query\.weight$|mask_head\.|upscale_block\.)", r"eomt"),
    "VideoMAE": (r"^videomae\.|attention\.attention\.[qv]_bias$", r"videomae"),
    "YOLOS (detection tokens run through all blocks)": (r"embeddings\.detection_tokens$", r"^yolos"),
    "Perception Encoder": (r"attn_pool\.(attn|probe|layernorm)", r"vit_pe_|^pe_"),
    "hybrid ViT with another convolutional stem than BiT's or MobileCLIP's": (
        r"patch_embed\.(backbone\.[3-9]|backbone\.conv1|conv)|conv_root/kernel|conv_proj\.conv_bn_relu",
        r"vit_.*_resnet|hybrid",
    ),
    "ViT with parallel blocks": (r"blocks\.\d+\.(attns|ffns)\.\d|blocks\.\d+\.in_norm", r"parallel|_18x2_"),
    "hierarchical or convolutional network": (
        r"^stages\.\d+\.|^(features|downsample_layers)\.\d|^stem\.\d",
        r"^((dinov3_?)?convnext|efficientnet|mvit|pvt|maxvit|levit|twins|crossvit)",
    ),
    "XCiT": (r"^blocks\.\d+\.local_mp\.|^cls_attn_blocks\.", r"xcit"),
    "SAM": (r"rel_pos_[hw]$", r"^sam([-_]|$)|samvit"),
}


def unsupported_family(name: str) -> str | None:
    """Return the unsupported family that a model's name belongs to; None if it may be supported.

    >>> unsupported_family("swin_tiny_patch4_window7_224"), unsupported_family("vit_base_patch16_siglip_gap_224")
    ('Swin Transformer', None)
    """
    known = find_architecture(name)
    if known is not None and not known.unsupported:
        return None
    return next((family for family, (_, named) in UNSUPPORTED.items() if re.search(named, name.lower())), None)


def check_family(keys: Iterable[str], sidecar: Mapping[str, Any], file_name: str = "") -> None:
    """Raise for a checkpoint of an unsupported family: recognised by its config, its file's name or its keys.

    >>> check_family(["cls_token", "blocks.0.norm1.weight"], {}, "vit_base_patch16_224.pth")
    """
    stated = (str(sidecar.get(field) or "") for field in ("model_type", "architecture"))
    names = {f"its config says {name!r:.60}": name for name in stated if name}
    names = names or {f"its name is {file_name}": file_name}  # a Hub folder may have any name
    found = ((family, evidence) for evidence, name in names.items() if (family := unsupported_family(name)))
    by_key = (
        (family, f"it has {key}") for key in keys for family, (held, _) in UNSUPPORTED.items() if re.search(held, key)
    )
    for family, evidence in (*found, *by_key):
        supported = ", ".join(SUPPORTED)
        raise CheckpointError(f"the family {family} is not supported ({evidence}): supported are {supported}")
