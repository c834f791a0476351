"""`ViT`: the network of "An Image is Worth 16×16 Words" (Dosovitskiy et al., 2021), leaf to whole.

Read top to bottom: an image is cut into patches and each is projected to a token (`PatchEmbedding`, eq. 1), tokens
attend to each other (`Attention`), an `MLP` transforms each token separately, both with a residual connection
(`TransformerBlock`, eq. 2 and 3), and a head reads the class token (`MLPHead`, eq. 4). `ViT` puts the equations
together. One `ViTConfig` also covers DeiT, AugReg, MAE, DINO, DINOv2 and CLIP's vision tower: their differences are
fields, not subclasses. State-dict keys are timm's. `hook` names a value for `inside/capture.py` and
`inside/intervene.py`; without them it returns the value unchanged.

Shapes:  b images · c channels · H W pixels · n patches · t tokens · d width · h heads · k width of one head
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.attention_pool import AttentionPool
from vitreous.models.cait import ClassAttention, HeadMixing, TalkingHeads
from vitreous.models.dense_head import DenseHead, spread_blocks
from vitreous.models.hooks import hook, hooked_attention
from vitreous.models.qv_bias import QVLinear
from vitreous.models.relative_position import add_relative_position, relative_position, share
from vitreous.models.residual import LayerScale, StochasticDepth
from vitreous.models.rope import RotaryPositions, rotate, share_rotation
from vitreous.models.stems import build_stem
from vitreous.models.vit_config import ViTConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # what JAX calls gelu
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),  # OpenAI's CLIP
    "relu": F.relu,
    "silu": F.silu,
}
POOLS: dict[str, type[AttentionPool | ClassAttention]] = {"attention": AttentionPool, "class-attention": ClassAttention}
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}  # the second without mean and shift (Zhang & Sennrich, 2019)
RESET_THEMSELVES = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, AttentionPool, ClassAttention, HeadMixing, RotaryPositions)


def check_batch(x: object) -> None:
    """Raise a `TypeError` that says how to run a ViT on an image, if `x` is no tensor."""
    if not isinstance(x, Tensor):
        advice = "use vitreous.classify(image, model), or pass model.card.preprocess(image)[None]"
        raise TypeError(f"expected a batch of images as a tensor [b c H W], got {type(x).__name__}: {advice}")


class PatchEmbedding(nn.Module):
    """Cut the image into patches and project each to a token: x_p E of equation 1.

    Equal to a strided convolution; a reshape and one matrix product is plainer and no slower. The weight keeps the
    convolution's shape, so that `proj.weight[i]` is a filter that can be drawn.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.size, self.patch, self.channels = config.size, config.patch, config.channels
        self.partial = config.partial_patches
        self.backbone = build_stem(config)
        channels = config.channels if self.backbone is None else self.backbone.channels
        self.kernel = config.patch[0] // config.stem_stride, config.patch[1] // config.stem_stride
        self.proj = nn.Conv2d(channels, config.width, self.kernel, self.kernel, bias=config.patch_bias)
        self.norm = NORMS[config.norm](config.width, eps=config.norm_eps) if config.patch_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        check_batch(x)
        if x.dim() != 4 or x.shape[1:] != (self.channels, *self.size):
            raise ValueError(self._wrong(x))
        return hook(self, "patches", self.project(x))

    def project(self, x: Tensor) -> Tensor:
        """Cut images into the ViT's patches, any whole number of them, and project each: `[b c H W]` → `[b n d]`."""
        if self.backbone is not None:
            x = self.backbone(x)
        (b, c, height, width), (p, q) = x.shape, self.kernel
        if self.partial:
            x = x[:, :, : height // p * p, : width // q * q]
        x = x.reshape(b, c, height // p, p, width // q, q)
        x = x.permute(0, 2, 4, 1, 3, 5).reshape(b, height // p * (width // q), c * p * q)  # [b n cpq]
        tokens: Tensor = self.norm(F.linear(x, self.proj.weight.flatten(1), self.proj.bias))
        return tokens

    def _wrong(self, x: Tensor) -> str:
        """Write why this ViT cannot take a batch: its shape, channels or image size."""
        takes = f"this model takes [b {self.channels} {self.size[0]} {self.size[1]}], got {list(x.shape)}"
        if x.dim() != 4 or x.shape[1] != self.channels:
            return f"{takes}: preprocess the image with model.card.preprocess and stack images to a batch"
        fits = tuple(max(side // p, 1) * p for side, p in zip(x.shape[2:], self.patch, strict=True))
        return f"{takes}: preprocess the image, or load the model with image_size={fits}"


def sine_positions(config: ViTConfig, grid: tuple[int, int] | None = None) -> Tensor:
    """Compute the ViT's fixed positions of a grid, sines and cosines: `[1 t d]`, or `[1 n d]` without prefix slots.

    1-D numbers the tokens as "Attention is All You Need" does; 2-D has half of the width for rows, half for columns.
    """
    (rows, columns), prefix = grid or config.grid, config.positions - config.layout.patches
    if config.position == "sine-1d":
        return sines(prefix + rows * columns, config.width)[None]
    half = config.width // 2
    row_part = sines(rows, half)[:, None].expand(rows, columns, half)
    column_part = sines(columns, half)[None].expand(rows, columns, half)
    table = torch.cat([row_part, column_part], dim=-1).reshape(rows * columns, config.width)  # [n d]
    return torch.cat([torch.zeros(prefix, config.width), table])[None]


def sines(positions: int, width: int) -> Tensor:
    """Compute one axis of the ViT's fixed position embeddings: sines and cosines, `[positions width]`."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(positions)[:, None] * rates  # [positions width/2]
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [positions width]


class Attention(nn.Module):
    """Multi-head self-attention (paper, appendix A)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.attention_dropout
        linear = QVLinear if config.qv_bias else partial(nn.Linear, out_features=3 * config.width, bias=config.qkv_bias)
        self.qkv = linear(config.width)  # U_qkv, eq. 5
        norm = partial(NORMS[config.norm], config.width // config.heads, eps=config.norm_eps)
        self.q_norm = norm() if config.qk_norm else nn.Identity()
        self.k_norm = norm() if config.qk_norm else nn.Identity()
        self.talk = TalkingHeads(config.heads) if config.talking_heads else None
        self.rel_pos, self.shared_rel_pos = relative_position(config), ()
        self.rotary: tuple[Any, ...] = ()  # rotary positions and the number of this block, if the network has them
        self.norm = NORMS[config.norm](config.width, eps=config.norm_eps) if config.attention_norm else nn.Identity()
        self.proj = nn.Linear(config.width, config.width, bias=config.branch_bias)  # U_msa, eq. 8
        self.proj_drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [b h t k]
        q, k = rotate(self, self.q_norm(q)), rotate(self, self.k_norm(k))
        q, k, v = hook(self, "q", q), hook(self, "k", k), hook(self, "v", v)
        mask = add_relative_position(self, mask, q.dtype)
        dropout = self.dropout if self.training else 0.0
        attend = hooked_attention if self.talk is None else self.talk
        mixed = attend(self, q, k, v, mask, dropout)  # None unless a hook changes it, or heads talk
        if mixed is None:
            # softmax(q kᵀ / √k) v (eq. 6 and 7), in one fused kernel that never keeps the [b h t t] matrix
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)  # [b h t k]
        x = hook(self, "mixed", mixed).transpose(1, 2).reshape(b, t, d)  # heads side by side
        return hook(self, "attention_output", self.proj_drop(self.proj(self.norm(x))))


class MLP(nn.Module):
    """Two linear layers with an activation between, applied to each token; SwiGLU adds a gate to the first."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.swiglu = config.swiglu
        self.activation = "silu" if config.swiglu else config.activation
        self.fc1 = nn.Linear(config.width, config.mlp_width * (2 if config.swiglu else 1), bias=config.branch_bias)
        self.norm = NORMS[config.norm](config.mlp_width, eps=config.norm_eps) if config.mlp_norm else nn.Identity()
        self.fc2 = nn.Linear(config.mlp_width, config.width, bias=config.branch_bias)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)  # [b t mlp_width], twice that if gated
        if self.swiglu:
            gate, x = x.chunk(2, dim=-1)
            x = ACTIVATIONS[self.activation](gate) * x
        else:
            x = ACTIVATIONS[self.activation](x)
        x = hook(self, "mlp_hidden", self.drop(x))
        return hook(self, "mlp_output", self.drop(self.fc2(self.norm(x))))


class TransformerBlock(nn.Module):
    """Equations 2 and 3: attention, then MLP, each after a layer norm and with a residual connection."""

    def __init__(self, config: ViTConfig, stochastic_depth: float = 0.0) -> None:
        super().__init__()
        norm = partial(NORMS[config.norm], config.width, eps=config.norm_eps)
        scale = partial(LayerScale, config.width, config.layer_scale) if config.layer_scale else nn.Identity
        self.norm1, self.attn, self.ls1 = norm(), Attention(config), scale()
        self.norm2, self.mlp, self.ls2 = norm(), MLP(config), scale()
        self.post_norm, self.residual_norm = config.post_norm, config.residual_norm
        self.skip = StochasticDepth(stochastic_depth)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x, later = hook(self, "input", x), self.post_norm or self.residual_norm
        y = hook(self, "norm1", x if later else self.norm1(x))
        after = self.norm1 if self.post_norm else self.ls1
        x = x + self.skip(after(self.attn(y, mask)))  # z' = MSA(LN(z)) + z, eq. 2
        x = hook(self, "middle", self.norm1(x) if self.residual_norm else x)
        y = hook(self, "norm2", x if later else self.norm2(x))
        after = self.norm2 if self.post_norm else self.ls2
        x = x + self.skip(after(self.mlp(y)))  # z = MLP(LN(z')) + z', eq. 3
        return hook(self, "output", self.norm2(x) if self.residual_norm else x)


class MLPHead(nn.Module):
    """Features to logits: one linear layer, or a hidden tanh layer before it for pre-training (paper, section 3.1).

    Without classes it returns the features.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        inputs = config.feature_width
        self.hidden = nn.Linear(inputs, config.representation_size) if config.representation_size else None
        inputs = config.representation_size or inputs
        self.norm = nn.RMSNorm(inputs, eps=1e-12) if config.head_norm else None  # features' direction, as CLIP
        self.weight = nn.Parameter(torch.zeros(config.classes, inputs)) if config.classes else None
        self.bias = nn.Parameter(torch.zeros(config.classes)) if config.classes and config.head_bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.hidden is not None:
            x = self.hidden(x) if self.norm is not None else torch.tanh(self.hidden(x))
        if self.norm is not None:
            x = self.norm(x)
        return x if self.weight is None else F.linear(x, self.weight, self.bias)


class ViT(nn.Module):
    """The whole network: images `[b c H W]` → logits `[b classes]`, or `[b classes H W]` with a dense head.

    >>> model = ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=3, classes=10))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> model.forward_features(torch.randn(2, 3, 32, 32)).shape  # class token + 4×4 patches
    torch.Size([2, 17, 48])
    """

    card: Any = None
    """Where the weights came from, the preprocessing and the class names (`vitreous.weights.card.Card`)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config, self.layout = config, config.layout
        norm = partial(NORMS[config.norm], config.width, eps=config.norm_eps)

        def token(count: int) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(1, count, config.width)) if count else None

        self.patch_embed = PatchEmbedding(config)
        self.cls_token = token(config.class_token)
        self.dist_token = token(config.distillation_token)
        self.reg_token = token(config.registers)
        if config.position == "learned":
            self.pos_embed: Tensor | None = token(config.positions)
        else:  # fixed positions are computed, not stored
            with torch.device("cpu"):  # real values even if the model is built on the meta device
                table = None if config.position == "none" else sine_positions(config)
            self.register_buffer("pos_embed", table, persistent=False)
        self.pos_drop = nn.Dropout(config.dropout)
        self.norm_pre = norm() if config.embedding_norm else nn.Identity()
        rates = torch.linspace(0, config.stochastic_depth, config.depth, device="cpu").tolist()
        self.blocks = nn.ModuleList(TransformerBlock(config, rate) for rate in rates)
        self.shared_rel_pos = share(relative_position(config, shared=True), self.blocks)
        self.rope = share_rotation(RotaryPositions(config) if config.rope != "none" else None, self.blocks)
        self.norm = norm() if config.final_norm else nn.Identity()
        pool = POOLS.get(config.pool)
        self.attn_pool = None if pool is None else pool(config, ACTIVATIONS[config.activation])
        after = partial(NORMS[config.norm], config.feature_width, eps=config.norm_eps)
        self.fc_norm = after() if config.fc_norm else nn.Identity()
        self.head: MLPHead | DenseHead = MLPHead(config) if config.dense == "none" else DenseHead(config)
        self.head_dist = MLPHead(config) if config.distillation_head else None
        self.reset_parameters()

    def reset_parameters(self, part: nn.Module | None = None) -> None:
        """Initialise all weights, or a new part's; heads start at zero, as in the paper's fine-tuning (section 3.2)."""
        if self.patch_embed.proj.weight.is_meta:
            return  # nothing to initialise, and torch 2.11 would load its compiler for it
        for module in (self if part is None else part).modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                # the patch embedding by its fan-in, as the paper's JAX code; the rest as BERT and timm do
                std = module.weight[0].numel() ** -0.5 if isinstance(module, nn.Conv2d) else 0.02
                nn.init.trunc_normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RESET_THEMSELVES):
                module.reset_parameters()
            elif isinstance(module, LayerScale):
                nn.init.constant_(module.gamma, self.config.layer_scale)
        places = ("pos_embed", self.config.position_std)
        for name, std in (places, ("cls_token", 1e-6), ("dist_token", 0.02), ("reg_token", 1e-6)):
            value = getattr(self, name)
            if isinstance(value, nn.Parameter) and part is None:
                nn.init.trunc_normal_(value, std=std, a=-100 * std, b=100 * std)  # never cut off

    def embed(self, x: Tensor) -> Tensor:
        """Turn images into the first block's input: z₀ = [x_class; x_p E] + E_pos, eq. 1."""
        return self.assemble(self.patch_embed(x), self.pos_embed)

    def assemble(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Compute the ViT's z₀ (eq. 1), prefix tokens first and positions added: `[b n d]` → `[b t d]`.

        Prefix tokens are the class token, the distillation token and the registers.
        """
        if positions is not None and not self.config.prefix_positions:
            x = x + positions
        prefix = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        x = torch.cat([token.expand(x.shape[0], -1, -1) for token in prefix] + [x], dim=1)  # [b t d]
        if positions is not None and self.config.prefix_positions:
            x = x + positions  # after the class token is prepended: it has a position too
        return hook(self, "embedding", self.norm_pre(self.pos_drop(x)))

    def forward_features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Turn images into the last block's normalised tokens: `[b t d]`.

        `mask` is a boolean `[t t]`, or broadcastable to `[b h t t]`: True where a row's token may attend to a column's.
        """
        return self.run_blocks(self.embed(x), mask)[-1]

    def run_blocks(self, x: Tensor, mask: Tensor | None = None, first: int = 0) -> list[Tensor]:
        """Run the blocks, from the `first` on: `[b t d]` → the last one's normalised tokens, what heads read.

        Before them in the list are the outputs of other blocks that a dense head reads.
        """
        read = []
        for number, block in enumerate(self.blocks[first:], first):
            if number - 1 in self.config.dense_blocks:
                read.append(x)
            x = block(x, mask)
        return [*read, hook(self, "tokens", self.norm(x))]

    def pool(self, tokens: Tensor) -> Tensor:
        """Pool the output of the ViT's blocks for its head: `[b t d]` → `[b d]`, or `[b 2d]` for "token+mean"."""
        parts = []
        if self.attn_pool is not None:
            parts.append(self.attn_pool(tokens if self.config.pool_prefix else tokens[:, self.layout.prefix :]))
        if "token" in self.config.pool:
            parts.append(tokens[:, 0])  # y = LN(z_L⁰), eq. 4
        if "mean" in self.config.pool:
            parts.append(tokens[:, self.layout.prefix :].mean(dim=1))
        return hook(self, "pooled", self.fc_norm(torch.cat(parts, dim=-1)))

    def forward_head(self, *tokens: Tensor) -> Tensor:
        """Turn what `run_blocks` gives, `[b t d]` each, into logits `[b classes]`, or `[b classes H W]` if dense."""
        if self.config.dense != "none":
            grids = [self.layout.to_grid(y.transpose(1, 2)) for y in tokens]  # [b d rows columns] each
            whole = self.config.last_read == self.config.depth - 1
            return hook(self, "logits", self.head(grids if whole else grids[:-1], self.config.size))
        (last,) = tokens
        logits: Tensor = self.head(self.pool(last))
        if self.head_dist is not None:  # DeiT averages the logits of its two heads
            logits = (logits + self.head_dist(self.fc_norm(last[:, 1]))) / 2
        return hook(self, "logits", logits)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.forward_head(*self.run_blocks(self.embed(x), mask))

    def features(self, x: Tensor) -> Tensor:
        """Run the ViT without its head: images `[b c H W]` to pooled features `[b feature_width]`."""
        return self.pool(self.forward_features(x))

    def get_intermediate_layers(
        self, x: Tensor, n: int | list[int] = 1, *, reshape: bool = False, norm: bool = False
    ) -> list[Tensor]:
        """Run the ViT and return the outputs of some blocks: the last `n`, or those numbered in a list. Each `[b t d]`.

        With `reshape` the patches alone, laid out as `[b d rows columns]`; with `norm` after the final layer norm.
        """
        depth, wanted = self.config.depth, list(range(-n, 0)) if isinstance(n, int) else n
        if not wanted or not all(-depth <= i < depth for i in wanted):
            raise ValueError(f"this model has blocks 0 to {depth - 1}, got n={n}")
        outputs = [self.embed(x)]
        for block in self.blocks[: max(i % depth for i in wanted) + 1]:
            outputs.append(block(outputs[-1]))
        tokens = [self.norm(outputs[i % depth + 1]) if norm else outputs[i % depth + 1] for i in wanted]
        return [self.layout.to_grid(y.transpose(1, 2)) for y in tokens] if reshape else tokens

    def reset_classifier(
        self, classes: int, pool: Literal["token", "mean", "token+mean", "attention"] | None = None
    ) -> None:
        """Change this ViT's head to a new linear one with zero weights: `classes` outputs, or none for 0.

        A `pool` other than the model's replaces that too; by attention, its weights are drawn.
        """
        changes: dict[str, Any] = {"representation_size": 0, "head_norm": False, "dense": "none", "dense_blocks": ()}
        if pool not in (None, self.config.pool):
            changes |= {"pool": pool, "pool_heads": 0, "pool_layers": 0, "pool_mlp_width": 0, "pool_prefix": False}
        if not classes:
            changes["distillation_head"] = False
        config = replace(self.config, classes=classes, head_bias=True, **changes)
        like = next(self.parameters())
        if config.pool != self.config.pool:
            kind = POOLS.get(config.pool)
            self.attn_pool = None if kind is None else self._drawn(kind(config, ACTIVATIONS[config.activation]))
        self.head = MLPHead(config).to(like)
        self.head_dist = MLPHead(config).to(like) if config.distillation_head else None
        if config.fc_norm and config.feature_width != self.config.feature_width:
            self.fc_norm = NORMS[config.norm](config.feature_width, eps=config.norm_eps).to(like)
        self.config, self.card = config, self.card and self.card.with_new_head(classes)

    def reset_dense(
        self, classes: int, kind: Literal["linear", "decoder"] = "linear", blocks: Sequence[int] | None = None
    ) -> None:
        """Change this ViT's head to a new dense one that reads `blocks`, by default four, spread evenly to the last."""
        changes: dict[str, Any] = {"representation_size": 0, "head_norm": False, "distillation_head": False}
        read = spread_blocks(self.config.depth) if blocks is None else tuple(blocks)
        config = replace(self.config, classes=classes, head_bias=True, dense=kind, dense_blocks=read, **changes)
        self.head, self.head_dist, self.config = self._drawn(DenseHead(config)), None, config
        self.card = self.card and self.card.with_new_head(classes, "segment")

    def _drawn(self, part: Any) -> Any:
        """Initialise a part that this ViT gets later, such as a head, and move it to the others' device and type."""
        self.reset_parameters(part)
        return part.to(next(self.parameters()))

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Self:
        """Create a `ViT` with pre-trained weights, by name or path, through `vitreous.load`."""
        from vitreous.weights.load import load  # not at the top: this file needs torch alone

        model = load(name, **options)
        if not isinstance(model, cls):
            raise ValueError(f"{name} holds a {type(model).__name__}, not a ViT: use vitreous.load")
        return model

    def save_pretrained(self, folder: str) -> None:
        """Let this ViT save itself: `config.json` and `model.safetensors`, which `from_pretrained` reads back."""
        from vitreous.weights.save import save

        save(self, folder)
