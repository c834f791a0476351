"""The logit lens: the head applied to the tokens of every layer (nostalgebraist, 2020)."""

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture, underneath


@torch.no_grad()
def logit_lens(model: nn.Module, x: Tensor) -> Tensor:
    """Compute the logit lens: logits after the embedding and after each block, `[b c H W]` → `[layers+1 b classes]`.

    Each layer's tokens go through the final norm, the pooling and the head; the last entry is the model's own logits.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> logit_lens(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([5, 2, 10])
    """
    plain, _ = underneath(model)
    with capture(model, ["embedding", "output"]) as internals:
        model(x)
    layers = [internals["embedding"], *internals.stack("output")]  # each [b t d]
    return torch.stack([plain.forward_head(plain.norm(tokens)) for tokens in layers])
