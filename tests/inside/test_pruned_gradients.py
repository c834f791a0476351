import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, family, images

from vitreous.inside.intervene import intervene
from vitreous.inside.pruned_gradients import Pruning, pruned_gradients, token_parts
from vitreous.models.text import begin_head, with_sentences
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

OTHERS = {
    "tanh before the head": ("class token", {"representation_size": 10}),
    "tanh after a norm": ("square", {"representation_size": 10, "norm": "rms"}),
    "distilled, norm after pooling": ("distilled", {"final_norm": False, "fc_norm": True}),
    "gated, attention pool with silu": ("attention pool", {"swiglu": True, "activation": "silu"}),
    "gated, a pixel": ("a pixel, decoder", {"swiglu": True}),
    "relu": ("post-norm", {"activation": "relu", "norm": "rms"}),
    "tanh gelu, norms inside": ("shared relative network", {"activation": "gelu_tanh", "mlp_norm": True}),
    "quick gelu, attention pool": ("attention pool", {"activation": "quick_gelu", "attention_norm": True}),
    "class attention, norm before": ("class attention pool", {"final_norm": True, "activation": "silu"}),
}
"""Parts of the network that no family has, or not together: the family, and the changes."""
EVERY = [*FAMILIES, *OTHERS]


def build(name):
    known, changes = OTHERS.get(name, (name, {}))
    return family(known, **changes)


def without_biases(model):
    """Set every bias to zero: then parts of tokens have nothing else to add up with."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    return model.double()


def moved_norm(model):
    """Build the twin of a class token's model that computes the same with its last norm after pooling, not before."""
    twin = ViT(replace(model.config, final_norm=False, fc_norm=True)).eval().to(next(model.parameters()))
    renamed = {f"fc_{name}" if name.startswith("norm.") else name: value for name, value in model.state_dict().items()}
    twin.load_state_dict(renamed)
    return twin


@pytest.mark.parametrize("name", EVERY)
def test_without_biases_the_tokens_parts_of_every_block_add_up_to_the_logit(name):
    model = without_biases(build(name))
    x = images(model)
    parts, wanted = token_parts(model, x, 2).sum(dim=-1), model(x)[:, 2].detach()
    if model.config.pool == "class-attention":  # its class token joins after the blocks, and has a part of its own
        with Pruning():
            score = model(x)[:, 2]
        token = model.attn_pool.cls_token
        own = torch.stack([(torch.autograd.grad(each, token, retain_graph=True)[0] * token).sum() for each in score])
        assert own.abs().min() > 1e-3
        wanted = wanted - own.detach()
    assert wanted.abs().min() > 1e-3
    torch.testing.assert_close(parts, wanted.expand(model.config.depth, -1), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@pytest.mark.parametrize("blocks", [(0, 2), (0,), (1,), (0, 1, 2), (2,)])
def test_without_biases_the_parts_add_up_to_the_logit_of_a_pixel(dense, blocks):
    model = without_biases(family("a pixel, linear", dense=dense, dense_blocks=blocks))
    x = images(model)
    parts = token_parts(model, x, 2)
    wanted = model(x)[:, 2].detach()
    torch.testing.assert_close(parts.sum(dim=-1), wanted.expand(3, -1))
    assert wanted.abs().min() > 1e-3


@pytest.mark.parametrize("name", ["class token", "registers", "rms norm", "head norm", "distilled"])
def test_twins_with_the_norm_before_and_after_pooling_have_equal_maps(name):
    model = family(name).double()
    twin, x = moved_norm(model), images(model)
    torch.testing.assert_close(twin(x), model(x))
    torch.testing.assert_close(token_parts(twin, x, 1), token_parts(model, x, 1))


def test_twins_that_compare_with_sentences_by_cosine_and_by_a_norm_have_equal_maps():
    model, sentences = family("CLIP").double(), torch.randn(3, 5, dtype=torch.float64)
    compared = with_sentences(model, sentences, torch.tensor(2.0))
    x = images(model)
    found, logits = token_parts(compared, x, 1), compared(x)
    begin_head(model, sentences, torch.tensor(2.0))
    torch.testing.assert_close(model(x), logits)
    torch.testing.assert_close(token_parts(model, x, 1), found)


@pytest.mark.parametrize("name", ["class token", "rotary, mixed", "attention pool", "class attention pool", "relu"])
def test_attention_as_an_explicit_matrix_gives_the_maps_of_the_fused_kernel(name):
    model = build(name).double()
    x, blocks = images(model), [f"blocks.{layer}.attention" for layer in range(model.config.depth)]
    explicit = [*blocks, "pool.attention"] if model.attn_pool is not None else blocks
    found = token_parts(model, x, 1)
    with intervene(model, replace=dict.fromkeys(explicit, lambda attention: attention)):
        torch.testing.assert_close(token_parts(model, x, 1), found)


@pytest.mark.parametrize("name", EVERY)
def test_the_forward_pass_does_not_change(name):
    model = build(name)
    x, seen = images(model), []
    handle = model.register_forward_hook(lambda module, inputs, output: seen.append(output))
    found = pruned_gradients(model, x, 1)
    handle.remove()
    assert found.shape == (2, *model.layout.grid)
    assert torch.equal(seen[0].detach(), model(x).detach())


@pytest.mark.parametrize("pool", ["token", "mean", "token+mean"])
def test_patches_that_are_removed_have_no_part_and_the_others_add_up(pool):
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=4, width=24, depth=2, heads=3, classes=5, pool=pool)
    model = ViT(config).eval()
    torch.nn.init.normal_(model.head.weight)
    without_biases(model)
    x, gone = torch.randn(1, 3, 16, 16, dtype=torch.float64), [0, 7]
    with intervene(model, patches_off=gone, heads_off=[(1, 2)]):
        parts, logits = token_parts(model, x, 2), model(x)
    assert not parts[:, 0, [1 + patch for patch in gone]].any()
    torch.testing.assert_close(parts.sum(dim=-1), logits[:, 2].expand(2, -1).detach())


def pixel_gradients(model, x):
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(model(x)[:, 1].sum(), x)[0]


def test_another_thread_on_the_same_model_keeps_its_gradients_meanwhile():
    model, found = family("norms inside"), []
    x = images(model)
    plain = pixel_gradients(model, x)

    def meanwhile(tokens):
        thread = threading.Thread(target=lambda: found.append(pixel_gradients(model, x)))
        thread.start()
        thread.join()
        return tokens

    with intervene(model, replace={"blocks.1.middle": meanwhile}):
        token_parts(model, x, 1)
    assert torch.equal(found[0], plain)
    with Pruning():
        assert not torch.allclose(pixel_gradients(model, x), plain)


def test_after_an_error_gradients_are_whole_again():
    model = family("class token")
    x = images(model)
    plain = pixel_gradients(model, x)
    with pytest.raises(ValueError, match="class from 0"):
        token_parts(model, x, 99)
    assert torch.equal(pixel_gradients(model, x), plain)


@pytest.mark.parametrize("factor", [0.5, torch.tensor([1.0, 0.0, 2.0])], ids=["number", "mask"])
def test_an_activation_that_a_constant_multiplies_is_no_gate(factor):
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    with Pruning():
        y = F.gelu(x) * factor
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0] * x, y)


@pytest.mark.parametrize("kind", ["layer", "rms", "direction"])
def test_long_tokens_in_half_precision_do_not_overflow(kind):
    norms = {"layer": torch.nn.LayerNorm(24), "rms": torch.nn.RMSNorm(24), "direction": partial(F.normalize, dim=-1)}
    x, slopes = (500 * torch.randn(4, 24)).half(), []
    for tokens in (x, x.float()):
        tokens.requires_grad_()
        with Pruning():
            norm = norms[kind].to(tokens.dtype) if kind != "direction" else norms[kind]
            slopes.append(torch.autograd.grad(norm(tokens)[:, 0].sum(), tokens)[0].float())
    assert slopes[1].any()
    torch.testing.assert_close(*slopes, atol=1e-5, rtol=1e-2)
