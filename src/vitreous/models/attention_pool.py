"""`AttentionPool`: pool tokens by attention from a learned query, the MAP head of SigLIP (Zhai et al., 2022 and 2023).

"Scaling Vision Transformers" replaces the class token by this head: one learned query, the probe, attends to all tokens
once after the last block (Lee et al., 2019, "Set Transformer"), and an MLP with a residual connection follows.

Shapes:  b images · t tokens · d width · h heads · k width of one head
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.hooks import hook, hooked_attention

if TYPE_CHECKING:
    from vitreous.models.vit_config import ViTConfig


class AttentionPool(nn.Module):
    """Pool tokens to one vector by attention: `[b t d]` → `[b d]`."""

    own = 0
    """Tokens of its own in front of those that it pools."""

    def __init__(self, config: "ViTConfig", activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        width, hidden = config.width, config.pool_mlp_width
        self.heads, self.activation = config.pool_heads, activation
        self.latent = nn.Parameter(torch.zeros(1, 1, width))  # the probe
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})

    def reset_parameters(self) -> None:
        """Draw the probe of an attention pool; its layers are initialised as all others of the model."""
        nn.init.trunc_normal_(self.latent, std=self.latent.shape[-1] ** -0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens by attention from the probe; `mask`, broadcastable to `[b h 1 t]`, is added or forbids."""
        b, _, d = x.shape
        split = partial(torch.unflatten, dim=-1, sizes=(self.heads, d // self.heads))
        q = split(self.q(self.latent)).transpose(1, 2).expand(b, -1, -1, -1)  # [b h 1 k]
        k, v = split(self.kv(x).unflatten(-1, (2, d))).permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
        q, k, v = hook(self, "q", q), hook(self, "k", k), hook(self, "v", v)
        mixed = hooked_attention(self, q, k, v, mask)  # None unless a hook changes it
        if mixed is None:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        pooled = self.proj(hook(self, "mixed", mixed).transpose(1, 2).reshape(b, d))
        hidden = self.activation(self.mlp["fc1"](self.norm(pooled)))
        result: Tensor = pooled + self.mlp["fc2"](hidden)
        return result
