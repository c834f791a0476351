import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from conftest import assert_same, noise
from vitreous.models.last_block import logits_only
from vitreous.models.vit import ViT, sine_positions
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.weight_folding import fold

SMALL = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 4, "classes": 5}


def small(**changes):
    return noise(ViT(ViTConfig(**SMALL | changes)))


@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    patch=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    channels=st.integers(1, 5),
)
@torch.no_grad()
def test_patch_embedding_equals_the_strided_convolution(grid, patch, channels):
    size = (grid[0] * patch[0], grid[1] * patch[1])
    model = small(image_size=size, patch_size=patch, channels=channels)
    x = torch.randn(2, channels, *size)
    convolved = F.conv2d(x, model.patch_embed.proj.weight, model.patch_embed.proj.bias, stride=patch)
    torch.testing.assert_close(model.patch_embed(x), convolved.flatten(2).transpose(1, 2), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_equations_1_to_4_written_out_in_float64():
    model = small().double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def norm(z, layer):
        centred = z - z.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.weight + layer.bias

    z = torch.cat([model.cls_token.expand(2, -1, -1), model.patch_embed(x)], dim=1) + model.pos_embed  # eq. 1
    for block in model.blocks:
        parts = []
        for head in range(4):
            rows = [slice(part * 48 + head * 12, part * 48 + head * 12 + 12) for part in range(3)]
            q, k, v = (norm(z, block.norm1) @ block.attn.qkv.weight[r].T + block.attn.qkv.bias[r] for r in rows)
            parts.append((q @ k.transpose(1, 2) / 12**0.5).softmax(-1) @ v)
        z = z + torch.cat(parts, -1) @ block.attn.proj.weight.T + block.attn.proj.bias  # eq. 2
        hidden = norm(z, block.norm2) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias
        z = z + hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)) @ block.mlp.fc2.weight.T + block.mlp.fc2.bias  # eq. 3
    y = norm(z[:, 0], model.norm)  # eq. 4
    torch.testing.assert_close(model(x), y @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "mean"},
        {"pool": "token+mean"},
        {"pool": "mean", "class_token": False},
        {"pool": "mean", "fc_norm": True, "final_norm": False},
        {"position": "sine-1d"},
        {"position": "sine-2d"},
        {"position": "none"},
        {"registers": 3, "prefix_positions": False},
        {"registers": 3},
        {"distillation_token": True, "distillation_head": True},
        {"representation_size": 20},
        {"swiglu": True, "mlp_width": 40},
        {"qk_norm": True, "layer_scale": 1e-5, "embedding_norm": True, "patch_bias": False},
        {"image_size": (16, 40), "patch_size": (8, 4), "channels": 2},
        {"classes": 0},
    ],
    ids=str,
)
@torch.no_grad()
def test_every_option_reaches_the_output(changes):
    model = small(**changes)
    config = model.config
    x = torch.randn(2, config.channels, *config.size)
    out = model(x)
    assert out.shape == (2, config.classes or config.feature_width)
    assert model.forward_features(x).shape == (2, config.layout.tokens, 48)
    for name, parameter in model.named_parameters():  # no weight is decoration
        if "k_norm.bias" in name:  # the same shift of every key moves no softmax
            continue
        before = parameter.clone()
        parameter.add_(torch.randn_like(parameter))
        assert not torch.allclose(model(x), out, atol=1e-6), name
        parameter.copy_(before)


def test_every_parameter_learns():
    model = small(distillation_token=True, distillation_head=True, layer_scale=0.1, qk_norm=True).train()
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if "k_norm.bias" not in name:  # see above
            assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_a_masked_token_cannot_be_seen():
    model = small()
    x = torch.randn(1, 3, 32, 32)
    mask = torch.ones(17, 17, dtype=torch.bool)
    mask[:, 6] = False
    mask[6, 6] = True  # patch (1, 1) is seen by itself alone
    changed = x.clone()
    changed[:, :, 8:16, 8:16] += 1
    torch.testing.assert_close(model(x, mask), model(changed, mask))
    assert not torch.allclose(model(x), model(changed))


def test_dropout_and_stochastic_depth_act_in_training_only():
    model = small(dropout=0.3, attention_dropout=0.3, stochastic_depth=0.5)
    x = torch.randn(4, 3, 32, 32)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_stochastic_depth_grows_linearly():
    blocks = ViT(ViTConfig(**SMALL | {"depth": 5, "stochastic_depth": 0.4})).blocks
    assert [round(block.skip.p, 6) for block in blocks] == [0, 0.1, 0.2, 0.3, 0.4]


def test_sine_positions_by_their_formula():
    config = ViTConfig(**SMALL | {"position": "sine-1d"})
    table = sine_positions(config)[0]
    assert table.shape == (17, 48)
    torch.testing.assert_close(table[3, 10], torch.tensor(3.0 * 10_000 ** (-10 / 48)).sin())
    torch.testing.assert_close(table[3, 11], torch.tensor(3.0 * 10_000 ** (-10 / 48)).cos())
    config = ViTConfig(**SMALL | {"position": "sine-2d", "image_size": (16, 32)})
    table = config.layout.to_grid(sine_positions(config)[0], dim=0)  # [2 4 48]
    assert torch.equal(table[0, :, :24], table[0, :1, :24].expand(4, 24))  # the first half knows rows alone
    assert torch.equal(table[:, 2, 24:], table[:1, 2, 24:].expand(2, 24))  # the second half columns
    assert not sine_positions(config)[0, 0].any()  # the class token stands nowhere


def test_intermediate_layers_are_those_of_the_forward_pass():
    model = small(registers=2)
    x = torch.randn(2, 3, 32, 32)
    first, last = model.get_intermediate_layers(x, n=2)
    assert_same(model.norm(last), model.forward_features(x))
    assert torch.equal(model.get_intermediate_layers(x, n=[0])[0], first)
    (grid,) = model.get_intermediate_layers(x, n=[-1], reshape=True, norm=True)
    assert torch.equal(grid[:, :, 1, 2], model.forward_features(x)[:, model.layout.index(1, 2)])
    for wrong in (0, 3, [2], [-3]):
        with pytest.raises(ValueError, match="blocks 0 to 1"):
            model.get_intermediate_layers(x, n=wrong)


def test_a_reset_classifier_is_linear_and_starts_at_zero():
    model = small(representation_size=20)
    model.reset_classifier(9)
    x = torch.randn(2, 3, 32, 32)
    assert model(x).shape == (2, 9)
    assert not model(x).any()
    assert model.head.hidden is None
    model.reset_classifier(0)
    assert torch.equal(model(x), model.features(x))


@torch.no_grad()
def test_a_reset_classifier_can_pool_by_new_attention():
    model, x = small(), torch.randn(2, 3, 32, 32)
    before = model.forward_features(x)
    model.reset_classifier(9, pool="attention")
    assert model.config.pool == "attention"
    assert model.config.pool_heads == 4
    assert not model.config.pool_prefix
    assert model.attn_pool.latent.std() > 0.05
    assert model.attn_pool.q.weight.std() > 0.01
    assert torch.equal(model.forward_features(x), before)
    assert model(x).shape == (2, 9)
    assert not model(x).any()
    pool = model.attn_pool
    model.reset_classifier(4, pool="attention")
    assert model.attn_pool is pool  # a model that pools by attention keeps what it has learned
    model.reset_classifier(4, pool="token")
    assert model.attn_pool is None
    assert model.config.pool_heads == 0


def test_a_new_pool_depends_on_torchs_seed():
    def pool(seed):
        model = small()
        torch.manual_seed(seed)
        model.reset_classifier(9, pool="attention")
        return model.attn_pool.state_dict()

    first, again, other = pool(0), pool(0), pool(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["latent"], other["latent"])
    assert not torch.equal(first["q.weight"], other["q.weight"])


def test_a_model_without_class_or_position_does_not_know_the_order_of_patches():
    model = small(position="none", pool="mean", class_token=False)
    x = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(model(x), model(x.roll(8, dims=-1)), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(small()(x), small()(x.roll(8, dims=-1)), atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 41, 32), r"takes \[b 3 32 32\], got \[1, 3, 41, 32\].*image_size=\(40, 32\)"),
        ((1, 4, 32, 32), "model.card.preprocess"),
        ((3, 32, 32), "stack images to a batch"),
    ],
)
def test_the_wrong_input_says_what_to_do(shape, message):
    with pytest.raises(ValueError, match=message):
        small()(torch.randn(shape))


def test_an_empty_batch_gives_an_empty_answer():
    assert small()(torch.randn(0, 3, 32, 32)).shape == (0, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 50}, "try heads=2"),
        ({"image_size": 33}, r"try image_size=\(32, 32\)"),
        ({"image_size": 0}, "positive whole number"),
        ({"image_size": (1, 2, 3)}, "positive whole number"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"classes": -1}, "classes must not be negative"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"pool": "max"}, "pool must be one of token, mean"),
        ({"activation": "tanh"}, "activation must be one of gelu"),
        ({"class_token": False}, "use pool='mean'"),
        ({"distillation_head": True}, "needs distillation_token=True"),
        ({"class_token": False, "pool": "mean", "distillation_token": True}, "needs class_token=True"),
        ({"position": "sine-2d", "width": 6, "heads": 1}, "4 divides"),
        ({"dense": "linear"}, "belong together"),
        ({"dense_blocks": (1,)}, "belong together"),
        ({"dense": "linear", "dense_blocks": (1, 0)}, "ascend within 0 to 1"),
        ({"dense": "linear", "dense_blocks": (1, 1)}, "ascend within 0 to 1"),
        ({"dense": "linear", "dense_blocks": (1, 2)}, "ascend within 0 to 1"),
        ({"dense": "linear", "dense_blocks": (-1, 1)}, "ascend within 0 to 1"),
        ({"dense": "linear", "dense_blocks": (0, 1.0)}, "dense_blocks must be a list of whole numbers"),
        ({"dense": "linear", "dense_blocks": (0, True)}, "dense_blocks must be a list of whole numbers"),
        ({"dense": "linear", "dense_blocks": "01"}, "dense_blocks must be a list of whole numbers"),
        ({"dense": "linear", "dense_blocks": 1}, "dense_blocks must be a list of whole numbers"),
        ({"dense": "upernet", "dense_blocks": (1,)}, "dense must be one of none, linear, decoder"),
        ({"dense": "linear", "dense_blocks": (1,), "classes": 0}, "needs classes > 0"),
        ({"dense": "linear", "dense_blocks": (1,), "representation_size": 8}, "needs representation_size=0, got 8"),
        ({"dense": "decoder", "dense_blocks": (1,), "head_norm": True}, "needs head_norm=False"),
        ({"dense": "decoder", "dense_blocks": (1,), "head_bias": False}, "needs head_bias=True"),
        (
            {"dense": "linear", "dense_blocks": (1,), "distillation_token": True, "distillation_head": True},
            "needs distillation_head=False",
        ),
    ],
)
def test_a_config_says_what_to_change(changes, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**SMALL | changes)


def test_a_list_of_blocks_as_a_file_has_it_becomes_a_tuple():
    assert ViTConfig(**SMALL, dense="linear", dense_blocks=[0, 1]).dense_blocks == (0, 1)


def test_an_image_that_is_no_batch_is_told_what_to_do_instead():
    from PIL import Image

    model = ViT(ViTConfig(image_size=16, patch_size=4, width=32, depth=2, heads=2, classes=7))
    for image in (Image.new("RGB", (16, 16)), "photo.jpg", b"", [1.0]):
        with pytest.raises(TypeError, match=rf"got {type(image).__name__}: use vitreous.classify\(image, model\)"):
            model(image)


@torch.no_grad()
def test_rms_norm_divides_each_token_by_its_root_mean_square():
    model = noise(ViT(ViTConfig(**SMALL, norm="rms", patch_norm=True, branch_bias=False)))
    assert not [key for key in model.state_dict() if "norm" in key and key.endswith("bias")]
    assert {key for key in model.state_dict() if key.endswith("bias")} == {
        *("patch_embed.proj.bias", "head.bias"),
        *(f"blocks.{n}.attn.qkv.bias" for n in range(model.config.depth)),
    }
    x, norm = torch.randn(2, 3, model.config.width), model.blocks[0].norm1
    expected = x / (x.square().mean(dim=-1, keepdim=True) + model.config.norm_eps).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected)


@torch.no_grad()
def test_norms_after_the_branches_leave_the_residual_alone():
    block = noise(ViT(ViTConfig(**SMALL, post_norm=True))).blocks[0]
    x = torch.randn(2, 5, block.norm1.normalized_shape[0])
    middle = x + block.norm1(block.attn(x))
    torch.testing.assert_close(block(x), middle + block.norm2(block.mlp(middle)))


@torch.no_grad()
def test_norms_after_the_residual_connections_are_the_first_transformers():
    model = noise(ViT(ViTConfig(**SMALL, residual_norm=True, final_norm=False)))
    block, keys = model.blocks[0], set(ViT(ViTConfig(**SMALL, final_norm=False)).state_dict())
    x = torch.randn(2, 5, block.norm1.normalized_shape[0])
    middle = block.norm1(x + block.attn(x))
    torch.testing.assert_close(block(x), block.norm2(middle + block.mlp(middle)))
    assert set(model.state_dict()) == keys
    assert not model.config.plain  # forward passes that know the paper's blocks alone leave it out


@torch.no_grad()
def test_short_and_folded_forward_passes_of_post_norm_equal_the_whole():
    model = noise(ViT(ViTConfig(**SMALL, residual_norm=True, final_norm=False))).eval()
    x = torch.randn(2, model.config.channels, *model.config.size)
    torch.testing.assert_close(logits_only(model, x), model(x))
    torch.testing.assert_close(fold(model)(x), model(x))


def test_norms_of_two_kinds_contradict_each_other():
    with pytest.raises(ValueError, match="set one of them"):
        ViTConfig(**SMALL, post_norm=True, residual_norm=True)


def test_positions_are_drawn_with_the_deviation_asked_for_and_the_usual_one_keeps_its_bits():
    drawn = {}
    for std in (0.02, 1.0):
        torch.manual_seed(0)
        drawn[std] = ViT(ViTConfig(width=192, heads=3, depth=1, position_std=std))
    wide, usual = drawn[1.0].pos_embed.detach(), drawn[0.02].pos_embed.detach()
    assert wide.std().item() == pytest.approx(1, abs=0.02)
    assert wide.abs().max() > 3  # N(0, 1) is not cut off at 2
    torch.manual_seed(0)
    expected = torch.nn.init.trunc_normal_(torch.empty(1, 197, 192), std=0.02)
    torch.manual_seed(0)
    torch.testing.assert_close(
        torch.nn.init.trunc_normal_(torch.empty(1, 197, 192), std=0.02, a=-2, b=2), expected, rtol=0, atol=0
    )
    torch.testing.assert_close(usual * 50, wide, rtol=1e-4, atol=1e-4)  # the same draw
    with pytest.raises(ValueError, match="position_std must be above 0"):
        ViTConfig(position_std=0.0)
