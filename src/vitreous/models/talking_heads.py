"""`TalkingHeads`: attention whose heads are mixed before and after the softmax (Shazeer et al., 2020; in CaiT).

A head's scores become a weighted sum of all heads' scores, and its attention a weighted sum of all heads' attention. So
a row of attention need not sum to 1 and can be negative, and no fused kernel computes it.

Shapes:  b images · h heads · t tokens · k width of one head
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hooks import hook, hooks_active, masked, scaled


class HeadMixing(nn.Module):
    """Replace each head's matrix by a weighted sum of all heads': `[b h t t]` → `[b h t t]`."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(heads))
        self.bias = nn.Parameter(torch.zeros(heads))

    def reset_parameters(self) -> None:
        """Start with heads that do not talk: the identity."""
        nn.init.eye_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.movedim(1, -1), self.weight, self.bias).movedim(-1, 1)


class TalkingHeads(nn.Module):
    """Attention with a mixing of heads before the softmax, `proj_l`, and one after it, `proj_w`."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.proj_l, self.proj_w = HeadMixing(heads), HeadMixing(heads)

    def forward(self, owner: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        """Compute attention of queries, keys and values `[b h t k]` → `[b h t k]`; hooks see it as `owner`'s."""
        scores = hook(owner, "scores", masked(self.proj_l(scaled(q) @ k.transpose(-2, -1)), mask))
        attention: Tensor = self.proj_w(scores.softmax(dim=-1))
        if mask is not None or hooks_active():  # proj_w's bias must not bring back attention that is forbidden
            attention = attention.nan_to_num().masked_fill(scores == float("-inf"), 0.0)
        return F.dropout(hook(owner, "attention", attention), dropout, training=dropout > 0) @ v
