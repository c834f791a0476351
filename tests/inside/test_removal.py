import pytest
import torch
from torch import nn

from vitreous.data.sample_photos import samples
from vitreous.inside.faithfulness import rank_correlation
from vitreous.inside.hiding import HiddenPatches, log_odds
from vitreous.inside.removal import draw_masks, removal
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.load import load


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


def test_a_prior_map_that_is_wrong_is_not_turned_around():
    wrong = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) ** 4
    found = removal(lambda kept, operator: -(kept * wrong).sum(dim=(1, 2)), wrong, passes=32).map
    assert rank_correlation(found, wrong.float()) > -0.9


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("size", "noise", "passes"), [(1.0, 2.0, 512), (0.3, 1.0, 512), (0.1, 0.3, 512), (1.0, 2.0, 64)]
)
def test_errors_are_those_that_are_made(size, noise, passes, known):
    generator = torch.Generator().manual_seed(3)
    ratios = []
    for _ in range(6):
        weights = torch.randn(8, 8, dtype=torch.float64, generator=generator)
        prior = torch.rand(8, 8, dtype=torch.float64, generator=generator) if known else torch.zeros(8, 8)
        weights = size * (2 * prior + (2 * prior).sqrt() * weights if known else weights)
        found = removal(
            lambda kept, operator, weights=weights: (
                (kept * weights).sum(dim=(1, 2)) + noise * torch.randn(len(kept), generator=generator)
            ),
            prior,
            passes=passes,
        )
        ratios.append(((found.map - weights) / found.error).square().mean().sqrt())
    assert 0.85 < torch.stack(ratios).mean() < 1.2


def test_it_stops_when_the_ranking_is_stable():
    weights = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    found = removal(additive(weights), torch.zeros(4, 4), passes=1024)
    assert found.stable
    assert found.passes < 1024
    noise = torch.Generator().manual_seed(5)
    found = removal(lambda kept, operator: torch.randn(len(kept), generator=noise), torch.zeros(4, 4), passes=128)
    assert not found.stable
    assert found.passes == 128


def test_the_error_is_no_smaller_than_the_map_of_pure_noise():
    noise = torch.Generator().manual_seed(6)
    found = removal(lambda kept, operator: torch.randn(len(kept), generator=noise), torch.zeros(6, 6), passes=256)
    assert found.map.abs().mean() < 2 * found.error.mean()


def test_masks_that_follow_a_map_keep_or_hide_its_highest_patches():
    follow = torch.arange(196.0)
    masks = draw_masks((14, 14), 200, (0.2, 0.5), 0.8, torch.Generator().manual_seed(0), follow)
    kept, hidden = (masks[start::2].double() @ ranked(follow) / masks[start::2].sum(dim=1) for start in (0, 1))
    assert kept.min() > 0.65 > 0.45 > hidden.max()


def ranked(values):
    return values.argsort().argsort().double() / (len(values) - 1)


def test_a_quarter_of_the_passes_is_random_and_one_operator_hides_three_of_four():
    ran = []

    def noted(kept, operator):
        ran.append((operator, len(kept)))
        return torch.randn(len(kept), generator=torch.Generator().manual_seed(len(ran)))

    removal(noted, torch.rand(6, 6), passes=256, operators=("blur", "removed"))
    assert ran[0] == ("blur", 64)
    assert sum(count for operator, count in ran if operator == "removed") == 64
    assert sum(count for _, count in ran) == 256
    ran.clear()
    removal(noted, torch.rand(6, 6), passes=64, operators=("blur", "removed"))
    assert ran == [("blur", 64)]


def test_masks_come_in_pairs_that_add_up_to_the_image():
    masks = draw_masks((5, 6), 9, (0.35, 0.5), 1.0, torch.Generator().manual_seed(0))
    assert masks.shape == (9, 30)
    assert torch.equal(masks[0:8:2], ~masks[1:8:2])


@pytest.fixture(scope="module")
def corner_model():
    """A model that has learned that a corner patch decides: dark, bright, or neither; the rest of an image is noise."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=24, patch_size=4, width=32, depth=2, heads=2, classes=3))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(360):
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


@pytest.mark.slow
@pytest.mark.parametrize(("pasted", "into"), [("chelsea", "camera"), ("coffee", "chelsea")])
def test_the_map_of_an_image_pasted_into_another_lies_on_it(pasted, into):
    model = load().eval()
    shown, x = (model.card.preprocess(samples()[name])[None] for name in (pasted, into))
    with torch.no_grad():
        target = int(model(shown).argmax())
    x[:, :, 112:, 112:] = nn.functional.interpolate(shown, size=(112, 112), mode="bilinear", antialias=True)
    hidden = HiddenPatches(model, x, (14, 14))
    found = removal(
        lambda kept, how: log_odds(hidden(kept, how), target),
        torch.ones(14, 14),  # no hint
        passes=96,
        operators=hidden.operators,
    )
    quarter = torch.zeros(14, 14, dtype=torch.bool)
    quarter[7:, 7:] = True
    assert quarter.flatten()[found.map.flatten().topk(20).indices].float().mean() >= 0.9
    assert found.map[quarter].mean() > 0.05 > found.map[~quarter].mean()
