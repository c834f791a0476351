import pytest

from vitreous.models.summary import count_flops
from vitreous.models.vit import ViT, ViTConfig

SMALL = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "heads": 4, "classes": 5}


@pytest.mark.parametrize("position", ["learned", "sine-1d", "sine-2d", "none"])
def test_operations_are_counted_whatever_the_positions(position):
    model = ViT(ViTConfig(**SMALL, position=position))
    patches, tokens, d = 16, 17, 24
    block = 2 * tokens * (3 * d * d + d * d + 8 * d * d) + 4 * tokens * tokens * d
    assert count_flops(model) == 2 * patches * 3 * 64 * d + 2 * block + 2 * d * 5
