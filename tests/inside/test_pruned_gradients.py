import pytest
import torch
from families import FAMILIES, family, images

from vitreous.inside.intervene import intervene
from vitreous.inside.pruned_gradients import pruned_gradients, token_parts
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig


def without_biases(model):
    """Set every bias to zero: then parts of tokens have nothing else to add up with."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize("depth", [1, 3])
def test_without_biases_the_tokens_parts_of_every_block_add_up_to_the_logit(depth):
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=16, patch_size=4, width=24, depth=depth, heads=3, classes=5)).eval().double()
    torch.nn.init.normal_(model.head.weight)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    without_biases(model)
    parts = token_parts(model, x, 2)
    assert parts.shape == (depth, 2, 17)
    torch.testing.assert_close(parts.sum(dim=-1), model(x)[:, 2].expand(depth, -1).detach())


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@pytest.mark.parametrize("blocks", [(0, 2), (1,), (0, 1, 2), (2,)])
def test_without_biases_the_parts_add_up_to_the_logit_of_a_pixel(dense, blocks):
    changes = {"dense": dense, "dense_blocks": blocks}
    model = without_biases(family("a pixel, linear", **changes)).double()
    x = images(model)
    parts = token_parts(model, x, 2)
    wanted = model(x)[:, 2].detach()
    read = min(blocks[-1] + 1, 2)  # what enters the block after the last one read is read by the head alone
    torch.testing.assert_close(parts[: read + 1].sum(dim=-1), wanted.expand(read + 1, -1))
    assert wanted.abs().min() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_the_forward_pass_does_not_change(name):
    model = family(name)
    x, seen = images(model, 2), []
    handle = model.register_forward_hook(lambda module, inputs, output: seen.append(output))
    found = pruned_gradients(model, x, 1)
    handle.remove()
    assert found.shape == (2, *model.layout.grid)
    with torch.no_grad():
        torch.testing.assert_close(seen[0].detach(), model(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pool", ["token", "mean", "token+mean"])
def test_patches_that_are_removed_have_no_part_and_the_others_add_up(pool):
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=4, width=24, depth=2, heads=3, classes=5, pool=pool)
    model = ViT(config).eval().double()
    torch.nn.init.normal_(model.head.weight)
    without_biases(model)
    x, gone = torch.randn(1, 3, 16, 16, dtype=torch.float64), [0, 7]
    with intervene(model, patches_off=gone, heads_off=[(1, 2)]):
        parts, logits = token_parts(model, x, 2), model(x)
    assert not parts[:, 0, [1 + patch for patch in gone]].any()
    torch.testing.assert_close(parts.sum(dim=-1), logits[:, 2].expand(2, -1).detach())
