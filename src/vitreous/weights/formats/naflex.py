"""timm's NaFlex ViTs (NaViT, Dehghani et al., 2023; FlexiViT, Beyer et al., 2023; SigLIP 2's) at one image size.

Their position embeddings are a grid of 16×16, whatever the size of the images, and are resized as the model runs: on
images of one size they compute a ViT with resized positions. Batches of several sizes are not supported. A patch is a
row of pixels with the colours last. Factorized positions, one table for rows and one for columns, become their sum.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from vitreous.weights.formats import timm
from vitreous.weights.keymap import Allowed, Tensors
from vitreous.weights.safety import CheckpointError

COLOURS = 3


def prepare(tensors: Tensors) -> Tensors:
    """Name the tensors of NaFlex's embedding as timm's other ViTs do: patches as filters, positions as a sequence."""
    plain = {key.removeprefix("embeds."): value for key, value in tensors.items()}
    if not any(key in plain for key in ("norm.weight", "fc_norm.weight")):
        raise CheckpointError(
            "it has no norm after its blocks, as NaFlex ViTs of RADIO, which resize positions in ways of their own and "
            "are not supported: load timm's vit_…_radio_… instead, or get it again"
        )
    weight = plain.pop("proj.weight", None)
    side = isqrt(weight.shape[1] // COLOURS) if weight is not None and weight.dim() == 2 else 0
    if weight is None or weight.dim() != 2 or weight.shape[1] != COLOURS * side**2:
        raise CheckpointError("embeds.proj.weight should be [width patch·patch·3]: the checkpoint is incomplete")
    plain["patch_embed.proj.weight"] = weight.reshape(-1, side, side, COLOURS).permute(0, 3, 1, 2)
    if (bias := plain.pop("proj.bias", None)) is not None:
        plain["patch_embed.proj.bias"] = bias
    rows, columns = (plain.pop(f"pos_embed_{axis}", None) for axis in "yx")
    if rows is not None and columns is not None and rows.dim() == columns.dim() == 3:
        plain["pos_embed"] = rows[:, :, None] + columns[:, None]
    positions = plain.get("pos_embed")
    if positions is None or positions.dim() != 4 or positions.shape[0] != 1:
        raise CheckpointError("embeds.pos_embed should be [1 rows columns width]: the checkpoint is incomplete")
    if positions.shape[1] != positions.shape[2]:
        raise CheckpointError(f"expected positions of a square grid, got {positions.shape[1]}×{positions.shape[2]}")
    return plain | {"pos_embed": positions.flatten(1, 2)}


def read_config(sidecar: Mapping[str, Any]) -> Allowed:
    """Read a NaFlex ViT's `config.json`; one built with `use_naflex` has another name, and other defaults."""
    if not str(sidecar.get("architecture", "naflexvit_")).startswith("naflexvit_"):
        raise CheckpointError(
            f"its config says architecture={sidecar['architecture']!r:.60}, and its tensors are of a NaFlex ViT: "
            "save it without use_naflex"
        )
    return timm.read_config(sidecar)


def run_size(sidecar: Mapping[str, Any]) -> tuple[int, int]:
    """Return the image size that a NaFlex model runs at: that of its config file, else timm's 384 px."""
    pretrained = sidecar.get("pretrained_cfg") or {}
    _, height, width = pretrained.get("input_size") or (COLOURS, 384, 384)
    return height, width


NAFLEX = replace(
    timm.TIMM,
    name="naflex",
    recognise=lambda tensors: "embeds.proj.weight" in tensors,
    prepare=prepare,
    read_config=read_config,
    run_size=run_size,
    resize="naflex",
)
NAFLEX_FACTORIZED = replace(
    NAFLEX,
    name="naflex-factorized",
    recognise=lambda tensors: "embeds.pos_embed_y" in tensors,
    resize="naflex-factorized",
)
NAFLEX_SIGLIP = replace(
    NAFLEX,
    name="naflex-siglip",
    recognise=lambda tensors: (
        NAFLEX.recognise(tensors) and "attn_pool.latent" in tensors and "embeds.reg_token" not in tensors
    ),
    resize="siglip2",
)
