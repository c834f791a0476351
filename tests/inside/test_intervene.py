import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from families import family

from conftest import noise
from vitreous.inside.capture import capture
from vitreous.inside.intervene import KnockOut, intervene, interventions_on
from vitreous.models.hooks import HOOKS, hooks_active
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

SMALL = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 3, "heads": 4, "classes": 5}


@pytest.fixture
def model():
    return noise(ViT(ViTConfig(**SMALL))).requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(2, 3, 32, 32)


def test_a_head_switched_off_equals_its_output_weights_at_zero(model, x):
    with intervene(model, heads_off=[(1, 2)]):
        off = model(x)
    before = model(x)
    model.blocks[1].attn.proj.weight[:, 24:36] = 0
    torch.testing.assert_close(off, model(x))
    assert not torch.allclose(off, before)


def test_each_image_may_lose_another_head(model, x):
    weights = torch.ones(2, 3, 4)
    weights[0, 1, 2] = 0
    with intervene(model, head_weights=weights):
        mixed = model(x)
    with intervene(model, heads_off=[(1, 2)]):
        off = model(x)
    torch.testing.assert_close(mixed[0], off[0])
    torch.testing.assert_close(mixed[1], model(x)[1])


def test_knocked_out_attention_equals_a_mask(model, x):
    mask = torch.ones(17, 17, dtype=torch.bool)
    mask[0, 3:6] = False
    with intervene(model, knock_out=KnockOut(queries=[0], keys=[3, 4, 5])), capture(model) as seen:
        out = model(x)
    torch.testing.assert_close(out, model(x, mask))
    attention = seen.stack("attention")
    assert not attention[..., 0, 3:6].any()
    torch.testing.assert_close(attention.sum(-1), torch.ones(3, 2, 4, 17))


def test_what_capture_shows_does_not_depend_on_who_came_first(model, x):
    knock = KnockOut(keys=[7], layers=[1], heads=[0])
    with capture(model) as outer, intervene(model, knock_out=knock), capture(model) as inner:
        model(x)
    for name in outer:
        assert torch.equal(outer[name], inner[name])
    assert not outer["blocks.1.attention"][:, 0, :, 7].any()
    assert outer["blocks.1.attention"][:, 1, :, 7].all()


def test_interventions_one_inside_the_other_both_act(model, x):
    one, two = KnockOut(keys=[1], layers=[-1]), KnockOut(keys=[2], layers=[2])
    with intervene(model, knock_out=one), intervene(model, knock_out=two), capture(model) as seen:
        nested = model(x)
    assert not seen["blocks.2.attention"][..., 1:3].any()
    assert seen["blocks.0.attention"][..., 1:3].all()
    with intervene(model, knock_out=[one, two]):
        torch.testing.assert_close(model(x), nested)
    double = {"blocks.0.attention": lambda attention: attention * 2}
    triple = {"blocks.0.attention": lambda attention: attention * 3}
    with intervene(model, replace=double), intervene(model, replace=triple), capture(model) as seen:
        model(x)
    torch.testing.assert_close(seen["blocks.0.attention"].sum(-1), torch.full((2, 4, 17), 6.0))


def test_a_record_shows_what_an_intervention_inside_it_did(model, x):
    zeros = {"blocks.0.q": torch.zeros_like}
    names = ["q", "mixed", "attention"]
    with capture(model, names) as seen, intervene(model, heads_off=[(1, 1)], replace=zeros):
        model(x)
    assert not seen["blocks.1.mixed"][:, 1].any()
    assert seen["blocks.1.mixed"][:, 0].any()
    assert not seen["blocks.0.q"].any()
    torch.testing.assert_close(seen["blocks.0.attention"], torch.full((2, 4, 17, 17), 1 / 17))


def test_an_open_layer_keeps_its_dropout_in_training():
    model = noise(ViT(ViTConfig(**SMALL | {"attention_dropout": 0.5}))).train()
    x = torch.randn(2, 3, 32, 32)
    with (
        intervene(model, knock_out=KnockOut(keys=[16], layers=[0])),
        capture(model, ["attention", "v", "mixed"]) as seen,
    ):
        model(x)
    plain = seen["blocks.0.attention"] @ seen["blocks.0.v"]
    assert not torch.allclose(plain, seen["blocks.0.mixed"])


def test_generators_that_overlap_leave_nothing_behind(model, x):
    def looking():
        with capture(model) as seen:
            while True:
                yield seen

    first, second = looking(), looking()
    next(first)
    kept = next(second)
    first.close()
    model(x)
    assert len(kept) == 3  # the other one still watches
    second.close()
    assert HOOKS.get() == ()


def test_only_the_touched_layer_leaves_the_fused_kernel(model, x, monkeypatch):
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    with intervene(model, knock_out=KnockOut(keys=[1], layers=[1])):
        model(x)
    assert len(calls) == 2
    calls.clear()
    with intervene(model, heads_off=[(0, 0)]):
        model(x)
    assert len(calls) == 3


def test_a_row_that_may_look_nowhere_gathers_nothing(model, x):
    with intervene(model, knock_out=KnockOut(queries=[0])), capture(model, "mixed") as seen:
        assert model(x).isfinite().all()
    assert not seen.stack("mixed")[:, :, :, 0].any()


def test_a_patched_activation_carries_the_other_image_on(model, x):
    with capture(model, ["output"]) as seen:
        other = model(x[1:])
    with intervene(model, replace={"blocks.2.output": seen["blocks.2.output"]}):
        torch.testing.assert_close(model(x[:1]), other)
    with (
        intervene(model, replace={"blocks.0.attention": lambda a: torch.eye(17).expand_as(a)}),
        capture(model, ["v", "mixed"]) as seen,
    ):
        model(x)
    torch.testing.assert_close(seen["blocks.0.mixed"], seen["blocks.0.v"])


def test_replacing_a_value_by_itself_changes_nothing(model, x):
    before = model(x)
    for name in ("embedding", "blocks.1.q", "blocks.1.middle", "blocks.2.mlp_hidden", "tokens", "pooled"):
        with intervene(model, replace={name: lambda value: value}):
            assert torch.equal(model(x), before), name
    with intervene(model, replace={"pooled": lambda value: value + 1}):
        assert not torch.allclose(model(x), before)


def test_nothing_stays_behind(model, x):
    before = model(x)
    with pytest.raises(RuntimeError), intervene(model, heads_off=[(0, 0)]):
        raise RuntimeError
    assert torch.equal(model(x), before)
    assert HOOKS.get() == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads_off": [(3, 0)]}, "no block 3: this model has 0 to 2"),
        ({"heads_off": (0, 0)}, r"heads_off takes \(layer, head\) pairs, such as .*, got \(0, 0\)"),
        ({"heads_off": torch.ones(3, 4) > 0}, r"heads_off takes \(layer, head\) pairs"),
        ({"heads_off": [(1, True)]}, "index of a head, got True: pass indices"),
        ({"patches_off": torch.arange(16) < 2}, "index of a patch, got tensor.*: pass indices, as mask.nonzero"),
        ({"patches_off": [5.5]}, "index of a patch should be a whole number, got 5.5"),
        ({"patches_off": 5}, r"each the index of a patch, got 5: write \[5\]"),
        ({"knock_out": KnockOut(keys=np.arange(17) < 2)}, "index of a token, got .*True.*: pass indices"),
        ({"knock_out": KnockOut(layers=[99])}, "no block 99"),
        ({"knock_out": KnockOut(keys=[17])}, "no token 17: this model has 0 to 16"),
        ({"head_weights": torch.ones(4, 3)}, "should end in \\(3, 4\\), got \\(4, 3\\)"),
        ({"head_weights": [[1.0] * 4] * 3}, "head_weights should be a tensor, got a list"),
        ({"head_weights": torch.ones(2, 2, 3, 4)}, r"should end in \(3, 4\), got \(2, 2, 3, 4\)"),
        ({"knock_out": 3}, "knock_out takes a KnockOut or a list of them, got 3"),
        ({"knock_out": [3]}, r"knock_out takes a KnockOut or a list of them, got \[3\]"),
        ({"replace": "pooled"}, "replace takes a dict, such as .*, got 'pooled'"),
        ({"replace": {"pooled": None}}, "pooled is replaced by a tensor or a function of its value, got None"),
        ({"replace": {"pooled": 0}}, "pooled is replaced by a tensor or a function of its value, got 0"),
        ({"replace": {3: torch.zeros(1)}}, "no internal is called 3"),
        ({"replace": {"blocks.9.q": torch.zeros(1)}}, "no internal is called blocks.9.q"),
    ],
)
def test_what_does_not_exist_is_named(model, options, message):
    with pytest.raises(ValueError, match=message), intervene(model, **options):
        pass


def test_a_replacement_of_the_wrong_shape_is_refused(model, x):
    for change, found in (
        (lambda value: value[:, 1:], r"\(2, 47\)"),
        (lambda value: None, "None"),
        (torch.zeros(7), r"\(7,\)"),
        (torch.zeros(1, 2, 48), r"\(1, 2, 48\)"),
    ):
        with (
            pytest.raises(ValueError, match=rf"pooled is \(2, 48\), the replacement is {found}"),
            intervene(model, replace={"pooled": change}),
        ):
            model(x)


def test_weights_of_heads_for_another_number_of_images_are_refused(model, x):
    with (
        pytest.raises(ValueError, match="head_weights are for 3 images, the batch has 2"),
        intervene(model, head_weights=torch.ones(3, 3, 4)),
    ):
        model(x)


def without_tokens(model, x, patches):
    """The equations with fewer tokens: removed after the positions were added, so that the others keep theirs."""
    gone = {model.layout.prefix + patch for patch in patches}
    z = model.embed(x)
    z = z[:, [i for i in range(z.shape[1]) if i not in gone]]
    for block in model.blocks:
        z = block(z)
    return model.forward_head(model.norm(z))


@pytest.mark.parametrize(
    "family",
    [
        {},
        {"pool": "mean", "class_token": False, "fc_norm": True, "final_norm": False},
        {"pool": "token+mean", "registers": 3},
        {"distillation_token": True, "distillation_head": True},
    ],
)
def test_patches_off_equal_a_forward_without_their_tokens(x, family):
    model = noise(ViT(ViTConfig(**SMALL | family))).requires_grad_(False)
    patches = [0, 5, 6, 15]
    with intervene(model, patches_off=patches), capture(model) as seen:
        off = model(x)
    torch.testing.assert_close(off, without_tokens(model, x, patches), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(off, model(x), atol=1e-3)
    assert not seen.stack("attention")[..., [model.layout.prefix + patch for patch in patches]].any()


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_tensors_and_arrays_of_indices_act_like_lists(x, pool):
    torch.manual_seed(0)
    model, seen = noise(ViT(ViTConfig(**SMALL, pool=pool))).requires_grad_(False), []
    for kind in (list, np.array, torch.tensor):
        knock = KnockOut(queries=kind([0]), keys=kind([3, 4]))
        changes = {"patches_off": kind([9, 2]), "heads_off": kind([(1, 2), (0, -1)]), "knock_out": knock}
        with intervene(model, **changes):
            seen.append(model(x))
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_patches_off_and_heads_off_act_together(model, x):
    with intervene(model, patches_off=[3], heads_off=[(1, 2)]):
        both = model(x)
    with intervene(model, heads_off=[(1, 2)]):
        torch.testing.assert_close(both, without_tokens(model, x, [3]), rtol=1e-4, atol=1e-5)


def test_patches_that_do_not_exist_or_all_of_them_cannot_be_removed(model):
    with pytest.raises(ValueError, match="patch"), intervene(model, patches_off=[16]):
        pass
    every = intervene(model, patches_off=range(16))
    with pytest.raises(ValueError, match="all 16 patches are to be removed: leave at least one"), every:
        pass


@torch.no_grad()
def test_a_model_that_shares_the_blocks_is_changed_too_and_another_is_not(x):
    """A question about one label shares its blocks: the mean over patches leaves the same ones out."""
    model = noise(ViT(ViTConfig(**SMALL, pool="mean")))
    shared, other = copy.copy(model), copy.deepcopy(model)
    plain = model(x)
    with intervene(model, patches_off=[0, 7]):
        changed = model(x)
        assert torch.equal(shared(x), changed)
        assert torch.equal(other(x), plain)
    assert not torch.allclose(changed, plain)


def test_an_intervention_that_changes_nothing_is_none():
    """The explorer makes one for each question; what runs a copy of the model goes on."""
    model = family("class token")
    with intervene(model):
        assert interventions_on(model) == []
        assert not hooks_active()
    with intervene(model, heads_off=[(0, 0)]):
        assert len(interventions_on(model)) == 1
