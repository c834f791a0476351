"""A local start: at first each head attends to one neighbour of every patch."""

import pytest
import torch

from vitreous.models.local_start import OFFSETS, start_locally
from vitreous.models.rope import rotate
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

SHAPE = {"image_size": 32, "patch_size": 4, "width": 256, "depth": 2, "heads": 4, "classes": 3}


def attention(model, x, block):
    """The mean attention of all images, [h t t]."""
    for each in model.blocks[:block]:
        x = each(x)
    layer = model.blocks[block].attn
    b, t, _ = x.shape
    q, k, _ = layer.qkv(model.blocks[block].norm1(x)).reshape(b, t, 3, layer.heads, -1).permute(2, 0, 3, 1, 4)
    q, k = rotate(layer, q), rotate(layer, k)
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).mean(0)


@pytest.mark.parametrize("rope", [{}, {"rope": "dinov3", "rope_temperature": 10.0}, {"rope": "dinov3"}])
@pytest.mark.parametrize("shape", [{}, {"class_token": False, "pool": "mean"}, {"heads": 8}])
def test_each_head_attends_most_to_one_neighbour(shape, rope):
    torch.manual_seed(1)
    model, token = ViT(ViTConfig(**{**SHAPE, **shape, **rope})), shape.get("class_token", True)
    start_locally(model)
    with torch.no_grad():
        found = attention(model, model.embed(0.5 * torch.randn(8, 3, 32, 32)), 0)[:, token:, token:]  # [h n n]
    inner = [row * 8 + column for row in range(1, 7) for column in range(1, 7)]
    for head in found:
        strongest = head[inner].argmax(-1)
        offsets = {(int(s) // 8 - i // 8, int(s) % 8 - i % 8) for s, i in zip(strongest, inner, strict=True)}
        assert len(offsets) == 1
        assert offsets <= set(OFFSETS)
        assert head[inner].max(-1).values.mean() > 0.3  # evenly shared it would be 1/64


def test_weights_and_positions_are_drawn_from_the_seed():
    def drawn(seed):
        torch.manual_seed(seed)
        model = ViT(ViTConfig(**SHAPE))
        start_locally(model)
        return model.state_dict()

    one, other, third = drawn(0), drawn(0), drawn(1)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["blocks.0.attn.qkv.weight"], third["blocks.0.attn.qkv.weight"])


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"position": "sine-2d"}, "sets learned positions, and this model's are sine-2d"),
        ({"rope": "axial"}, "needs rope=dinov3, or learned positions without rotation, not axial"),
        ({"qk_norm": True}, "with biases and without norms"),
        ({"qkv_bias": False}, "with biases and without norms"),
        ({"heads": 16}, "heads of a width that 4 divides, 32 or more, .* got heads of width 16"),
        ({"heads": 8, "image_size": 128}, "4 to 16 patches on each side; .* 32×32 patches"),
        ({"image_size": (32, 8)}, "got heads of width 64 and 8×2 patches"),
    ],
)
def test_networks_whose_heads_cannot_be_pointed_at_a_neighbour_are_an_error(shape, words):
    with pytest.raises(ValueError, match=f"initial=local .*{words}"):
        start_locally(ViT(ViTConfig(**{**SHAPE, **shape})))
