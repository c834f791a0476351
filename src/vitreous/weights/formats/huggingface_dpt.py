"""transformers' DPT: the plain ViT under its decoder, which predicts depth or segments and is ignored."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitreous.weights.adapt import library_models
from vitreous.weights.formats.huggingface import IGNORED, VIT
from vitreous.weights.formats.huggingface_config import check_types, read_config
from vitreous.weights.keymap import Allowed, Tensors, strip_prefix
from vitreous.weights.safety import CheckpointError

TASKS = ("Model", "ForDepthEstimation", "ForSemanticSegmentation")
USUAL = {"image_size": 384}  # where DPT's default is not ViT's
DECODER: dict[str, tuple[type, ...]] = {  # fields of the decoder, which the ViT's tokens do not depend on
    "backbone_out_indices": (list, type(None)),
    "backbone_featmap_shape": (list, type(None)),
    **dict.fromkeys(("reassemble_factors", "neck_hidden_sizes", "neck_ignore_stages"), (list,)),
    **dict.fromkeys(("fusion_hidden_size", "head_in_index", "semantic_loss_ignore_index"), (int,)),
    **dict.fromkeys(("auxiliary_loss_weight", "semantic_classifier_dropout"), (int, float)),
    **dict.fromkeys(("use_batch_norm_in_fusion_residual", "use_bias_in_fusion_residual"), (bool, type(None))),
    "use_auxiliary_head": (bool, type(None)),
    "add_projection": (bool,),
    "readout_type": (str,),
}
ABSENT = ("is_hybrid", "backbone_config", "backbone", "use_pretrained_backbone", "use_timm_backbone", "backbone_kwargs")
"""Fields that name another backbone than DPT's own ViT."""


def read_dpt_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read our fields from the `config.json` of a DPT: those of a ViT without a head."""
    if sidecar.get("model_type") != "dpt":
        return read_config(sidecar)
    check_types(sidecar, ("is_hybrid",), (bool,))
    for name in ABSENT:
        if sidecar.get(name):
            raise CheckpointError(
                f"a DPT with {name}={sidecar[name]!r:.40} has another backbone than its own plain ViT"
            )
    for name, kinds in DECODER.items():
        check_types(sidecar, (name,), kinds)
    if sidecar.get("readout_type", "project") not in ("ignore", "add", "project"):
        raise CheckpointError(f"config.json has readout_type={sidecar['readout_type']!r:.40}, which DPT does not have")
    names = sidecar.get("architectures")
    if names and names not in [[f"DPT{task}"] for task in TASKS]:
        raise CheckpointError(f"the architecture {names!r:.80} in config.json is not supported")
    own = {name: value for name, value in sidecar.items() if name not in (*DECODER, *ABSENT)}
    allowed = read_config(USUAL | own | {"model_type": "vit", "architectures": ["ViTModel"]})
    if names and names != ["DPTModel"]:
        allowed["representation_size"] = (0,)  # only the model alone has a pooler
    (sides,) = allowed["image_size"]
    if len({*sides}) > 1:  # transformers takes its positions for a square
        raise CheckpointError("a DPT trained with images that are not square is not supported")
    return allowed


def take_vit(tensors: Tensors) -> Tensors:
    """Remove the prefix of DPT's own ViT; raise if its decoder stands on something else."""
    if not any(key.endswith("embeddings.patch_embeddings.projection.weight") for key in tensors):
        raise CheckpointError("it is a DPT whose backbone is not its own plain ViT, which is not supported")
    return strip_prefix("dpt.")(tensors)


DPT = replace(
    VIT,
    name="huggingface-dpt",
    recognise=lambda tensors: any(key.startswith(("dpt.", "neck.reassemble_stage.")) for key in tensors),
    model_type="dpt",
    ignored=(*IGNORED, "neck.*", "head.*", "auxiliary_head.*"),
    prepare=take_vit,
    read_config=read_dpt_config,
    known=library_models(norm_eps=(1e-12,)),
    resize="dpt",
)
