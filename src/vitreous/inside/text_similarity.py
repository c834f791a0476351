"""Patch–text similarity: patch tokens projected into the space that a CLIP's towers share, compared with sentences."""

import torch
from torch import Tensor

from vitreous.models.text import SentenceHead
from vitreous.models.vit import ViT

NO_SENTENCES = "its classes are not sentences"


def why_no_text_similarity(model: ViT) -> str | None:
    """Return why a model's patches cannot be compared with text, or None if they can."""
    if not isinstance(model.head, SentenceHead):
        return NO_SENTENCES
    if model.config.pools_by_attention:
        return "its attention pool reads all patches at once, and no patch alone has a place among sentences"
    return None


@torch.no_grad()
def text_similarity(model: ViT, x: Tensor) -> Tensor:
    """Compute the cosine of each patch with each sentence that is a class: `[b c H W]` → `[b s rows columns]`.

    A patch token goes through the final norm and the projection, as the class token does.

    >>> from vitreous.models.text import with_sentences
    >>> from vitreous.models.vit_config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=16, patch_size=8, width=24, depth=1, heads=2, classes=12))
    >>> text_similarity(with_sentences(model, torch.randn(3, 12), torch.tensor(2.0)), torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 3, 2, 2])
    """
    if (reason := why_no_text_similarity(model)) is not None:
        raise ValueError(f"this model has no patch–text similarity: {reason}")
    assert isinstance(model.head, SentenceHead)
    patches = model.fc_norm(model.forward_features(x)[:, model.layout.prefix :])  # [b n d]
    return model.layout.to_grid(model.head.cosines(patches).mT)
