"""The logit lens: the head applied to the tokens of every layer (nostalgebraist, 2020)."""

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture, underneath


@torch.no_grad()
def logit_lens(model: nn.Module, x: Tensor) -> Tensor:
    """Compute the logit lens: logits after the embedding and after each block, `[b c H W]` → `[layers+1 b classes]`.

    Each layer's tokens go through the final norm, the pooling and the head; the last entry is the model's own logits.
    A dense head reads them instead of those of later blocks, as if these passed them on.

    >>> from vitreous.models.variants import variant
    >>> from vitreous.models.vit import ViT
    >>> logit_lens(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32)).shape
    torch.Size([5, 2, 10])
    """
    plain, _ = underneath(model)
    with capture(model, ["embedding", "output"]) as internals:
        model(x)
    layers = [internals["embedding"], *internals.stack("output")]  # each [b t d]
    read = [number + 1 for number in plain.config.dense_blocks if number + 1 < len(layers) - 1]  # by a dense head

    def logits(layer: int) -> Tensor:
        (tokens,) = plain.run_blocks(layers[layer], first=plain.config.depth)  # the final norm alone
        return plain.forward_head(*(layers[min(each, layer)] for each in read), tokens)

    return torch.stack([logits(layer) for layer in range(len(layers))])
