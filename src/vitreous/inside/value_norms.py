"""Attention × value norms: how long the vectors are that attention adds up (Kobayashi et al., 2020).

"Attention is Not Only a Weight": a token of high attention adds nothing if its value is short. The weight of token j
for token i is ‖Σ_h A_hij v_hj W_h‖, with W the output projection. The layers are joined as in rollout.

Shapes:  b images · h g heads · t tokens · k width of one head · d width
"""

import torch
from torch import Tensor, nn

from vitreous.inside.attention import attention_of, pooled_by, readout
from vitreous.inside.capture import capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.inside.rollout import rollout_row
from vitreous.models.vit import TransformerBlock


@torch.no_grad()
def value_norm_rollout(model: nn.Module, x: Tensor) -> Tensor:
    """Compute each patch's share in what the head reads, by norms: images `[b c H W]` → `[b rows columns]`.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> value_norm_rollout(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 8, 8])
    """
    plain, _ = underneath(model)
    with capture(model, ["norm1", "v", *pooled_by(plain)]) as internals:
        model(x)

    def matrix(layer: int) -> Tensor:
        block = plain.blocks[layer]
        assert isinstance(block, TransformerBlock)
        attention = attention_of(plain, layer, internals[full_name("norm1", layer)])
        return value_norms(attention, projected(block, internals[full_name("v", layer)]))[:, None]  # as one head

    layers = (matrix(layer) for layer in reversed(internals.layers))
    return plain.layout.to_grid(rollout_row(layers, readout(plain, internals.get("pool.attention"))))


def projected(block: TransformerBlock, values: Tensor) -> Tensor:
    """Compute the vectors whose norms count: each head's part of the output projection, `[b h t k]` → `[b h t d]`."""
    heads, k = values.shape[1], values.shape[-1]
    weight = block.attn.proj.weight.unflatten(1, (heads, k))  # [d h k]
    result: Tensor = block.ls1(torch.einsum("b h t k, d h k -> b h t d", values, weight))
    return result


def value_norms(attention: Tensor, values: Tensor) -> Tensor:
    """Compute ‖Σ_h A_hij f_hj‖ from attention `[b h t t]` and projected values `[b h t d]`: `[b t t]`.

    The square is Σ_hg A_hij A_gij ⟨f_hj, f_gj⟩: the vectors themselves, `[b t t d]`, are never made.

    >>> value_norms(torch.tensor([[[[0.5]], [[0.5]]]]), torch.tensor([[[[3.0, 0.0]], [[3.0, 8.0]]]]))  # ‖(3, 4)‖
    tensor([[[5.]]])
    """
    products = torch.einsum("b h t d, b g t d -> b h g t", values, values)
    square = torch.zeros_like(attention[:, 0])
    for head in range(attention.shape[1]):
        square += attention[:, head] * torch.einsum("b g i j, b g j -> b i j", attention, products[:, head])
    return square.clamp_min(0).sqrt()
