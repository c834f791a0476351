"""`ViTConfig`: the fields that decide a ViT's shape, what each means, and which contradict each other."""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from vitreous.models.stems import STEMS, STRIDES
from vitreous.models.token_layout import TokenLayout

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
    pool: Literal["token", "mean", "token+mean", "attention", "class-attention"] = "token"
    """What the head reads: the class token, the mean of the patches, both side by side (DINOv2's classifier), the
    tokens pooled by attention (SigLIP), or a class token that reads the patches after the last block (CaiT)."""
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
    pool_layers: int = 0
    """Layers in which the class token reads the patches, for pool="class-attention"."""
    pool_prefix: bool = False
    """Attention pooling reads the tokens in front of the patches, too (Perception Encoder)."""
    relative_position: Literal["none", "table", "mlp", "shared-table", "shared-mlp"] = "none"
    """Bias of attention by the offset of two patches: learned (BEiT) or computed, of each block or shared by all."""
    relative_width: int = 0
    """Hidden width of the network that computes the relative position bias."""
    talking_heads: bool = False
    """Mix the heads' scores before the softmax, and their attention after it (CaiT)."""
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

    stem: Literal["none", "r", "r26", "r50-s16", "r50-s32", "mobileclip"] = "none"
    """Convolutions whose feature map is cut into patches instead of the image (the paper's hybrids, MobileCLIP)."""
    head_norm: bool = False
    """RMS norm before the head's last layer, so that the direction of features counts alone; a hidden layer then has no
    tanh (a CLIP or SigLIP whose head was begun with text features)."""
    dense: Literal["none", "linear", "decoder"] = "none"
    """A class for each pixel: the head reads patch tokens of several blocks, by a linear layer whose logits are
    upsampled, or by a decoder of convolutions; the model returns `[b classes H W]`."""
    dense_blocks: tuple[int, ...] = ()
    """Numbers of the blocks whose patch tokens the dense head reads, ascending."""
    position_std: float = 0.02
    """Standard deviation of the normal distribution that new learned positions are drawn from."""
    residual_norm: bool = False
    """Layer norm after each residual connection, z = LN(z + f(z)), instead of before each branch: the post-norm of the
    first Transformer (Vaswani et al., 2017)."""

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
        if self.pools_by_attention:
            object.__setattr__(self, "pool_heads", self.pool_heads or self.heads)
            object.__setattr__(self, "pool_mlp_width", self.pool_mlp_width or self.mlp_width)
        self._check_numbers()
        if "token" in self.pool and not self.class_token:
            raise ValueError(f"pool={self.pool!r} reads the class token, but class_token=False: use pool='mean'")
        if not self.pools_by_attention and (self.pool_heads or self.pool_mlp_width or self.pool_prefix):
            raise ValueError("pool_heads, pool_mlp_width and pool_prefix need pool='attention'")
        if (self.pool == "class-attention") != bool(self.pool_layers):
            raise ValueError(f"pool='class-attention' and pool_layers belong together, got {self.pool_layers} layers")
        if self.pool == "class-attention" and (self.class_token or self.pool_prefix or not self.layer_scale):
            raise ValueError("pool='class-attention' needs class_token=False, pool_prefix=False and a layer_scale")
        if self.distillation_token and not self.class_token:
            raise ValueError("distillation_token=True needs class_token=True: it stands after the class token")
        if self.relative_position != "none" and self.layout.prefix > self.class_token:
            raise ValueError(
                "relative_position knows the class token alone: set distillation_token=False and registers=0"
            )
        if self.head_norm and (not self.classes or self.distillation_head):
            raise ValueError("head_norm=True needs classes > 0 and distillation_head=False")
        if self.post_norm and self.layer_scale:
            raise ValueError("post_norm=True has no layer scale: set layer_scale=0.0")
        if self.post_norm and self.residual_norm:
            raise ValueError("post_norm=True normalises branches, residual_norm=True their sums: set one of them")
        if self.qv_bias and self.qkv_bias:
            raise ValueError("qv_bias=True says that keys have no bias, qkv_bias=True that they have: set one of them")
        if self.distillation_head and not (self.distillation_token and self.classes and self.pool == "token"):
            raise ValueError("distillation_head=True needs distillation_token=True, classes > 0 and pool='token'")
        self._check_dense()

    def _check_type(self, name: str, kind: type, choices: tuple[str, ...]) -> None:
        """Check the type and range of a field of a `ViTConfig`, which may come from a file."""
        value = getattr(self, name)
        if kind is tuple and isinstance(value, list):
            value = tuple(value)  # a file has lists
            object.__setattr__(self, name, value)
        fits = type(value) is kind or (kind is float and type(value) is int)
        numbers = value if fits and kind is tuple else (value,) if kind in (int, float) else ()
        if not fits or not all(type(each) in (int, kind) and abs(each) <= LARGEST for each in numbers):
            words = {int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of whole numbers"}
            raise ValueError(f"{name} must be {words.get(kind, 'a word')}, got {value!r:.80}")
        if choices and kind is str and value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if kind is float:
            object.__setattr__(self, name, float(value))  # a file may say 1 for 1.0

    def _check_dense(self) -> None:
        """Check the fields of a `ViTConfig` that a dense head has: the blocks it reads, and what contradicts it."""
        numbers = self.dense_blocks
        if (self.dense == "none") == bool(numbers):
            raise ValueError(f"dense and dense_blocks belong together, got dense={self.dense!r} and blocks {numbers}")
        if self.dense == "none":
            return
        if list(numbers) != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < self.depth:
            raise ValueError(f"dense_blocks must ascend within 0 to {self.depth - 1}, got {numbers!r:.80}")
        if not self.classes:
            raise ValueError(f"dense={self.dense!r} needs classes > 0: a dense head has a class for each pixel")
        wrong = {"distillation_head": False, "representation_size": 0, "head_norm": False, "head_bias": True}
        for name, value in wrong.items():
            if getattr(self, name) != value:
                raise ValueError(f"dense={self.dense!r} needs {name}={value}, got {getattr(self, name)}")

    def _check_numbers(self) -> None:
        """Check the numbers of a `ViTConfig`: ranges, and what must divide what."""
        for name in ("channels", "width", "depth", "heads", "mlp_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        sizes = ("classes", "registers", "representation_size", "pool_heads", "pool_mlp_width", "relative_width")
        for name in (*sizes, "pool_layers", "layer_scale", "norm_eps", "rope_temperature", "rope_reference"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not self.position_std > 0:
            raise ValueError(f"position_std must be above 0, got {self.position_std}")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("heads", "pool_heads"):
            if self.width % (heads := getattr(self, name) or 1):
                near = max(h for h in range(1, min(heads, self.width) + 1) if self.width % h == 0)
                raise ValueError(f"width {self.width} cannot be split over {heads} heads: try {name}={near}")
        (height, width), (patch_height, patch_width) = self.size, self.patch
        rounds_down = self.partial_patches and not self.stem.startswith("r")  # a ResNet's stem rounds up
        if (height % patch_height or width % patch_width) and (not rounds_down or 0 in self.grid):
            fits = tuple(max(s // p, 1) * p for s, p in zip(self.size, self.patch, strict=True))
            raise ValueError(
                f"image_size {height}×{width} is not a whole number of {patch_height}×{patch_width} patches: "
                f"try image_size={fits}"
            )
        if self.stem != "none" and (patch_height % self.stem_stride or patch_width % self.stem_stride):
            raise ValueError(f"stem={self.stem!r} needs a patch_size that {self.stem_stride} divides, got {self.patch}")
        if self.stem == "mobileclip" and self.width % 4:
            raise ValueError(f"stem='mobileclip' needs a width that 4 divides, got {self.width}")
        if self.relative_position.endswith("mlp") and not self.relative_width:
            raise ValueError(f"relative_position={self.relative_position!r} needs relative_width of at least 1")
        if self.rope != "none" and (self.width // self.heads % 4 or not self.rope_temperature):
            raise ValueError(f"rotary positions need heads of a width that 4 divides, got {self.width // self.heads}")
        if self.position.startswith("sine") and self.width % 4:
            raise ValueError(f"sine positions need a width that 4 divides, got {self.width}")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image by a `ViTConfig`."""
        return self.image_size  # type: ignore[return-value]  # a pair since __post_init__

    @property
    def patch(self) -> tuple[int, int]:
        """Height and width of a patch by a `ViTConfig`."""
        return self.patch_size  # type: ignore[return-value]  # a pair since __post_init__

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches by a `ViTConfig`."""
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    @property
    def stem_stride(self) -> int:
        """Pixels that a `ViTConfig`'s `stem` puts between two positions of its feature map; 1 without a stem."""
        if self.stem in ("none", "mobileclip"):
            return 1 if self.stem == "none" else math.prod(STRIDES)
        return 4 << max(len(STEMS[self.stem]) - 1, 0)  # each stage after the first halves the sides

    @property
    def layout(self) -> TokenLayout:
        return TokenLayout(self.grid, self.class_token, self.distillation_token, self.registers, self.patch)

    @property
    def positions(self) -> int:
        """Rows of the position embedding by a `ViTConfig`."""
        return self.layout.tokens if self.prefix_positions else self.layout.patches

    @property
    def plain(self) -> bool:
        """Whether by its `ViTConfig` blocks compute the paper's equations, which `speed/` has fused passes for."""
        moved = self.post_norm or self.residual_norm
        return self.relative_position == "none" and not moved and not self.talking_heads

    @property
    def last_read(self) -> int:
        """Number of the last block that is read by a `ViTConfig`: a dense head need not read the last."""
        return self.dense_blocks[-1] if self.dense_blocks else self.depth - 1

    @property
    def pools_by_attention(self) -> bool:
        """Whether by its `ViTConfig` the head reads what an attention after the last block makes of the tokens."""
        return self.pool in ("attention", "class-attention")

    @property
    def reads_patches(self) -> bool:
        """Whether by its `ViTConfig` the head reads patches after the last block, and not the prefix alone."""
        return self.dense != "none" or self.pools_by_attention or "mean" in self.pool

    @property
    def feature_width(self) -> int:
        """Length of the pooled features by a `ViTConfig`."""
        return 2 * self.width if self.pool == "token+mean" else self.width
