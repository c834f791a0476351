import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, family, images
from torchvision.transforms.functional import gaussian_blur

from vitreous.inside.hiding import HiddenPatches, blurred, hidden_image, log_odds
from vitreous.inside.intervene import intervene
from vitreous.models.resnet import ResNet, ResNetConfig


def masks(model, count=5):
    return torch.rand(count, *model.layout.grid, generator=torch.Generator().manual_seed(0)) > 0.4


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_removed_tokens_give_the_logits_of_an_intervention(name):
    model = family(name)
    x, kept = images(model, 1), masks(model)
    found = HiddenPatches(model, x, model.layout.grid, batch_size=2)(kept, "removed")
    for logits, mask in zip(found, kept, strict=True):
        with intervene(model, patches_off=(~mask.flatten()).nonzero().flatten().tolist()):
            torch.testing.assert_close(logits, model(x)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("baseline", ["blur", "mean"])
@torch.no_grad()
def test_hidden_patches_give_the_logits_of_the_masked_image(name, baseline):
    model = family(name)
    x, kept = images(model, 1), masks(model)
    found = HiddenPatches(model, x, model.layout.grid, batch_size=2)(kept, baseline)
    shown = F.interpolate(kept[:, None].float(), size=x.shape[-2:], mode="nearest-exact") > 0
    masked = torch.where(shown, x, hidden_image(model, x, baseline, model.layout.grid))
    torch.testing.assert_close(found, model(masked), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("baseline", ["blur", "mean"])
@torch.no_grad()
def test_pixels_that_fill_no_patch_move_no_hidden_patch_behind_a_stem(baseline):
    model = family("convolutional stem", image_size=(62, 76), partial_patches=True)  # 48×64 of them are read
    x, kept = images(model, 1), masks(model)
    found = HiddenPatches(model, x, model.layout.grid, batch_size=2)(kept, baseline)
    shown, hidden = (model.patch_embed(image) for image in (x, hidden_image(model, x, baseline, model.layout.grid)))
    patches = torch.where(kept.flatten(1)[..., None], shown, hidden)
    expected = model.forward_head(*model.run_blocks(model.assemble(patches, model.pos_embed)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_resnet_hides_pixels_and_has_no_tokens_to_leave_out():
    model = ResNet(ResNetConfig(image_size=32, classes=3)).eval()
    hidden = HiddenPatches(model, torch.randn(1, 3, 32, 32), (4, 4))
    assert hidden(torch.ones(2, 4, 4, dtype=torch.bool)).shape == (2, 3)
    with pytest.raises(ValueError, match="only a ViT has tokens"):
        hidden(torch.ones(1, 4, 4, dtype=torch.bool), "removed")


def test_the_sigmoid_of_log_odds_is_the_probability():
    logits = 5 * torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(log_odds(logits, 2).sigmoid(), logits.softmax(dim=-1)[:, 2])


def test_a_faster_copy_runs_the_blocks_unless_hooks_are_active():
    model = family("class token")
    x, kept = images(model)[:1], torch.rand(4, *model.layout.grid) > 0.5
    marker = torch.full((4, 5), 7.0)
    hidden = HiddenPatches(model, x, model.layout.grid, blocks=lambda tokens: marker)
    assert torch.equal(hidden(kept, "mean"), marker)
    plain = HiddenPatches(model, x, model.layout.grid)
    with intervene(model, head_weights=torch.ones(model.config.depth, model.config.heads)):
        torch.testing.assert_close(hidden(kept, "mean"), plain(kept, "mean"))


@pytest.mark.parametrize("grid", [(14, 14), (3, 7), (1, 2)])
def test_the_blur_is_torchvisions(grid):
    x = torch.randn(2, 3, 42, 70)
    spreads = [side / cells for side, cells in zip(x.shape[-2:], grid, strict=True)]
    reach = [2 * min(round(3 * spread), side - 1) + 1 for spread, side in zip(spreads, x.shape[-2:], strict=True)]
    torch.testing.assert_close(blurred(x, *spreads), gaussian_blur(x, reach[::-1], spreads[::-1]), rtol=0, atol=1e-5)
