"""Attention rollout: how much of each input token reaches an output token (Abnar & Zuidema, 2020).

A layer passes on half of each token by the shortcut and half by attention; the layers' matrices are multiplied. The
whole product is `rollout`. An image needs one row of it, and a row can be carried from the last layer down to the
first with no product of matrices: `rollout_row`, and `rollout_map` from a model, one layer's attention at a time.

Shapes:  l layers · b images · h heads · t tokens
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.inside.attention import attention_of, readout
from vitreous.inside.capture import capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.models.tokens import TokenLayout

FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda attention: attention.mean(dim=1),
    "max": lambda attention: attention.amax(dim=1),
    "min": lambda attention: attention.amin(dim=1),
}


@dataclass(frozen=True)
class _Flow:
    """One layer's attention `[b h t t]` to what it passes on between tokens `[b t t]`; each row sums to 1."""

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
            raise ValueError(f"residual is the shortcut's share, from 0 to 1, got {self.residual}")

    def __call__(self, attention: Tensor) -> Tensor:
        fused = FUSIONS[self.fusion](attention)  # [b t t]
        fused = fused.to(torch.promote_types(fused.dtype, torch.float32))
        if self.discard:
            fused = self.without_smallest(fused)
        identity = torch.eye(fused.shape[-1]).to(fused)
        total = fused.sum(dim=-1, keepdim=True)
        fused = torch.where(total > 0, fused / total, identity)  # a token left with nothing keeps itself
        return self.residual * identity + (1 - self.residual) * fused

    def without_smallest(self, fused: Tensor) -> Tensor:
        """Zero the smallest entries; attention to tokens that are no patch stays. What ties with a kept one is kept."""
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
    """Attention of all layers, first to last, `[l b h t t]`, to the share each token has of each: `[b t t]`.

    Each row sums to 1. Heads are fused by their mean, max or min. `discard` drops that share of a fused matrix's
    smallest entries, of those to patches alone when `layout` tells which they are. `residual` is the shortcut's share.

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
    """`row @ rollout(…)`, from layers given last to first, each `[b h t t]`: a row `[t]` or `[b t]` → `[b t]`.

    A generator of layers is asked for one at a time, and a layer is let go before the next is asked for.

    >>> layers = torch.rand(3, 1, 2, 5, 5).softmax(dim=-1)
    >>> row = rollout_row(layers.flip(0), torch.tensor([1.0, 0, 0, 0, 0]))
    >>> torch.allclose(row, rollout(layers)[:, 0])
    True
    """
    flow = _Flow(fusion, discard, residual, layout)
    for layer in attention:
        matrix = flow(layer)
        del layer  # [b h t t]: by far the largest thing here
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
    """The share each patch has in what the head reads: images `[b c H W]` → `[b rows columns]`.

    `query` asks for another token's share. Attention is worked out from the last layer to the first, one at a time, so
    that 3,137 tokens need about half a gigabyte for six heads.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> rollout_map(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 8, 8])
    """
    plain, _ = underneath(model)
    with capture(model, "norm1") as seen:
        model(x)
    layers = (attention_of(plain, layer, seen[full_name("norm1", layer)]) for layer in reversed(seen.layers))
    row = readout(plain)
    if query is not None:
        plain.layout.patch(query)  # refuses a token that does not exist
        row = torch.eye(plain.layout.tokens, device=row.device)[query]
    options = {"fusion": fusion, "discard": discard, "residual": residual, "layout": plain.layout}
    return plain.layout.to_grid(rollout_row(layers, row, **options))  # type: ignore[arg-type]
