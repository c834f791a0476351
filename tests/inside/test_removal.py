import pytest
import torch
from torch import nn

from vitreous.inside.faithfulness import rank_correlation
from vitreous.inside.hiding import HiddenPatches, log_odds
from vitreous.inside.removal import draw_masks, removal
from vitreous.models.vit import ViT, ViTConfig


def additive(weights):
    return lambda kept, operator: (kept * weights).sum(dim=(1, 2)) + (0.7 if operator == "removed" else 0.0)


@pytest.mark.parametrize("operators", [("blur",), ("blur", "removed")])
@pytest.mark.parametrize("known", [False, True])
def test_contributions_to_a_sum_are_recovered(operators, known):
    weights = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prior = torch.rand(5, 6) if known else torch.zeros(5, 6)
    found = removal(additive(weights), prior, passes=256, operators=operators, stable=1.1)
    torch.testing.assert_close(found.map.double(), weights, atol=1e-5, rtol=0)
    assert found.error.max() < 1e-3


def test_with_few_passes_a_prior_map_that_is_right_is_followed():
    weights = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) ** 4
    generator = torch.Generator().manual_seed(2)

    def noisy(kept, operator):
        return (kept * weights).sum(dim=(1, 2)) + torch.randn(len(kept), generator=generator)

    with_prior, without = (removal(noisy, prior, passes=64).map for prior in (weights, torch.zeros(14, 14)))
    right, wrong = (rank_correlation(found, weights.float()) for found in (with_prior, without))
    assert right > 0.9 > wrong + 0.2


def test_errors_are_those_that_are_made():
    generator = torch.Generator().manual_seed(3)
    ratios = []
    for _ in range(6):
        weights = torch.randn(8, 8, dtype=torch.float64, generator=generator)
        found = removal(
            lambda kept, operator, weights=weights: (
                (kept * weights).sum(dim=(1, 2)) + 2 * torch.randn(len(kept), generator=generator)
            ),
            torch.zeros(8, 8),
            passes=512,
        )
        ratios.append(((found.map - weights) / found.error).square().mean().sqrt())
    assert 0.8 < torch.stack(ratios).mean() < 1.25


def test_it_stops_when_the_ranking_is_stable():
    weights = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    found = removal(additive(weights), torch.zeros(4, 4), passes=1024)
    assert found.stable
    assert found.passes < 1024
    noise = torch.Generator().manual_seed(5)
    found = removal(lambda kept, operator: torch.randn(len(kept), generator=noise), torch.zeros(4, 4), passes=128)
    assert not found.stable
    assert found.passes == 128


def test_masks_come_in_pairs_that_add_up_to_the_image():
    masks = draw_masks(30, 9, torch.Generator().manual_seed(0))
    assert masks.shape == (9, 30)
    assert torch.equal(masks[0:8:2], ~masks[1:8:2])


@pytest.fixture(scope="module")
def corner_model():
    """A model that has learned that a corner patch decides: dark, bright, or neither; the rest of an image is noise."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=24, patch_size=4, width=32, depth=2, heads=2, classes=3))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(120):
        labels = torch.randint(3, (32,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(planted(labels)), labels).backward()
        optimiser.step()
    return model.eval()


def planted(labels):
    x = torch.randn(len(labels), 3, 24, 24)
    shown = labels < 2
    x[shown, :, :4, 20:] = torch.where(labels[shown] == 1, 1.0, -1.0)[:, None, None, None]
    return x


@pytest.mark.slow
@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("operator", ["mean", "removed"])
def test_evidence_that_was_planted_is_found(corner_model, operator, target):
    hidden = HiddenPatches(corner_model, planted(torch.tensor([target])), (6, 6))
    found = removal(lambda kept, how: log_odds(hidden(kept, how), target), torch.rand(6, 6), operators=(operator,))
    assert found.map.argmax() == 5  # the last column of the first row
    assert found.map[0, 5] > 5 * found.map.flatten().sort(descending=True).values[1]
    assert found.map[0, 5] > 5 * found.error[0, 5]
