"""What CaiT adds to a ViT (Touvron et al., 2021): `ClassAttention` after the blocks, and `TalkingHeads` in them.

"Going deeper with Image Transformers": the blocks see patches alone. Then the class token, which they never met,
attends to itself and to the patches in a few layers of attention and MLP; the patches stay as they are.
`capture` sees the last of these layers as the model's pool.

Heads talk (Shazeer et al., 2020): a head's scores become a weighted sum of all heads' scores, and its attention a
weighted sum of all heads' attention. So a row of attention need not sum to 1 and can be negative, and no fused kernel
computes it.

Shapes:  b images · t tokens · d width · h heads · k width of one head
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hooks import hook, hooked_attention, hooks_active, masked, scaled
from vitreous.models.residual import LayerScale

if TYPE_CHECKING:
    from vitreous.models.vit_config import ViTConfig


class ClassAttentionLayer(nn.Module):
    """One layer: the class token attends to itself and the patches, and an MLP follows, both with a residual."""

    def __init__(self, config: "ViTConfig", activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        width, hidden = config.width, config.pool_mlp_width
        self.heads, self.activation = config.pool_heads, activation
        self.norm1, self.norm2 = (nn.LayerNorm(width, config.norm_eps) for _ in range(2))
        projection = partial(nn.Linear, width, width, bias=config.qkv_bias)
        self.q, self.k, self.v, self.proj = projection(), projection(), projection(), nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})
        self.ls1, self.ls2 = (LayerScale(width, config.layer_scale) for _ in range(2))

    def forward(self, token: Tensor, x: Tensor, mask: Tensor | None, owner: nn.Module) -> Tensor:
        """Update CaiT's class token `[b 1 d]` from the patches `[b t d]`; hooks see attention as `owner`'s."""
        both = self.norm1(torch.cat([token, x], dim=1))
        split = partial(torch.unflatten, dim=-1, sizes=(self.heads, x.shape[-1] // self.heads))
        q, k, v = (split(part).transpose(1, 2) for part in (self.q(both[:, :1]), self.k(both), self.v(both)))
        q, k, v = hook(owner, "q", q), hook(owner, "k", k), hook(owner, "v", v)  # [b h 1 k], [b h 1+t k]
        mixed = hooked_attention(owner, q, k, v, mask)  # None unless a hook changes it
        if mixed is None:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        token = token + self.ls1(self.proj(hook(owner, "mixed", mixed).transpose(1, 2).flatten(2)))
        hidden = self.activation(self.mlp["fc1"](self.norm2(token)))
        result: Tensor = token + self.ls2(self.mlp["fc2"](hidden))
        return result


class ClassAttention(nn.Module):
    """Pool tokens to one vector by a class token that attends to them in several layers: `[b t d]` → `[b d]`."""

    own = 1
    """Tokens of its own in front of those that it pools: the class token attends to itself, too."""

    def __init__(self, config: "ViTConfig", activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.layers = nn.ModuleList(ClassAttentionLayer(config, activation) for _ in range(config.pool_layers))

    def reset_parameters(self) -> None:
        """Draw CaiT's class token; the layers are initialised as all others of the model."""
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens by CaiT's class attention; `mask`, broadcastable to `[b h 1 t]`, is added or forbids."""
        token = self.cls_token.expand(x.shape[0], -1, -1)
        if mask is not None:  # the class token sees itself
            mask = F.pad(mask, (self.own, 0), value=mask.dtype == torch.bool)
        for layer in self.layers:
            token = layer(token, x, mask, self)
        return token[:, 0]


class HeadMixing(nn.Module):
    """Replace each head's matrix by a weighted sum of all heads': `[b h t t]` → `[b h t t]`."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(heads))
        self.bias = nn.Parameter(torch.zeros(heads))

    def reset_parameters(self) -> None:
        """Start CaiT's talking heads with the identity: heads that do not talk."""
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
        """Compute attention with CaiT's talking heads: `[b h t k]` each → `[b h t k]`; hooks see it as `owner`'s."""
        scores = hook(owner, "scores", masked(self.proj_l(scaled(q) @ k.transpose(-2, -1)), mask))
        attention: Tensor = self.proj_w(scores.softmax(dim=-1))
        if mask is not None or hooks_active():  # proj_w's bias must not bring back attention that is forbidden
            attention = attention.nan_to_num().masked_fill(scores == float("-inf"), 0.0)
        return F.dropout(hook(owner, "attention", attention), dropout, training=dropout > 0) @ v
