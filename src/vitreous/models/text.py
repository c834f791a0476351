"""`TextTower`: the text towers of CLIP (Radford et al., 2021) and SigLIP (Zhai et al., 2023), tokens to features.

Read top to bottom: a sentence's tokens are looked up in a table and get positions, the blocks of `vit.py` follow, one
token is pooled, and a linear layer projects it into the space that is shared with images. CLIP's tokens attend to
themselves and those before (a causal mask) and its end token is pooled; SigLIP's attend to all, padding included, and
its last token is pooled. `SentenceHead` compares images with sentences in that space.

Shapes:  b sentences · t tokens · d width · e width of the shared space · s sentences as classes
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.vit import MLPHead, TransformerBlock, ViT
from vitreous.models.vit_config import ViTConfig


@dataclass(frozen=True)
class TextConfig:
    """Everything that decides a text tower's shape, checked when it is created.

    >>> TextConfig(width=64, heads=4, depth=2).mlp_width
    256
    """

    vocabulary: int = 49408
    """Rows of the table of tokens."""
    context: int = 77
    """Tokens of a sentence, padding included."""
    width: int = 512
    """Length of a token."""
    depth: int = 12
    """Number of transformer blocks."""
    heads: int = 8
    """Attention heads in each block."""
    mlp_width: int = 0
    """Hidden width of each block's MLP; 0 means 4 × width."""
    outputs: int = 512
    """Width of the space that is shared with images."""
    projection: Literal["none", "linear", "linear+bias"] = "linear"
    """Layer from the pooled token to the shared space; SigLIP's has a bias."""
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"] = "gelu"
    """The MLP's activation."""
    norm_eps: float = 1e-5
    """Epsilon of every layer norm."""
    causal: bool = True
    """Tokens attend to themselves and those before them (CLIP); if not, to all."""
    pool: Literal["largest", "end", "last"] = "largest"
    """The token that is read: the one with the largest number (OpenAI), the first `end_token`, or the last (SigLIP)."""
    end_token: int = 0
    """Number of the token that ends a sentence, for `pool="end"`."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "outputs"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value <= 2**24:
                raise ValueError(f"{name} must be a whole number from 1 to {2**24}, got {value!r:.40}")
        if type(self.end_token) is not int or not 0 <= self.end_token < self.vocabulary:
            raise ValueError(f"end_token must be a number of the vocabulary, got {self.end_token!r:.40}")
        if self.projection == "none" and self.outputs != self.width:
            raise ValueError(f"without a projection, outputs must be the width {self.width}, got {self.outputs}")
        object.__setattr__(self, "mlp_width", self.block.mlp_width)  # `ViTConfig` checks the fields of a block

    @property
    def block(self) -> ViTConfig:
        """The fields of a text tower's block, as `vit.TransformerBlock` takes them."""
        shared = ("width", "depth", "heads", "mlp_width", "activation", "norm_eps")
        return ViTConfig(**{name: getattr(self, name) for name in shared})


class TextTower(nn.Module):
    """The whole tower: tokens `[b t]` → features `[b e]`, not normalised.

    >>> tower = TextTower(TextConfig(vocabulary=100, context=8, width=32, heads=2, depth=2, outputs=16))
    >>> tower(torch.tensor([[98, 5, 7, 99, 0, 0, 0, 0]])).shape
    torch.Size([1, 16])
    """

    tokenizer: Any = None
    """Sentences → tokens `[b t]` (`vitreous.weights.tokenizer.Tokenizer`)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embed = nn.Embedding(config.vocabulary, config.width)
        self.pos_embed = nn.Parameter(torch.zeros(1, config.context, config.width))
        self.blocks = nn.ModuleList(TransformerBlock(config.block) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        bias = config.projection == "linear+bias"
        self.head = nn.Linear(config.width, config.outputs, bias) if config.projection != "none" else nn.Identity()
        self.logit_scale = nn.Parameter(torch.tensor(1 / 0.07).log())  # the logarithm of what cosines are multiplied by
        self.logit_bias: nn.Parameter | None = None  # SigLIP adds one, see `add_bias`

    def add_bias(self) -> None:
        """Give a text tower's logits a bias; then each sentence is true or false by itself (SigLIP)."""
        self.logit_bias = nn.Parameter(torch.zeros_like(self.logit_scale))

    def forward_features(self, tokens: Tensor) -> Tensor:
        """Turn the tokens of texts into the last block's normalised tokens: `[b t]` → `[b t d]`."""
        t = tokens.shape[1]
        x = self.token_embed(tokens) + self.pos_embed[:, :t]  # [b t d]
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril() if self.config.causal else None
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def pool(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Take the token of a text that is read: `[b t d]` → `[b d]`."""
        if self.config.pool == "last":
            return x[:, -1]
        ends = tokens if self.config.pool == "largest" else (tokens == self.config.end_token).int()
        return x[torch.arange(len(x), device=x.device), ends.argmax(dim=1)]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.pool(self.forward_features(tokens), tokens))  # type: ignore[no-any-return]


class SentenceHead(nn.Module):
    """Pooled features to logits of sentences: scale × cosine of image and sentence + bias, `[b d]` → `[b s]`."""

    sentences: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, projection: nn.Module, sentences: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.projection = projection  # of the image, into the shared space; the model's head before
        self.register_buffer("sentences", F.normalize(sentences, dim=-1))  # [s e]
        self.register_buffer("scale", scale.exp())
        self.register_buffer("bias", bias)

    def cosines(self, x: Tensor) -> Tensor:
        """Compare image features with the texts of a sentence head: `[… d]` → `[… s]`."""
        return F.normalize(self.projection(x), dim=-1) @ self.sentences.T

    def forward(self, x: Tensor) -> Tensor:
        logits = self.cosines(x) * self.scale
        return logits if self.bias is None else logits + self.bias


def with_sentences(model: ViT, sentences: Tensor, scale: Tensor, bias: Tensor | None = None) -> ViT:
    """Return the ViT with features of a text model, `[s e]`, as its head, which compares images with them.

    The sentences are its classes; it shares its weights with `model`.

    >>> vision = ViT(ViTConfig(image_size=16, patch_size=8, width=24, depth=1, heads=2, classes=12)).eval()
    >>> worded = with_sentences(vision, torch.randn(3, 12), torch.tensor(2.0))
    >>> worded(torch.randn(2, 3, 16, 16)).shape, worded.config.classes, vision.config.classes
    (torch.Size([2, 3]), 3, 12)
    """
    _check_features(model, sentences)
    worded = copy.copy(model)
    worded._modules = dict(model._modules)
    like = next(model.parameters())
    features, factor = (each.detach().to(like) for each in (sentences, scale))
    offset = None if bias is None else bias.detach().to(like)
    worded._modules["head"] = SentenceHead(model.head, features, factor, offset)
    worded.config = replace(model.config, classes=len(sentences), representation_size=0, head_bias=False)
    return worded


def begin_head(model: ViT, sentences: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
    """Give the ViT a linear head that begins as a text model's features of the classes `[s e]` (Wortsman et al., 2022).

    Its logits are those of `with_sentences` until it learns. The projection into the shared space becomes the head's
    hidden layer, and an RMS norm takes the length out of what it gives, as the cosine does.

    >>> vision = ViT(ViTConfig(image_size=16, patch_size=8, width=24, depth=1, heads=2, classes=12)).eval()
    >>> _ = nn.init.normal_(vision.head.weight)
    >>> sentences, scale, x = torch.randn(3, 12), torch.tensor(2.0), torch.randn(2, 3, 16, 16)
    >>> before = with_sentences(vision, sentences, scale)(x)
    >>> begin_head(vision, sentences, scale)
    >>> torch.allclose(vision(x), before, atol=1e-4)
    True
    """
    _check_features(model, sentences)
    config = replace(
        model.config, classes=len(sentences), representation_size=model.config.classes, head_bias=True, head_norm=True
    )
    count, shared = sentences.shape
    tensors = {
        "weight": F.normalize(sentences, dim=-1) * scale.exp() / shared**0.5,  # the length of what a norm gives is √e
        "bias": torch.zeros(count) if bias is None else bias.expand(count),
        "norm.weight": torch.ones(shared),
    }
    if config.representation_size:
        projection = model.head.state_dict()
        tensors |= {"hidden.weight": projection["weight"], "hidden.bias": projection.get("bias", torch.zeros(shared))}
    head = MLPHead(config).to(next(model.parameters()))
    head.load_state_dict(tensors)
    model.head, model.config = head, config


def _check_features(model: ViT, sentences: Tensor) -> None:
    """Check that the features of a text model and of a ViT lie in one space, in which they can be compared."""
    if model.config.dense != "none":
        raise ValueError(
            "a dense head has no features of the whole image to compare with sentences: load the CLIP itself"
        )
    shared = model.config.classes or model.config.feature_width
    if sentences.ndim != 2 or sentences.shape[1] != shared or model.config.representation_size:
        raise ValueError(f"expected features of sentences [s {shared}], as wide as the image's, got {sentences.shape}")
