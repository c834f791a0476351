import pytest
import torch
from families import FAMILIES, family, images
from scipy.stats import spearmanr
from torch import nn

from vitreous.inside.faithfulness import (
    agreement,
    area,
    centre_map,
    curves,
    random_map,
    rank_correlation,
    reinitialised,
    saco,
)
from vitreous.inside.hiding import HiddenPatches
from vitreous.inside.pixel_gradients import to_patches
from vitreous.inside.relevance import relevance
from vitreous.inside.road import road
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT


class Linear(nn.Module):
    """The first class's logit is a weighted sum of patches, on a 3×4 grid of 2×2 pixels; the second's is zero."""

    def __init__(self):
        super().__init__()
        self.weight = torch.randn(3, 4)

    def forward(self, x):
        logit = (to_patches(x, (3, 4)) * self.weight).sum(dim=(1, 2))
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


@pytest.mark.parametrize("steps", [1, 5, 12, 30])
def test_on_a_linear_model_no_map_beats_the_true_one(steps):
    model, x = Linear(), torch.randn(1, 3, 6, 8)
    true = to_patches(x, (3, 4))[0] * model.weight
    others = torch.stack([random_map((3, 4), seed) for seed in range(20)] + [centre_map((3, 4)), -true])
    deletion, insertion = curves(model, x, torch.cat([true[None], others]), 0, steps=steps, baseline=torch.zeros(1))
    assert deletion.shape == insertion.shape == (23, steps + 1)
    assert (deletion[0] <= deletion[1:] + 1e-6).all()
    assert (insertion[0] >= insertion[1:] - 1e-6).all()
    assert (area(deletion)[0] <= area(deletion) + 1e-6).all()
    if steps > 1:
        assert area(deletion)[0] < area(deletion)[1:].min()


def test_patches_go_one_by_one_the_highest_first():
    model, x = Linear(), torch.randn(1, 3, 6, 8)
    heat = torch.randperm(12).view(3, 4)
    deletion, insertion = curves(model, x, heat, 1, steps=4, baseline=torch.full((3, 1, 1), 0.3))
    for step in range(5):
        high = (heat >= 12 - 3 * step).repeat_interleave(2, 0).repeat_interleave(2, 1)
        for curve, shown in ((deletion, torch.where(high, 0.3, x)), (insertion, torch.where(high, x, 0.3))):
            torch.testing.assert_close(curve[step], model(shown).softmax(dim=-1)[0, 1])


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_curves_run_between_the_image_and_nothing_for_the_predicted_class(name):
    model = family(name)
    x = images(model, 1)
    maps = torch.rand(2, 3, *model.layout.grid)
    deletion, insertion = curves(model, x, maps, steps=3, baseline="mean")
    best = model(x).argmax()
    nothing = x.mean(dim=(-2, -1), keepdim=True).expand_as(x)
    whole, none = (model(image).softmax(dim=-1)[0, best].expand(2, 3) for image in (x, nothing))
    torch.testing.assert_close(deletion[..., [0, -1]], torch.stack([whole, none], dim=-1))
    torch.testing.assert_close(insertion[..., [0, -1]], torch.stack([none, whole], dim=-1))


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_many_maps_together_have_the_curves_of_each_alone(batch_size):
    model = family("registers")
    x, maps = images(model, 1), torch.rand(3, *family("registers").layout.grid)
    together = curves(model, x, maps, 1, steps=4, batch_size=batch_size)
    for i in range(3):
        alone = curves(model, x, maps[i], 1, steps=4)
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[i], theirs)


@pytest.mark.slow
def test_blur_keeps_the_mean_and_loses_the_detail():
    x = torch.zeros(1, 3, 224, 224)
    x[..., ::16, :] = 16.0
    kept = []

    def model(images):
        kept.append(images)
        return torch.zeros(len(images), 2)

    curves(model, x, torch.rand(2, 2), steps=1)
    blurred = kept[0][1, :, 60:-60, 60:-60]
    torch.testing.assert_close(blurred, torch.ones_like(blurred), rtol=0, atol=0.05)


def test_a_maps_curves_are_bit_equal_whichever_others_are_measured_with_it():
    model = family("class token")
    x, maps = images(model, 1), torch.rand(3, *model.layout.grid)
    for baseline in ("blur", "mean"):
        together = curves(model, x, maps, 1, steps=6, baseline=baseline)
        alone = curves(model, x, maps[1:2], 1, steps=6, baseline=baseline)
        assert all(torch.equal(ours[1:2], theirs) for ours, theirs in zip(together, alone, strict=True))


@pytest.mark.parametrize("baseline", ["mean", "removed"])
@torch.no_grad()
def test_each_step_of_a_curve_is_the_models_answer_without_those_patches(baseline):
    model = family("class token")
    x, maps = images(model, 1), torch.rand(2, *model.layout.grid)
    deletion, insertion = curves(model, x, maps, 1, steps=4, baseline=baseline)
    for heat, removed, added in zip(maps, deletion, insertion, strict=True):
        for step in (1, 3):
            high = heat >= heat.flatten().sort(descending=True).values[step * heat.numel() // 4 - 1]
            for curve, kept in ((removed, ~high), (added, high)):
                own = HiddenPatches(model, x, heat.shape)(kept[None], baseline).softmax(dim=-1)[0, 1]
                torch.testing.assert_close(curve[step], own)


def test_black_needs_a_model_that_says_what_black_is():
    model = family("class token")
    with pytest.raises(ValueError, match="pass a tensor as baseline"):
        curves(model, images(model, 1), torch.rand(3, 4), baseline="black")


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (2, {}, "expected one image"),
        (1, {"steps": 0}, "steps must be at least 1"),
        (1, {"baseline": "white"}, "blur, mean, black, removed or a tensor, got 'white'"),
    ],
)
def test_options_out_of_range_are_refused(count, options, message):
    model = family("class token")
    with pytest.raises(ValueError, match=message):
        curves(model, images(model, count), torch.rand(3, 4), **options)


def test_areas_are_trapezoids_over_one():
    torch.testing.assert_close(area(torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])), torch.tensor([0.25, 1.0]))


def test_random_maps_come_from_their_seed_alone():
    before = torch.random.get_rng_state()
    assert torch.equal(random_map((3, 4), seed=1), random_map((3, 4), seed=1))
    assert not torch.equal(random_map((3, 4), seed=1), random_map((3, 4), seed=2))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_centre_map_is_a_bell_around_the_middle_of_any_grid():
    bell = centre_map((3, 6), spread=0.5)
    torch.testing.assert_close(bell, bell.flip(0).flip(1))
    assert bell.argmax() in (8, 9)
    assert centre_map((3, 3))[1, 1] == 1
    # one standard deviation away from the middle row: half of the side is 1.5 rows
    torch.testing.assert_close(centre_map((3, 1), spread=1 / 3)[:, 0], torch.tensor([-0.5, 0, -0.5]).exp())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES, "resnet"])
def test_a_reinitialised_model_is_fresh_from_its_seed_and_leaves_all_else_alone(name):
    model = ResNet(ResNetConfig(18, classes=4)).eval() if name == "resnet" else family(name)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    before = torch.random.get_rng_state()
    fresh, again, other = (reinitialised(model, seed) for seed in (7, 7, 8))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not fresh.training
    x = torch.randn(1, 3, 64, 64) if name == "resnet" else images(model, 1)
    assert torch.equal(fresh(x), again(x))
    assert fresh(x).any()
    assert not torch.allclose(fresh(x), other(x))
    for (key, value), drawn in zip(fresh.named_parameters(), model.parameters(), strict=True):
        assert value is not drawn, key
        if value.dim() > 1:
            assert not torch.allclose(value, drawn), key
    if isinstance(model, ViT):  # norms, biases and layer scales as a new model has them
        new = ViT(model.config)
        for (key, value), drawn in zip(fresh.named_parameters(), new.parameters(), strict=True):
            assert value.dim() > 1 or torch.equal(value, drawn), key


def test_a_map_of_the_gradient_changes_with_the_weights():
    model = family("class token")
    x = images(model, 3)
    found = rank_correlation(relevance(model, x, 1), relevance(reinitialised(model, 4), x, 1))
    assert found.abs().max() < 0.95


def test_rank_correlation_against_scipy():
    first = torch.randn(2, 5, 6).round(decimals=1)  # with ties
    second = (first + torch.randn(2, 5, 6)).round(decimals=1)
    found = rank_correlation(first, second)
    for ours, a, b in zip(found, first, second, strict=True):
        assert ours.item() == pytest.approx(spearmanr(a.flatten(), b.flatten()).statistic, abs=1e-6)
    assert rank_correlation(first, torch.ones(2, 5, 6)).tolist() == [0, 0]
    torch.testing.assert_close(rank_correlation(first, -first.exp()), torch.tensor([-1.0, -1.0]))


class Patches(nn.Module):
    """The first class's logit falls by a patch's own weight when the patch is black; the second's is zero."""

    weight = torch.tensor([[4.0, 3.0], [2.0, 1.0]])

    def forward(self, x):
        logit = (to_patches(x, (2, 2)) / 12 * self.weight).sum(dim=(1, 2))
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


def test_the_true_order_has_one_its_negative_minus_one_and_a_constant_map_zero():
    model, x = Patches(), torch.ones(1, 3, 4, 4)
    maps = torch.stack([model.weight, -model.weight, torch.ones(2, 2)])
    found = saco(model, x, maps, 0, groups=4, baseline=torch.zeros(1))
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 0.0]))


def test_pairs_count_by_the_difference_of_their_values():
    values, effects = torch.tensor([[10.0, 1.0, 0.0]]), torch.tensor([[0.9, 0.1, 0.2]])
    torch.testing.assert_close(agreement(values, effects), torch.tensor([(9 + 10 - 1) / 20]))


def test_there_are_no_more_groups_than_patches():
    maps = torch.stack([torch.tensor([[4.0, 3.0], [1.0, 2.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])])
    expected = saco(Patches(), torch.ones(1, 3, 4, 4), maps, 0, groups=4, baseline=torch.zeros(1))
    torch.testing.assert_close(expected, torch.tensor([0.8, -1.0]))  # one pair of six is wrong, of distance 1 of 10
    for groups in (5, 10):
        found = saco(Patches(), torch.ones(1, 3, 4, 4), maps, 0, groups=groups, baseline=torch.zeros(1))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("scale", [1e-14, 1e-30, 1e30])
def test_saco_does_not_depend_on_the_scale_of_a_map(scale):
    maps = torch.tensor([[[4.0, 3.0], [1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]]])
    found = saco(Patches(), torch.ones(1, 3, 4, 4), maps * scale, 0, groups=4, baseline=torch.zeros(1))
    torch.testing.assert_close(found, torch.tensor([0.8, -1.0]))
    large = torch.full((1, 14, 14), 0.3) * scale  # in groups of 19 and 20 patches, whose means round apart
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 2))
    assert saco(model, torch.rand(1, 3, 28, 28), large).item() == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_map_that_is_not_finite_has_no_score(value):
    maps, x = torch.rand(2, 2, 2), torch.ones(1, 3, 4, 4)
    maps[0, 1, 1] = value
    for measure in (saco, curves, road):
        with pytest.raises(ValueError, match="1 of 8 values of heat maps are NaN or infinite"):
            measure(Patches(), x, maps, 0)
    with pytest.raises(ValueError, match="1 of 8 values of heat maps are NaN or infinite"):
        rank_correlation(torch.rand(2, 2, 2), maps)


@pytest.mark.parametrize("groups", [1, 3, 4])
def test_groups_may_be_of_unequal_sizes(groups):
    found = saco(Patches(), torch.ones(1, 3, 4, 4), torch.rand(2, 2, 2), groups=groups)
    assert found.shape == (2,)
    assert (found.abs() <= 1).all()
