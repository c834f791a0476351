"""Maps of a changed model are those of the model that computes the same without an intervention."""

import copy
from dataclasses import replace

import pytest
import torch
from families import FAMILIES, family, images

import vitreous
from vitreous.inside.capture import capture
from vitreous.inside.faithfulness import rank_correlation, reinitialised
from vitreous.inside.grad_cam import grad_cam, grad_cam_plus_plus
from vitreous.inside.head_importance import ablate_heads, head_importance
from vitreous.inside.hiding import HiddenPatches
from vitreous.inside.intervene import KnockOut, intervene, intervene_alike, tokens_left
from vitreous.inside.logit_lens import logit_lens
from vitreous.inside.methods import METHODS
from vitreous.inside.pruned_gradients import pruned_gradients
from vitreous.inside.relevance import gradient_attention, relevance
from vitreous.inside.rollout import passed_on, rollout_map, value_norm_rollout
from vitreous.models.vit import ViT

MAPS = {
    "relevance": lambda model, x: relevance(model, x, 1),
    "gradient attention": lambda model, x: gradient_attention(model, x, 1),
    "Grad-CAM": lambda model, x: grad_cam(model, x, 1),
    "Grad-CAM++": lambda model, x: grad_cam_plus_plus(model, x, 1),
    "pruned gradients": lambda model, x: pruned_gradients(model, x, 1),
    "rollout": rollout_map,
    "rollout by the largest": lambda model, x: rollout_map(model, x, fusion="max", discard=0.3),
    "value norms": value_norm_rollout,
}
NUMBERS = {
    "importance": lambda model, x: head_importance(model, x, 1),
    "ablation": lambda model, x: ablate_heads(model, x, 1).double(),
    "lens": logit_lens,
    "logits": lambda model, x: model(x),
}


def projection_scaled(model, weights):
    """A copy whose output projections do what weights of heads do."""
    other, width = copy.deepcopy(model), model.config.width // model.config.heads
    for layer, block in enumerate(other.blocks):
        block.attn.proj.weight.data *= weights[layer].repeat_interleave(width)
    return other


@pytest.mark.parametrize("name", [each for each in FAMILIES if each != "norms inside"])  # a norm before the projection
def test_heads_that_are_off_or_weighted_count_as_in_a_model_that_has_their_projection_so(name):
    torch.manual_seed(1)
    model = family(name).double()
    x = images(model, 1)
    weights = torch.ones(model.config.depth, model.config.heads, dtype=torch.float64)
    weights[0, 0], weights[1, 1], weights[-1, -1] = 0, 0, 0.4
    other = projection_scaled(model, weights)
    for what, compute in (MAPS | NUMBERS).items():
        with intervene(model, head_weights=weights):
            found = compute(model, x)
        torch.testing.assert_close(
            found, compute(other, x), rtol=1e-4, atol=1e-9, msg=lambda text, on=what: f"{on}: {text}"
        )


SHORTER = (
    *("class token", "distilled", "registers", "no class token", "registers, no class token", "token and mean"),
    *("attention pool", "attention pool of all tokens", "class attention pool", "post-norm", "rms norm", "CLIP"),
)


def without_its_last_row(model):
    """A model of one row of patches less, with the same weights."""
    rows, columns = model.layout.grid
    height, width = model.config.size
    shorter = ViT(replace(model.config, image_size=(height - model.config.patch[0], width))).to(torch.float64).eval()
    shorter.load_state_dict(
        {key: value[:, :-columns] if key == "pos_embed" else value for key, value in model.state_dict().items()}
    )
    return shorter, range((rows - 1) * columns, rows * columns)


@pytest.mark.parametrize("name", SHORTER)
def test_maps_without_a_row_of_patches_are_those_of_a_model_that_never_had_it(name):
    torch.manual_seed(1)
    model = family(name).double()
    x = images(model, 1)
    shorter, off = without_its_last_row(model)
    image = x[:, :, : shorter.config.size[0]]
    for what, compute in (MAPS | NUMBERS).items():
        with intervene(model, patches_off=off):
            found = compute(model, x)
        if what in MAPS:
            assert found[:, -1].abs().max() == 0, what  # nothing of a patch that is not there
            found = found[:, :-1]
        torch.testing.assert_close(
            found, compute(shorter, image), rtol=1e-4, atol=1e-9, msg=lambda text, on=what: f"{on}: {text}"
        )


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_interventions_inside_one_another_remove_patches_as_one_does(name):
    model = family(name).double()
    x = images(model, 2)
    with intervene(model, patches_off=[5]), intervene(model, patches_off=[0]):
        nested = model(x)
        assert (~tokens_left(model)).nonzero().flatten().tolist() == [model.layout.prefix, model.layout.prefix + 5]
    with intervene(model, patches_off=[0, 5]):
        torch.testing.assert_close(nested, model(x))
    most = intervene(model, patches_off=range(model.layout.patches - 1))
    with most, pytest.raises(ValueError, match="leave at least"), intervene(model, patches_off=[-1]):
        pass


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "change",
    [
        {"patches_off": [1, 2]},
        pytest.param({"replace": {"tokens": lambda value: 1.5 * value}}, marks=pytest.mark.slow),
        pytest.param({"replace": {"logits": lambda value: 3 * value}}, marks=pytest.mark.slow),
    ],
    ids=["patches off", "tokens", "logits"],
)
@torch.no_grad()
def test_lens_and_ablation_end_in_the_changed_models_own_answer(name, change):
    model = family(name).double()
    x = images(model, 1)
    with intervene(model, **change):
        torch.testing.assert_close(logit_lens(model, x)[-1], model(x))
        effect = ablate_heads(model, x, 1)
        with intervene(model, heads_off=[(1, 0)]):
            without = model(x)[0, 1]
        assert effect[1, 0].item() == pytest.approx((without - model(x)[0, 1]).item(), abs=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_patches_hidden_beside_an_intervention_are_those_that_both_remove(name):
    model = family(name).double()
    x = images(model, 1)
    hidden = HiddenPatches(model, x, model.layout.grid)
    kept = torch.ones(2, *model.layout.grid, dtype=torch.bool)
    kept[0].flatten()[3], kept[1].flatten()[[0, 4]] = False, False
    hidden(kept, "removed")  # embeds the image, which an intervention may change
    with intervene(model, patches_off=[1, 2, 5]):
        found = hidden(kept, "removed")
    for off, logits in (([1, 2, 3, 5], found[0]), ([0, 1, 2, 4, 5], found[1])):
        with intervene(model, patches_off=off):
            torch.testing.assert_close(logits.double(), model(x)[0], rtol=1e-5, atol=1e-6)
    dark = {"replace": {"patches": torch.zeros_like}}
    with intervene(model, **dark):
        torch.testing.assert_close(hidden(kept | True, "removed")[0].double(), model(x)[0], rtol=1e-5, atol=1e-6)
    with intervene(model, heads_off=[(0, 1)]):
        nothing = torch.zeros_like(kept[:1])
        if model.config.reads_patches:
            with pytest.raises(ValueError, match="keep at least one"):
                hidden(nothing, "removed")
        else:
            with intervene(model, knock_out=KnockOut(keys=range(model.layout.prefix, model.layout.tokens))):
                torch.testing.assert_close(hidden(nothing, "removed").double(), model(x), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_what_hidden_patches_show_is_not_remembered_by_the_place_of_a_tensor_in_memory():
    model = family("class token")
    hidden = HiddenPatches(model, images(model, 1), model.layout.grid)
    kept = torch.zeros(1, *model.layout.grid, dtype=torch.bool)
    shown = torch.zeros(3, 1, 1)
    found = []
    for value in (0.0, 1.0, 2.0):
        shown.fill_(value)
        found.append(hidden(kept, shown))
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


@pytest.mark.parametrize("name", ["class token", "no class token", "registers, no class token", "relative table"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_relevance_of_a_model_in_half_precision_is_carried_in_single(name, dtype):
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        model = family(name)
        x = images(model, 1)
        exact = relevance(model, x, 1)
        half = relevance(copy.deepcopy(model).to(dtype), x.to(dtype), 1)
        assert half.dtype == torch.float32
        found.append(rank_correlation(exact, half).item())
    assert sorted(found)[1] > 0.9


def test_values_that_overflow_half_precision_do_not_make_a_rollout_of_zeros():
    model = vitreous.load("packaged:cifar10")
    x = model.card.preprocess(vitreous.samples()["chelsea"])[None]
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight *= 600
            block.attn.proj.bias *= 0
    exact, half = value_norm_rollout(model, x), value_norm_rollout(copy.deepcopy(model).half(), x.half())
    assert half.isfinite().all()
    assert rank_correlation(exact, half) > 0.9


def test_what_heads_pass_on_is_one_without_an_intervention():
    model = family("class token")
    with torch.no_grad(), capture(model, "mixed", layers=[1]) as seen:
        model(images(model, 1))
    assert (passed_on(seen.weighted["blocks.1.mixed"], seen["blocks.1.mixed"]) == 1).all()


def test_a_copy_with_other_weights_is_changed_alike():
    model = family("class token")
    other, x = reinitialised(model), images(model, 1)
    with intervene(model, heads_off=[(1, 0)], patches_off=[2]), intervene_alike(model, other):
        found = rollout_map(other, x)
    with intervene(other, heads_off=[(1, 0)], patches_off=[2]):
        assert torch.equal(rollout_map(other, x), found)
    assert not torch.equal(rollout_map(other, x), found)


@pytest.mark.slow
def test_every_method_runs_without_some_patches_and_heads():
    model = vitreous.load("packaged:cifar10")
    x = model.card.preprocess(vitreous.samples()["chelsea"])[None]
    with intervene(model, patches_off=[0, 9], heads_off=[(3, 1)]):
        for name in METHODS.keys() - {"removal-1024"}:  # which does nothing else than removal-256 does
            assert METHODS[name](model, x, 3).isfinite().all(), name
