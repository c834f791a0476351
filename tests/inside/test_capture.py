import threading
import warnings

import numpy as np
import pytest
import torch
from families import family, images
from hypothesis import given
from hypothesis import strategies as st

from conftest import noise
from vitreous.inside.capture import capture
from vitreous.inside.glossary import BLOCK, WHOLE
from vitreous.inside.intervene import intervene
from vitreous.models.hooks import HOOKS
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

SMALL = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 3, "heads": 4, "classes": 5}
FAMILIES = {
    "plain": {},
    "distilled": {"distillation_token": True, "distillation_head": True},
    "registers": {"registers": 4, "prefix_positions": False, "layer_scale": 0.1, "swiglu": True},
    "clip": {"embedding_norm": True, "patch_bias": False, "activation": "quick_gelu", "qk_norm": True},
    "relative": {"relative_position": "table", "position": "none", "qkv_bias": False, "qv_bias": True},
    "shared_relative": {"relative_position": "shared-mlp", "relative_width": 8},
    "no_class_token": {"class_token": False, "pool": "mean", "image_size": (24, 40)},
}
ALL = [*WHOLE, *BLOCK]


def build(family="plain"):
    return noise(ViT(ViTConfig(**SMALL | FAMILIES[family])))


def image(model, batch=2):
    return torch.randn(batch, 3, *model.config.size)


def explicit(model, x):
    """Every internal, worked out by the equations, without the fused kernel."""
    found, z = {}, model.embed(x)
    found["embedding"] = z
    for i, block in enumerate(model.blocks):
        b, t, d = z.shape
        y = block.norm1(z)
        q, k, v = block.attn.qkv(y).reshape(b, t, 3, block.attn.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = block.attn.q_norm(q), block.attn.k_norm(k)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if (bias := model.shared_rel_pos or block.attn.rel_pos) is not None:
            scores = scores + bias()
        mixed = scores.softmax(-1) @ v
        found |= {
            f"blocks.{i}.{n}": value
            for n, value in zip(("input", "norm1", "q", "k", "v"), (z, y, q, k, v), strict=True)
        }
        found |= {f"blocks.{i}.scores": scores, f"blocks.{i}.attention": scores.softmax(-1), f"blocks.{i}.mixed": mixed}
        out = block.attn.proj(mixed.transpose(1, 2).reshape(b, t, d))
        middle = z + block.ls1(out)
        y = block.norm2(middle)
        after = block.mlp(y)
        z = middle + block.ls2(after)
        found |= {f"blocks.{i}.attention_output": out, f"blocks.{i}.middle": middle, f"blocks.{i}.norm2": y}
        found |= {f"blocks.{i}.mlp_output": after, f"blocks.{i}.output": z}
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_bit_equal_with_and_without_capture(family):
    model = build(family)
    x = image(model)
    before = model(x)
    with capture(model, ALL) as seen:
        during = model(x)
    assert torch.equal(during, before)
    assert torch.equal(model(x), before)
    assert torch.equal(seen["logits"], before)
    assert HOOKS.get() == ()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_internal_is_what_the_equations_say(family):
    model = build(family)
    x = image(model)
    with capture(model, ALL) as seen:
        model(x)
    assert set(seen) == {*WHOLE, *(f"blocks.{i}.{name}" for i in range(3) for name in BLOCK)}
    for name, value in explicit(model, x).items():
        torch.testing.assert_close(
            seen[name], value, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    sums = seen.stack("attention").sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@given(
    layers=st.lists(st.integers(-3, 2), min_size=1, max_size=3),
    heads=st.lists(st.integers(-4, 3), min_size=1, max_size=4),
    queries=st.lists(st.integers(-17, 16), min_size=1, max_size=5),
)
@torch.no_grad()
def test_a_choice_is_a_part_of_the_whole(layers, heads, queries):
    torch.manual_seed(1)
    model = build()
    x = image(model)
    with (
        capture(model, ["attention", "scores"]) as whole,
        capture(model, ["attention", "scores"], layers=layers, heads=heads, queries=queries) as part,
    ):
        model(x)
    assert part.layers == tuple(sorted({layer % 3 for layer in layers}))
    for name in part:
        torch.testing.assert_close(part[name], whole[name][:, heads][:, :, queries], rtol=1e-5, atol=1e-6)


def test_nothing_survives_an_exception():
    model = build()
    before = {name: (dict(module._forward_hooks), set(vars(module))) for name, module in model.named_modules()}
    with pytest.raises(RuntimeError, match="stop"), capture(model, ALL):  # noqa: PT012
        model(image(model))
        raise RuntimeError("stop")
    with pytest.raises(ValueError, match="image_size"), capture(model):
        model(torch.randn(1, 3, 8, 8))
    assert HOOKS.get() == ()
    assert before == {name: (dict(module._forward_hooks), set(vars(module))) for name, module in model.named_modules()}


@torch.no_grad()
def test_threads_capture_each_their_own():
    model = build()
    images = [image(model, 1) for _ in range(8)]
    expected = []
    for x in images:
        with capture(model) as seen:
            model(x)
        expected.append(seen.stack("attention"))
    results = [None] * 8
    barrier = threading.Barrier(8)

    def work(i):
        with torch.no_grad(), capture(model) as seen:
            barrier.wait()
            for _ in range(5):
                model(images[i])
            results[i] = seen.stack("attention")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)


@torch.no_grad()
def test_another_model_inside_the_with_is_not_mixed_in():
    one, other = build(), build()
    x = image(one)
    with capture(one) as seen:
        one(x)
        kept = seen["blocks.0.attention"].clone()
        other(x)
    assert torch.equal(seen["blocks.0.attention"], kept)


def test_gradients_are_those_of_explicit_attention_in_float64():
    model = build().double()
    x = image(model).double()
    with capture(model, ["attention", "middle"], gradients=True) as seen:
        model(x)[:, 2].sum().backward()
    model.zero_grad()

    z = model.embed(x)
    leaves = []
    for block in model.blocks:
        q, k, v = block.attn.qkv(block.norm1(z)).reshape(2, 17, 3, 4, 12).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) / 12**0.5).softmax(-1)
        attention.retain_grad()
        mixed = (attention @ v).transpose(1, 2).reshape(2, 17, 48)
        middle = z + block.attn.proj(mixed)
        middle.retain_grad()
        leaves.append((attention, middle))
        z = middle + block.mlp(block.norm2(middle))
    model.forward_head(model.norm(z))[:, 2].sum().backward()
    for i, (attention, middle) in enumerate(leaves):
        torch.testing.assert_close(seen[f"blocks.{i}.attention"], attention.detach())
        torch.testing.assert_close(seen.gradient(f"blocks.{i}.attention"), attention.grad)
        torch.testing.assert_close(seen.gradient(f"blocks.{i}.middle"), middle.grad)


def test_gradients_of_chosen_heads_and_rows_are_a_part_of_all():
    model = build()
    x = image(model)
    with capture(model, gradients=True) as whole, capture(model, gradients=True, heads=[2, 0], queries=[0, 5]) as part:
        model(x)[:, 2].sum().backward()
    for name in ("blocks.0.attention", "blocks.2.attention"):
        assert part[name].shape == (2, 2, 2, 17)
        torch.testing.assert_close(part.gradient(name), whole.gradient(name)[:, [2, 0]][:, :, [0, 5]])


def test_the_gradient_of_attention_is_0_for_a_head_that_is_off_and_scaled_for_one_that_is_weighted():
    model = build()
    x = image(model)
    weights = torch.ones(model.config.depth, model.config.heads)
    weights[1, 0], weights[1, 1] = 0.0, 0.5
    kept = {}

    def keep(attention):
        attention.retain_grad()
        return kept.setdefault("attention", attention)

    with intervene(model, head_weights=weights, replace={"blocks.1.attention": keep}):
        model(x).sum().backward()
    with capture(model, gradients=True) as seen, intervene(model, head_weights=weights):
        model(x).sum().backward()
    found = seen.gradient("blocks.1.attention")
    torch.testing.assert_close(found, kept["attention"].grad)
    assert found[:, 0].abs().max() == 0
    assert found[:, 1].abs().max() > 0


def test_a_change_in_place_does_not_reach_what_was_recorded_before_it():
    model = build()
    x = image(model)

    def cut(tokens):
        tokens[:, 0] = 0
        return tokens

    with torch.inference_mode():
        with capture(model, "output", layers=[0]) as before:
            model(x)
        with capture(model, "output", layers=[0]) as seen, intervene(model, replace={"blocks.1.input": cut}):
            model(x)
    assert torch.equal(seen["blocks.0.output"], before["blocks.0.output"])


def test_a_gradient_that_was_not_asked_for_says_so():
    model = build()
    with capture(model, "middle") as seen:
        model(image(model)).sum().backward()
    with pytest.raises(ValueError, match="gradients=True"):
        seen.gradient("blocks.0.middle")
    with pytest.raises(KeyError, match="was not captured"):
        seen["blocks.0.q"]


@torch.no_grad()
def test_a_mask_shows_in_the_attention():
    model = build()
    mask = torch.ones(17, 17, dtype=torch.bool)
    mask[:, 5] = False
    with capture(model) as seen:
        model(image(model), mask)
    assert not seen.stack("attention")[..., 5].any()


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_model_shows_its_plain_code_and_says_so():
    model = build()
    x = image(model)
    compiled = torch.compile(model, backend="eager")
    plain = model(x)
    assert torch.equal(compiled(x), plain)
    with pytest.warns(UserWarning, match="compiled"), capture(compiled) as seen:
        assert torch.equal(compiled(x), plain)
    assert len(seen) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capture(model):
            model(x)


@torch.no_grad()
def test_kept_queries_do_not_hold_on_to_keys_and_values():
    model = build()
    with capture(model, ["q", "v"]) as seen:
        model(image(model))
    assert len(seen) == 2 * model.config.depth
    for value in seen.values():
        assert value.untyped_storage().nbytes() == value.nbytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["atention"]}, "no internal is called atention"),
        ({"names": 3}, "expected names of internals, such as 'attention', got 3"),
        ({"names": ["attention", 3]}, "no internal is called 3"),
        ({"to": "nowhere"}, "device must be auto, cpu, cuda, cuda:N or mps, got 'nowhere'"),
        ({"to": [1]}, r"device must be auto, cpu, cuda, cuda:N or mps, got \[1\]"),
        ({"layers": [3]}, "no block 3: this model has 0 to 2"),
        ({"heads": [-5]}, "no head -5"),
        ({"queries": [17]}, "no token 17"),
        ({"queries": torch.arange(17) < 3}, r"index of a token, got tensor\(True\): pass indices, as mask.nonzero"),
        ({"heads": [True, False]}, "index of a head, got True: pass indices"),
        ({"heads": np.array([True, False])}, "index of a head, got .*True.*: pass indices"),
        ({"layers": [0.0]}, "index of a block should be a whole number, got 0.0"),
        ({"layers": torch.zeros(2)}, "index of a block should be a whole number, got tensor"),
        ({"layers": torch.zeros(2, 2).long()}, "index of a block should be a whole number, got tensor"),
        ({"layers": 0}, r"each the index of a block, got 0: write \[0\]"),
    ],
)
def test_what_does_not_exist_is_named(options, message):
    model = build()
    with pytest.raises(ValueError, match=message), capture(model, **options):
        pass


def test_tensors_and_arrays_of_indices_are_lists_of_them():
    model, seen = build(), []
    x = image(model)
    for kind in (list, np.array, torch.tensor):
        with capture(model, layers=kind([2, 0]), heads=kind([3, 1]), queries=kind([5, -1])) as internals:
            model(x)
        seen.append(internals.stack("attention"))
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[0][1], internals["blocks.2.attention"])  # by depth, though 2 was asked for first


def test_a_resnet_is_refused():
    with (
        pytest.raises(ValueError, match="only the internals of a ViT can be captured"),
        capture(ResNet(ResNetConfig(18))),
    ):
        pass


def test_internals_print_as_a_list_of_names_and_shapes():
    model = family("class token")
    with capture(model, ["q", "logits"], layers=[0]) as internals:
        assert repr(internals) == "Internals: nothing recorded yet"
        model(images(model))
    assert repr(internals).splitlines() == [
        "Internals of 2 tensors:",
        "  blocks.0.q  [2, 4, 13, 6]  float32",
        "  logits      [2, 5]         float32",
    ]
    assert "<td><code>blocks.0.q</code></td><td>[2, 4, 13, 6]</td>" in internals._repr_html_()
