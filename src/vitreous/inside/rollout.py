"""Attention rollout: how much of each input token reaches an output token, by attention or by the norms of values.

By attention (Abnar & Zuidema, 2020): in each layer half of a token comes through the residual connection and half
through attention; the layers' matrices are multiplied. `rollout` computes the whole product. A heat map needs one row
of it, which can be carried from the last layer to the first without a product of matrices: `rollout_row`, and
`rollout_map` from a model, one layer at a time.

By norms (`value_norm_rollout`; Kobayashi et al., 2020, "Attention is Not Only a Weight"): a token of high attention
adds nothing if its value is short. The weight of token j for token i is ‖Σ_h A_hij v_hj W_h‖, with W the output
projection.

Shapes:  l layers · b images · h g heads · t tokens · k width of one head · d width
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.inside.attention import attention_of, pooled_by, readout
from vitreous.inside.capture import capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.inside.intervene import tokens_left
from vitreous.models.token_layout import TokenLayout
from vitreous.models.vit import TransformerBlock, ViT

FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda attention: attention.mean(dim=1),
    "max": lambda attention: attention.amax(dim=1),
    "min": lambda attention: attention.amin(dim=1),
}


@dataclass(frozen=True)
class _Flow:
    """Fuse the heads of one layer's attention `[b h t t]` and add the residual: `[b t t]`; each row sums to 1."""

    fusion: str
    discard: float
    residual: float
    layout: TokenLayout | None

    def __post_init__(self) -> None:
        if self.fusion not in FUSIONS:
            raise ValueError(f"fusion must be one of {', '.join(FUSIONS)}, got {self.fusion!r}")
        if not 0 <= self.discard < 1:
            raise ValueError(f"discard is a share of the entries, from 0 to below 1, got {self.discard}")
        if not 0 <= self.residual <= 1:
            raise ValueError(f"residual is the residual connection's share, from 0 to 1, got {self.residual}")

    def __call__(self, attention: Tensor) -> Tensor:
        fused = FUSIONS[self.fusion](attention).clamp_min(0)  # [b t t]; heads that talk can be negative
        fused = fused.to(torch.promote_types(fused.dtype, torch.float32))
        if self.discard:
            fused = self.without_smallest(fused)
        identity = torch.eye(fused.shape[-1]).to(fused)
        total = fused.sum(dim=-1, keepdim=True)
        fused = torch.where(total == 0, identity, fused / total)  # a row without attention becomes the identity's
        return self.residual * identity + (1 - self.residual) * fused

    def without_smallest(self, fused: Tensor) -> Tensor:
        """Zero the smallest entries of attention before rollout; entries equal to the smallest kept one are kept."""
        prefix = self.layout.prefix if self.layout else 0
        patches = fused[..., prefix:]
        count = int(self.discard * patches[0].numel())
        smallest_kept = patches.flatten(1).kthvalue(count + 1).values[:, None, None]
        return torch.cat([fused[..., :prefix], patches * (patches >= smallest_kept)], dim=-1)


def rollout(
    attention: Iterable[Tensor],
    *,
    fusion: str = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    layout: TokenLayout | None = None,
) -> Tensor:
    """Roll out the attention of all layers, first to last, `[l b h t t]`: each input token's share, `[b t t]`.

    Each row sums to 1. Heads are fused by their mean, max or min. `discard` drops that share of a fused matrix's
    smallest entries, with `layout` only of those to patches. `residual` is the share of the residual connection.

    >>> identity = torch.eye(5).expand(3, 1, 2, 5, 5)
    >>> torch.equal(rollout(identity)[0], torch.eye(5))
    True
    """
    flow = _Flow(fusion, discard, residual, layout)
    total: Tensor | None = None
    for layer in attention:
        total = flow(layer) if total is None else flow(layer) @ total
    if total is None:
        raise ValueError("expected attention of at least one layer, got none")
    return total


def rollout_row(
    attention: Iterable[Tensor],
    row: Tensor,
    *,
    fusion: str = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    layout: TokenLayout | None = None,
) -> Tensor:
    """Compute `row @ rollout(…)` from layers given last to first, each `[b h t t]`: a row `[t]` or `[b t]` → `[b t]`.

    Layers may come from a generator: each is freed before the next is computed.

    >>> layers = torch.rand(3, 1, 2, 5, 5).softmax(dim=-1)
    >>> row = rollout_row(layers.flip(0), torch.tensor([1.0, 0, 0, 0, 0]))
    >>> torch.allclose(row, rollout(layers)[:, 0])
    True
    """
    flow = _Flow(fusion, discard, residual, layout)
    for layer in attention:
        matrix = flow(layer)
        del layer  # [b h t t]: by far the largest tensor
        row = (row.to(matrix).expand(len(matrix), -1)[:, None] @ matrix)[:, 0]  # [b t]
    return row


@torch.no_grad()
def rollout_map(
    model: nn.Module,
    x: Tensor,
    *,
    query: int | None = None,
    fusion: str = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Tensor:
    """Compute the rollout map, each patch's share in what the head reads: images `[b c H W]` → `[b rows columns]`.

    `query` is the index of another token to compute it for. Attention is recomputed from the last layer to the first,
    one layer at a time: 3,137 tokens need about half a gigabyte for six heads.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> rollout_map(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 8, 8])
    """
    plain, _ = underneath(model)
    with capture(model, ["norm1", *pooled_by(plain)]) as internals:
        model(x)
    layers = (attention_of(plain, layer, internals[full_name("norm1", layer)]) for layer in reversed(internals.layers))
    row = readout(plain, internals.get("pool.attention"))
    if query is not None:
        plain.layout.patch(query)  # raises for a token that does not exist
        row = torch.eye(plain.layout.tokens, device=row.device)[query]
    return _rollout_of_patches_left(plain, layers, row, fusion=fusion, discard=discard, residual=residual)


@torch.no_grad()
def value_norm_rollout(model: nn.Module, x: Tensor) -> Tensor:
    """Compute rollout by norms of values, a patch's share in what the head reads: `[b c H W]` → `[b rows columns]`.

    A head that an intervention weighs or switches off counts with what it passes on.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> value_norm_rollout(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 8, 8])
    """
    plain, _ = underneath(model)
    with capture(model, ["norm1", "v", "mixed", *pooled_by(plain)]) as internals:
        model(x)

    def matrix(layer: int) -> Tensor:
        block = plain.blocks[layer]
        assert isinstance(block, TransformerBlock)
        attention = attention_of(plain, layer, internals[full_name("norm1", layer)])
        mixed = full_name("mixed", layer)
        attention = attention * passed_on(internals.weighted[mixed], internals[mixed])
        return value_norms(attention, projected(block, internals[full_name("v", layer)]))[:, None]  # as one head

    layers = (matrix(layer) for layer in reversed(internals.layers))
    return _rollout_of_patches_left(plain, layers, readout(plain, internals.get("pool.attention")))


def passed_on(given: Tensor, mixed: Tensor) -> Tensor:
    """Compute the share of what attention gave, `[b h t k]`, that heads pass on in rollout: `[b h t 1]`.

    It is 1, but where an intervention changed `mixed`: then its part along what was given.

    >>> passed_on(torch.tensor([[3.0, 4.0], [1.0, 2.0]]), torch.tensor([[1.5, 2.0], [0.0, 0.0]]))
    tensor([[0.5000],
            [0.0000]])
    """
    exact = torch.promote_types(given.dtype, torch.float32)
    given, mixed = given.to(exact), mixed.to(exact)
    size = given.square().sum(dim=-1, keepdim=True)
    along = torch.where(size > 0, (given * mixed).sum(dim=-1, keepdim=True) / size, 1.0)
    return torch.where((given == mixed).all(dim=-1, keepdim=True), 1.0, along)


def _rollout_of_patches_left(model: ViT, layers: Iterable[Tensor], row: Tensor, **options: Any) -> Tensor:
    """Compute the rollout map of layers given last to first, in which patches that were removed have no part."""
    left = tokens_left(model).to(row.device)
    if left.all():
        return model.layout.to_grid(rollout_row(layers, row, layout=model.layout, **options))
    among = (layer[..., left, :][..., left] for layer in layers)
    shares = rollout_row(among, row[..., left], layout=model.layout, **options)
    whole = shares.new_zeros(len(shares), len(left))
    whole[:, left] = shares
    return model.layout.to_grid(whole)


def projected(block: TransformerBlock, values: Tensor) -> Tensor:
    """Project values for rollout by norms: each head's part of the output projection, `[b h t k]` → `[b h t d]`."""
    heads, k = values.shape[1], values.shape[-1]
    exact = torch.promote_types(values.dtype, torch.float32)  # products of half precision overflow
    weight = block.attn.proj.weight.unflatten(1, (heads, k)).to(exact)  # [d h k]
    result: Tensor = block.ls1(torch.einsum("b h t k, d h k -> b h t d", values.to(exact), weight))
    return result


def value_norms(attention: Tensor, values: Tensor) -> Tensor:
    """Compute for rollout by norms ‖Σ_h A_hij f_hj‖, from attention `[b h t t]` and values `[b h t d]`: `[b t t]`.

    The square is Σ_hg A_hij A_gij ⟨f_hj, f_gj⟩: the vectors themselves, `[b t t d]`, are never made.

    >>> value_norms(torch.tensor([[[[0.5]], [[0.5]]]]), torch.tensor([[[[3.0, 0.0]], [[3.0, 8.0]]]]))  # ‖(3, 4)‖
    tensor([[[5.]]])
    """
    products = torch.einsum("b h t d, b g t d -> b h g t", values, values)
    square = torch.zeros_like(attention[:, 0])
    for head in range(attention.shape[1]):
        square += attention[:, head] * torch.einsum("b g i j, b g j -> b i j", attention, products[:, head])
    return square.clamp_min(0).sqrt()
