"""`ViT` and `ViTConfig`: the network of "An Image is Worth 16×16 Words" (Dosovitskiy et al., 2021), leaf to whole.

Read top to bottom: an image is cut into patches and each is projected to a token (`PatchEmbedding`, eq. 1), tokens
attend to each other (`Attention`), an `MLP` transforms each token separately, both with a residual connection
(`TransformerBlock`, eq. 2 and 3), and a head reads the class token (`MLPHead`, eq. 4). `ViT` puts the equations
together. One `ViTConfig` also covers DeiT, AugReg, MAE, DINO, DINOv2 and CLIP's vision tower: their differences are
fields, not subclasses. State-dict keys are timm's. `hook` names a value for `inside/capture.py` and
`inside/intervene.py`; without them it returns the value unchanged.

Shapes:  b images · c channels · H W pixels · n patches · t tokens · d width · h heads · k width of one head
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.attention_pool import AttentionPool
from vitreous.models.hooks import hook, hooked_attention
from vitreous.models.hybrid_stem import STEMS, HybridStem
from vitreous.models.qv_bias import QVLinear
from vitreous.models.relative_position import add_relative_position, relative_position, share
from vitreous.models.residual import LayerScale, StochasticDepth
from vitreous.models.rope import RotaryPositions, rotate, share_rotation
from vitreous.models.tokens import TokenLayout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # what JAX calls gelu
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),  # OpenAI's CLIP
    "relu": F.relu,
    "silu": F.silu,
}
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}  # the second without mean and shift (Zhang & Sennrich, 2019)
LARGEST = 2**24
"""Upper limit of every size and count in a config."""


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides a ViT's shape, checked when it is created.

    >>> ViTConfig(image_size=32, patch_size=4, width=64, heads=4, depth=2).layout.tokens
    65
    """

    image_size: int | tuple[int, int] = 224
    """Height and width of the images in pixels; one number means square."""
    patch_size: int | tuple[int, int] = 16
    """Height and width of a patch in pixels; one number means square."""
    channels: int = 3
    """Colour channels of an image."""
    classes: int = 1000
    """Outputs of the head; 0 means no head: the model returns its pooled features."""
    width: int = 768
    """Length of a token (the paper's D)."""
    depth: int = 12
    """Number of transformer blocks (the paper's L)."""
    heads: int = 12
    """Attention heads in each block."""
    mlp_width: int = 0
    """Hidden width of each block's MLP; 0 means 4 × width, the paper's choice."""
    pool: Literal["token", "mean", "token+mean", "attention"] = "token"
    """What the head reads: the class token, the mean of the patches, both side by side (DINOv2's classifier), or the
    tokens pooled by attention (SigLIP)."""
    class_token: bool = True
    """Put a learned token in front of the patches."""
    distillation_token: bool = False
    """Put DeiT's distillation token after the class token."""
    distillation_head: bool = False
    """Give the distillation token a head of its own; the two heads' logits are averaged."""
    registers: int = 0
    """Learned tokens that carry no patch (DINOv2 with registers)."""
    position: Literal["learned", "sine-1d", "sine-2d", "none"] = "learned"
    """Kind of position embedding."""
    prefix_positions: bool = True
    """Positions have slots for the tokens in front of the patches; DeiT-III and DINOv2-with-registers have none."""
    patch_bias: bool = True
    """Bias in the patch embedding; CLIP has none."""
    qkv_bias: bool = True
    """Bias in the projections to queries, keys and values."""
    qk_norm: bool = False
    """Layer-normalise queries and keys in each head."""
    swiglu: bool = False
    """Gated MLP, as in DINOv2 giant."""
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"] = "gelu"
    """The MLP's activation."""
    norm_eps: float = 1e-6
    """Epsilon of every layer norm."""
    embedding_norm: bool = False
    """Layer norm before the first block (CLIP)."""
    final_norm: bool = True
    """Layer norm after the last block (the LN of equation 4)."""
    fc_norm: bool = False
    """Layer norm after pooling (MAE's and others' mean-pooled classifiers)."""
    layer_scale: float = 0.0
    """First value of the learned scale on each branch (DeiT-III, DINOv2); 0 means none."""
    representation_size: int = 0
    """Width of the pre-training head's hidden tanh layer; 0 means the fine-tuning head, one linear layer."""
    head_bias: bool = True
    """Bias in the head; CLIP's projection has none."""
    dropout: float = 0.0
    """Dropout after the embedding and every dense layer but q, k, v and the head (paper, appendix B.1)."""
    attention_dropout: float = 0.0
    """Dropout on attention weights."""
    stochastic_depth: float = 0.0
    """Probability to skip a branch of the last block in training; it grows linearly from 0 at the first block."""
    partial_patches: bool = False
    """Pixels at the right and the bottom that fill no patch are left out (SigLIP: 384 pixels in patches of 14)."""
    rope: Literal["none", "axial", "mixed", "dinov3"] = "none"
    """Rotary positions: by row and column (EVA-02), at rates learned for each head, or by DINOv3's coordinates."""
    rope_temperature: float = 10000.0
    """Longest period of a rotation in relation to the shortest."""
    rope_offset: float = 0.0
    """Added to the row and column of each patch before it is rotated (Perception Encoder: 1)."""
    rope_reference: int = 0
    """Rows and columns of patches that other grids are rescaled to; 0 means that they are not."""
    rope_order: Literal["yx", "xy"] = "yx"
    """Which of row (y) and column (x) turns the first half of the channels."""
    attention_norm: bool = False
    """Layer norm after attention, before its output projection (EVA-02, BEiT-3)."""
    mlp_norm: bool = False
    """Layer norm on the MLP's hidden layer (EVA-02, BEiT-3)."""
    pool_heads: int = 0
    """Heads of the attention pool; 0 means as many as in a block."""
    pool_mlp_width: int = 0
    """Hidden width of the attention pool's MLP; 0 means that of a block's."""
    pool_prefix: bool = False
    """Attention pooling reads the tokens in front of the patches, too (Perception Encoder)."""
    relative_position: Literal["none", "table", "mlp", "shared-table", "shared-mlp"] = "none"
    """Bias of attention by the offset of two patches: learned (BEiT) or computed, of each block or shared by all."""
    relative_width: int = 0
    """Hidden width of the network that computes the relative position bias."""
    qv_bias: bool = False
    """Bias in the projections to queries and values, none in that to keys (BEiT, EVA)."""
    post_norm: bool = False
    """Layer norms after attention and MLP, inside the residual branches, instead of before them (Swin V2)."""

    norm: Literal["layer", "rms"] = "layer"
    """Kind of all norms: layer norm, or root mean square norm, which has no bias (AIMv2)."""
    branch_bias: bool = True
    """Bias in attention's output projection and in the MLP; AIMv2 has none."""
    patch_norm: bool = False
    """Norm on the projected patches, before positions are added (AIMv2)."""

    stem: Literal["none", "r", "r26", "r50-s16", "r50-s32"] = "none"
    """Convolutional network whose feature map is cut into patches instead of the image (the paper's hybrids)."""

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size"):
            value = getattr(self, name)
            pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
            if len(pair) != 2 or not all(type(side) is int and 0 < side <= LARGEST for side in pair):
                raise ValueError(f"{name} must be one positive whole number or a pair of them, got {value!r:.80}")
            object.__setattr__(self, name, pair)
        for field in fields(self)[2:]:
            self._check_type(field.name, type(field.default), get_args(field.type))
        if not self.mlp_width:
            object.__setattr__(self, "mlp_width", 4 * self.width)
        if self.pool == "attention":
            object.__setattr__(self, "pool_heads", self.pool_heads or self.heads)
            object.__setattr__(self, "pool_mlp_width", self.pool_mlp_width or self.mlp_width)
        self._check_numbers()
        if "token" in self.pool and not self.class_token:
            raise ValueError(f"pool={self.pool!r} reads the class token, but class_token=False: use pool='mean'")
        if self.pool != "attention" and (self.pool_heads or self.pool_mlp_width or self.pool_prefix):
            raise ValueError("pool_heads, pool_mlp_width and pool_prefix need pool='attention'")
        if self.distillation_token and not self.class_token:
            raise ValueError("distillation_token=True needs class_token=True: it stands after the class token")
        if self.relative_position != "none" and self.layout.prefix > self.class_token:
            raise ValueError(
                "relative_position knows the class token alone: set distillation_token=False and registers=0"
            )
        if self.post_norm and self.layer_scale:
            raise ValueError("post_norm=True has no layer scale: set layer_scale=0.0")
        if self.qv_bias and self.qkv_bias:
            raise ValueError("qv_bias=True says that keys have no bias, qkv_bias=True that they have: set one of them")
        if self.distillation_head and not (self.distillation_token and self.classes and self.pool == "token"):
            raise ValueError("distillation_head=True needs distillation_token=True, classes > 0 and pool='token'")

    def _check_type(self, name: str, kind: type, choices: tuple[str, ...]) -> None:
        """Check the type and range of a field: a config may come from a file."""
        value = getattr(self, name)
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (kind in (int, float) and not abs(value) <= LARGEST):
            words = {int: "a whole number", float: "a number", bool: "true or false"}
            raise ValueError(f"{name} must be {words.get(kind, 'a word')}, got {value!r:.80}")
        if choices and value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if kind is float:
            object.__setattr__(self, name, float(value))  # a file may say 1 for 1.0

    def _check_numbers(self) -> None:
        """Check the numbers of a config: ranges, and what must divide what."""
        for name in ("channels", "width", "depth", "heads", "mlp_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        sizes = ("classes", "registers", "representation_size", "pool_heads", "pool_mlp_width", "relative_width")
        for name in (*sizes, "layer_scale", "norm_eps", "rope_temperature", "rope_reference"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("heads", "pool_heads"):
            if self.width % (heads := getattr(self, name) or 1):
                near = max(h for h in range(1, min(heads, self.width) + 1) if self.width % h == 0)
                raise ValueError(f"width {self.width} cannot be split over {heads} heads: try {name}={near}")
        (height, width), (patch_height, patch_width) = self.size, self.patch
        if (height % patch_height or width % patch_width) and (not self.partial_patches or 0 in self.grid):
            fits = tuple(max(s // p, 1) * p for s, p in zip(self.size, self.patch, strict=True))
            raise ValueError(
                f"image_size {height}×{width} is not a whole number of {patch_height}×{patch_width} patches: "
                f"try image_size={fits}"
            )
        if self.stem != "none" and (patch_height % self.stem_stride or patch_width % self.stem_stride):
            raise ValueError(f"stem={self.stem!r} needs a patch_size that {self.stem_stride} divides, got {self.patch}")
        if self.relative_position.endswith("mlp") and not self.relative_width:
            raise ValueError(f"relative_position={self.relative_position!r} needs relative_width of at least 1")
        if self.rope != "none" and (self.width // self.heads % 4 or not self.rope_temperature):
            raise ValueError(f"rotary positions need heads of a width that 4 divides, got {self.width // self.heads}")
        if self.position.startswith("sine") and self.width % 4:
            raise ValueError(f"sine positions need a width that 4 divides, got {self.width}")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image."""
        return self.image_size  # type: ignore[return-value]  # a pair since __post_init__

    @property
    def patch(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return self.patch_size  # type: ignore[return-value]  # a pair since __post_init__

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    @property
    def stem_stride(self) -> int:
        """Pixels between two positions of the stem's feature map; 1 without a stem."""
        return 1 if self.stem == "none" else 4 * 2 ** max(len(STEMS[self.stem]) - 1, 0)

    @property
    def layout(self) -> TokenLayout:
        return TokenLayout(self.grid, self.class_token, self.distillation_token, self.registers)

    @property
    def positions(self) -> int:
        """Rows of the position embedding."""
        return self.layout.tokens if self.prefix_positions else self.layout.patches

    @property
    def plain(self) -> bool:
        """Whether blocks compute the paper's equations, which the fused forward passes of `speed/` are written for."""
        return self.relative_position == "none" and not self.post_norm

    @property
    def feature_width(self) -> int:
        """Length of the pooled features."""
        return 2 * self.width if self.pool == "token+mean" else self.width


def check_batch(x: object) -> None:
    """Raise a `TypeError` that says how to run a model on an image, if `x` is no tensor."""
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
        self.backbone = HybridStem(config.stem, config.channels) if config.stem != "none" else None
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
        """Project images of any whole number of patches to tokens: `[b c H W]` → `[b n d]`."""
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
        """Write why a batch does not fit the patch embedding."""
        takes = f"this model takes [b {self.channels} {self.size[0]} {self.size[1]}], got {list(x.shape)}"
        if x.dim() != 4 or x.shape[1] != self.channels:
            return f"{takes}: preprocess the image with model.card.preprocess and stack images to a batch"
        fits = tuple(max(side // p, 1) * p for side, p in zip(x.shape[2:], self.patch, strict=True))
        return f"{takes}: preprocess the image, or load the model with image_size={fits}"


def sine_positions(config: ViTConfig, grid: tuple[int, int] | None = None) -> Tensor:
    """Compute fixed position embeddings of a grid: `[1 t d]`, or `[1 n d]` without slots for the prefix tokens.

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
    """Compute sines and cosines of each position, from high to low frequency: `[positions width]`."""
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
        mixed = hooked_attention(self, q, k, v, mask, dropout)  # None unless a hook changes it
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
        self.post_norm = config.post_norm
        self.skip = StochasticDepth(stochastic_depth)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = hook(self, "input", x)
        y = hook(self, "norm1", x if self.post_norm else self.norm1(x))
        after = self.norm1 if self.post_norm else self.ls1
        x = hook(self, "middle", x + self.skip(after(self.attn(y, mask))))  # z' = MSA(LN(z)) + z, eq. 2
        y = hook(self, "norm2", x if self.post_norm else self.norm2(x))
        after = self.norm2 if self.post_norm else self.ls2
        return hook(self, "output", x + self.skip(after(self.mlp(y))))  # z = MLP(LN(z')) + z', eq. 3


class MLPHead(nn.Module):
    """Features to logits: one linear layer, or a hidden tanh layer before it for pre-training (paper, section 3.1).

    Without classes it returns the features.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        inputs = config.feature_width
        self.hidden = nn.Linear(inputs, config.representation_size) if config.representation_size else None
        inputs = config.representation_size or inputs
        self.weight = nn.Parameter(torch.zeros(config.classes, inputs)) if config.classes else None
        self.bias = nn.Parameter(torch.zeros(config.classes)) if config.classes and config.head_bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.hidden is not None:
            x = torch.tanh(self.hidden(x))
        return x if self.weight is None else F.linear(x, self.weight, self.bias)


class ViT(nn.Module):
    """The whole network: images `[b c H W]` → logits `[b classes]`.

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
        self.attn_pool = AttentionPool(config, ACTIVATIONS[config.activation]) if config.pool == "attention" else None
        after = partial(NORMS[config.norm], config.feature_width, eps=config.norm_eps)
        self.fc_norm = after() if config.fc_norm else nn.Identity()
        self.head = MLPHead(config)
        self.head_dist = MLPHead(config) if config.distillation_head else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all weights; heads start at zero, as in the paper's fine-tuning (section 3.2)."""
        if self.patch_embed.proj.weight.is_meta:
            return  # nothing to initialise, and torch 2.11 would load its compiler for it
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                # the patch embedding by its fan-in, as the paper's JAX code; the rest as BERT and timm do
                std = module.weight[0].numel() ** -0.5 if isinstance(module, nn.Conv2d) else 0.02
                nn.init.trunc_normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm | AttentionPool | RotaryPositions):
                module.reset_parameters()
            elif isinstance(module, LayerScale):
                nn.init.constant_(module.gamma, self.config.layer_scale)
        for name, std in (("pos_embed", 0.02), ("cls_token", 1e-6), ("dist_token", 0.02), ("reg_token", 1e-6)):
            value = getattr(self, name)
            if isinstance(value, nn.Parameter):
                nn.init.trunc_normal_(value, std=std)

    def embed(self, x: Tensor) -> Tensor:
        """Turn images into the first block's input: z₀ = [x_class; x_p E] + E_pos, eq. 1."""
        return self.assemble(self.patch_embed(x), self.pos_embed)

    def assemble(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Put the class, distillation and register tokens first and add positions: `[b n d]` → `[b t d]`."""
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
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, mask)
        return hook(self, "tokens", self.norm(x))

    def pool(self, tokens: Tensor) -> Tensor:
        """Pool the tokens that the head reads: `[b t d]` → `[b d]`, or `[b 2d]` for "token+mean"."""
        parts = []
        if self.attn_pool is not None:
            parts.append(self.attn_pool(tokens if self.config.pool_prefix else tokens[:, self.layout.prefix :]))
        if "token" in self.config.pool:
            parts.append(tokens[:, 0])  # y = LN(z_L⁰), eq. 4
        if "mean" in self.config.pool:
            parts.append(tokens[:, self.layout.prefix :].mean(dim=1))
        return hook(self, "pooled", self.fc_norm(torch.cat(parts, dim=-1)))

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Turn normalised tokens `[b t d]` into logits `[b classes]`."""
        logits: Tensor = self.head(self.pool(tokens))
        if self.head_dist is not None:  # DeiT averages the logits of its two heads
            logits = (logits + self.head_dist(self.fc_norm(tokens[:, 1]))) / 2
        return logits

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return hook(self, "logits", self.forward_head(self.forward_features(x, mask)))

    def features(self, x: Tensor) -> Tensor:
        """Turn images into pooled features, without the head: `[b feature_width]`."""
        return self.pool(self.forward_features(x))

    def get_intermediate_layers(
        self, x: Tensor, n: int | list[int] = 1, *, reshape: bool = False, norm: bool = False
    ) -> list[Tensor]:
        """Return the tokens after chosen blocks: the last `n`, or those numbered in a list. Each `[b t d]`.

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

    def reset_classifier(self, classes: int, pool: Literal["token", "mean", "token+mean"] | None = None) -> None:
        """Replace the head by a new linear one with zero weights: `classes` outputs, or none for 0."""
        changes: dict[str, Any] = {"classes": classes, "representation_size": 0, "head_bias": True}
        if pool not in (None, self.config.pool):
            changes |= {"pool": pool, "pool_heads": 0, "pool_mlp_width": 0, "pool_prefix": False}
            self.attn_pool = None  # "attention" cannot be asked for: only training makes a pool
        if not classes:
            changes["distillation_head"] = False
        config = replace(self.config, **changes)
        like = next(self.parameters())
        self.head = MLPHead(config).to(like)
        self.head_dist = MLPHead(config).to(like) if config.distillation_head else None
        if config.fc_norm and config.feature_width != self.config.feature_width:
            self.fc_norm = NORMS[config.norm](config.feature_width, eps=config.norm_eps).to(like)
        self.config = config

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Self:
        """Load weights by name or path, as `vitreous.load` does."""
        from vitreous.weights.load import load  # not at the top: this file needs torch alone

        model = load(name, **options)
        if not isinstance(model, cls):
            raise ValueError(f"{name} holds a {type(model).__name__}, not a ViT: use vitreous.load")
        return model

    def save_pretrained(self, folder: str) -> None:
        """Write `config.json` and `model.safetensors`, which `from_pretrained` reads back."""
        from vitreous.weights.save import save

        save(self, folder)
