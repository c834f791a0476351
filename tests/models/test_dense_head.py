"""Dense heads, written out: known weights give known logits, constants stay constant, pixels lie where patches do."""

import pytest
import torch
import torch.nn.functional as F

from conftest import noise
from vitreous.data.preprocess import default_preprocess
from vitreous.inside.artifacts import with_registers
from vitreous.inside.capture import capture
from vitreous.inside.faithfulness import reinitialised
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.intervene import intervene
from vitreous.inside.relevance import class_evidence, gradient_attention
from vitreous.models.dense_head import DECODER_WIDTH, DenseHead, at_pixel, at_region, spread_blocks
from vitreous.models.summary import count_flops, trace
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card

SMALL = {"image_size": (24, 32), "patch_size": 8, "width": 48, "depth": 3, "heads": 4, "classes": 5}


def small(dense="linear", blocks=(0, 2), **changes):
    return noise(ViT(ViTConfig(**SMALL | changes, dense=dense, dense_blocks=blocks)))


def images(model, b=2):
    return torch.randn(b, model.config.channels, *model.config.size)


@torch.no_grad()
def test_a_linear_head_on_the_last_block_is_one_product_written_out():
    model = small(blocks=(2,)).double()
    x = images(model).double()
    tokens = model.forward_features(x)[:, 1:]  # [b n d], normalised, without the class token
    head = model.head
    y = (tokens - tokens.mean(-1, keepdim=True)) / (tokens.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    y = y * head.norms[0].weight + head.norms[0].bias
    wanted = (y @ head.weight.T + head.bias).mT.reshape(2, 5, 3, 4)
    found = model(x)
    assert found.shape == (2, 5, 24, 32)
    torch.testing.assert_close(found, F.interpolate(wanted, size=(24, 32), mode="bilinear", align_corners=False))
    torch.testing.assert_close(found[..., 0, 0], wanted[..., 0, 0])  # a corner has no neighbours to blend with
    # pixel 6 is 2.5 pixels beyond the centre of column 0: 5.5 / 8 of it, and 2.5 / 8 of column 1
    torch.testing.assert_close(found[..., 0, 6], (5.5 * wanted[..., 0, 0] + 2.5 * wanted[..., 0, 1]) / 8)


@torch.no_grad()
def test_known_weights_give_known_logits():
    head = DenseHead(ViTConfig(**SMALL, dense="linear", dense_blocks=(0, 2)))
    head.weight[1, 3] = 2.0  # class 1 reads channel 3 of the first block,
    head.weight[4, 48 + 7] = -1.0  # class 4 channel 7 of the second
    head.bias[0] = 0.25
    first, second = torch.zeros(2, 48, 3, 4), torch.zeros(2, 48, 3, 4)
    first[:, 3], second[:, 7] = 1.0, 1.0  # one channel of 48: normalised, (1 - 1/48) / √(1/48 - 1/48²) = √47
    logits = head([first, second], (24, 32))
    wanted = torch.zeros(2, 5, 24, 32)
    wanted[:, 0], wanted[:, 1], wanted[:, 4] = 0.25, 2 * 47**0.5, -(47**0.5)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@torch.no_grad()
def test_equal_tokens_give_every_pixel_the_same_logits(dense):
    model = small(dense)
    tokens = torch.randn(2, 48, 1, 1).expand(2, 48, 3, 4)
    logits = model.head([tokens, 2 * tokens], (24, 32))
    torch.testing.assert_close(logits, logits[..., :1, :1].expand_as(logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image_size": (16, 48), "patch_size": (4, 6)},
        {"image_size": (7, 5), "patch_size": 1},
        {"image_size": (10, 6), "patch_size": 2},
        {"class_token": False, "pool": "mean", "registers": 3},
        {"image_size": (30, 34), "partial_patches": True},
    ],
)
@torch.no_grad()
def test_logits_are_as_large_as_the_image(dense, changes):
    model = small(dense, **changes)
    assert model(images(model)).shape == (2, 5, *model.config.size)


@torch.no_grad()
def test_pixels_that_fill_no_patch_have_their_neighbours_logits():
    model = small(image_size=(30, 34), partial_patches=True)
    logits = model(images(model))
    covered = logits[..., :24, :32]
    assert torch.equal(logits[..., 24:, :32], covered[..., -1:, :].expand(-1, -1, 6, -1))
    assert torch.equal(logits[..., 32:], logits[..., 31:32].expand(-1, -1, -1, 2))
    exact = DenseHead(ViTConfig(**SMALL, dense="linear", dense_blocks=(0, 2)))
    exact.load_state_dict(model.head.state_dict())
    grids = [torch.randn(1, 48, 3, 4) for _ in range(2)]
    assert torch.equal(model.head(grids, (30, 34))[..., :24, :32], exact(grids, (24, 32)))


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@torch.no_grad()
def test_a_patch_is_read_where_it_lies(dense):
    model = small(dense)
    grids = [torch.randn(1, 48, 3, 4) for _ in range(2)]
    before = model.head(grids, (24, 32))
    changed = [grid.clone() for grid in grids]
    changed[0][..., 1, 2] = torch.randn(48)  # row 1, column 2: pixels 8 to 15 and 16 to 23
    moved = (model.head(changed, (24, 32)) - before).abs().sum(dim=(0, 1))  # [H W]
    if dense == "linear":  # nothing beyond the centres of its neighbours, and as much on each side
        beyond = moved.clone()
        beyond[4:20, 12:28] = 0
        assert not beyond.any()
        torch.testing.assert_close(moved, moved.flip(1).roll(8, 1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(moved, moved.flip(0), rtol=1e-4, atol=1e-4)
    of_patches = F.avg_pool2d(moved[None], 8)[0]  # [rows columns]
    assert divmod(int(of_patches.argmax()), 4) == (1, 2)


@torch.no_grad()
def test_the_head_reads_the_outputs_of_its_blocks_and_the_last_ones_after_the_norm():
    model, read = small(blocks=(0, 1, 2)), []
    x = images(model)
    model.head.register_forward_pre_hook(lambda module, given: read.extend(given[0]))
    model(x)
    raw = model.get_intermediate_layers(x, [0, 1, 2], reshape=True)
    last = model.get_intermediate_layers(x, 1, reshape=True, norm=True)
    assert all(torch.equal(a, b) for a, b in zip(read, [*raw[:2], *last], strict=True))


@torch.no_grad()
def test_a_head_need_not_read_the_last_block():
    model = small(blocks=(1,))
    x = images(model)
    logits = model(x)
    noise(model.blocks[2])
    assert torch.equal(model(x), logits)  # what comes after block 1 does not reach it
    wanted = model.head(model.get_intermediate_layers(x, [1], reshape=True), model.config.size)
    assert torch.equal(logits, wanted)
    with pytest.raises(ValueError, match=r"reads the tokens of blocks 1, got those of 0"):
        model.forward_head(model.forward_features(x))  # the last tokens would be read as block 1's


@torch.no_grad()
def test_blocks_can_be_run_from_any_on():
    model = small(blocks=(0, 1, 2))
    x = images(model)
    whole = model.run_blocks(model.embed(x))
    second = model.run_blocks(whole[0], first=1)  # begins with the output of block 0
    assert len(whole) == len(second) == 3
    assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))


@pytest.mark.parametrize("dense", ["linear", "decoder"])
def test_every_parameter_of_a_dense_model_learns(dense):
    model = small(dense, blocks=(0, 2)).train()
    model(images(model)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", ["linear", "decoder"])
@torch.no_grad()
def test_a_new_dense_head_starts_at_zero_and_leaves_the_trunk(kind):
    model = noise(ViT(ViTConfig(**SMALL | {"classes": 7}, representation_size=6))).double()
    x = images(model).double()
    features = model.features(x)
    model.reset_dense(3, kind)
    assert model.config.dense == kind
    assert model.config.dense_blocks == (0, 1, 2)
    assert model.config.classes == 3
    assert model(x).shape == (2, 3, 24, 32)
    assert not model(x).any()
    assert model(x).dtype == torch.float64
    assert torch.equal(model.features(x), features)
    if kind == "decoder":
        assert model.head.projections[0].weight.std() > 0.01
        assert model.head.convolutions[0].weight.std() == pytest.approx((DECODER_WIDTH * 9) ** -0.5, rel=0.2)
    rebuilt = ViT(model.config).double()
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(rebuilt(x), model(x))
    model.reset_classifier(4)
    assert model(x).shape == (2, 4)
    assert model.config.dense == "none"
    assert model.config.dense_blocks == ()


def test_a_distilled_model_can_become_dense():
    model = noise(ViT(ViTConfig(**SMALL, distillation_token=True, distillation_head=True)))
    model.reset_dense(3, "linear", blocks=[2])
    assert model(images(model)).shape == (2, 3, 24, 32)
    assert model.head_dist is None


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 7, 12, 24, 40])
def test_blocks_are_spread_evenly_up_to_the_last(depth):
    blocks = spread_blocks(depth)
    gaps = [b - a for a, b in zip((-1, *blocks), blocks, strict=False)]
    assert blocks[-1] == depth - 1
    assert len(blocks) == min(4, depth)
    assert max(gaps) - min(gaps) <= 1
    assert min(gaps) > 0


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@torch.no_grad()
def test_a_dense_model_can_have_test_time_registers(dense):
    model = small(dense)
    with_more, x = with_registers(model, [(0, 3), (1, 7)], count=2), images(model)
    assert with_more.layout.tokens == model.layout.tokens + 2
    assert with_more(x).shape == (2, 5, 24, 32)
    assert not torch.allclose(with_more(x), model(x))


@torch.no_grad()
def test_the_work_of_a_dense_head_is_counted():
    model = small("linear", blocks=(2,))
    trunk = ViT(ViTConfig(**SMALL | {"classes": 0}, pool="mean"))
    linear = 2 * 12 * 48 * 5
    assert count_flops(model) == count_flops(trunk) + linear
    model.reset_dense(5, "decoder", blocks=[2])
    width, half = DECODER_WIDTH, DECODER_WIDTH // 2
    convolutions = 9 * width * (4 * 12 * width + 16 * 12 * half)  # at twice and four times the resolution
    assert count_flops(model) == count_flops(trunk) + 2 * (12 * 48 * width + convolutions + 16 * 12 * half * 5)
    assert dict(trace(model))["logits of each pixel"] == "5×24×32"


# --- one pixel, one region ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@torch.no_grad()
def test_a_pixel_has_the_logits_of_the_whole_image_there(dense):
    model = small(dense)
    x = images(model)
    whole = model(x)
    assert torch.equal(at_pixel(model, 11, 30)(x), whole[..., 11, 30])
    mask = torch.zeros(24, 32, dtype=torch.bool)
    mask[3:9, 5:7] = True
    torch.testing.assert_close(at_region(model, mask)(x), whole[..., 3:9, 5:7].mean(dim=(-2, -1)))
    assert torch.equal(model(x), whole)  # the model itself is as before


def test_a_pixel_shares_the_weights_and_their_gradients():
    model = small()
    pixel = at_pixel(model, 0, 0)
    pixel(images(model)).sum().backward()
    assert pixel.blocks[0] is model.blocks[0]
    assert model.head.weight.grad.abs().sum() > 0
    assert model.head.weight.grad.shape == (5, 96)


@torch.no_grad()
def test_a_pixel_of_another_network_of_the_same_shape_is_read_for_the_sanity_check():
    model = small("decoder")
    pixel, x = at_pixel(model, 7, 9), images(model)
    fresh = reinitialised(pixel)
    assert fresh(x).shape == (2, 5)
    assert fresh(x).std() > 0
    assert torch.equal(fresh.head.mask, pixel.head.mask)
    assert pixel.head.mask.nonzero().tolist() == [[7, 9]]


def test_the_card_of_a_pixel_is_that_of_a_classifier():
    model = small()
    model.card = Card("dense", default_preprocess(model.config), ("a", "b", "c", "d", "e"), task="segment")
    assert at_pixel(model, 0, 0).card.task == "classify"
    assert at_pixel(model, 0, 0).card.class_names == model.card.class_names
    assert model.card.task == "segment"


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (lambda model: at_pixel(model, 24, 0), r"pixel \(24, 0\) lies outside the image of 24×32"),
        (lambda model: at_pixel(model, 0, -1), "lies outside"),
        (lambda model: at_region(model, torch.zeros(24, 32, dtype=torch.bool)), "with 0 True"),
        (lambda model: at_region(model, torch.ones(24, 32)), "expected a boolean mask of 24×32"),
        (lambda model: at_region(model, torch.ones(3, 4, dtype=torch.bool)), r"got torch.bool \[3, 4\]"),
        (lambda model: at_pixel(at_pixel(model, 0, 0), 0, 0), "only a model with a dense head"),
        (lambda model: at_pixel(noise(ViT(ViTConfig(**SMALL))), 0, 0), "only a model with a dense head"),
    ],
)
def test_a_region_that_is_none_is_an_error(region, message):
    with pytest.raises(ValueError, match=message):
        region(small())


@pytest.mark.parametrize("dense", ["linear", "decoder"])
@torch.no_grad()
def test_capture_leaves_the_logits_of_all_pixels(dense):
    model = small(dense)
    x = images(model)
    logits = model(x)
    with capture(model, ["attention", "tokens", "output", "logits"]) as internals:
        assert torch.equal(model(x), logits)
    assert torch.equal(internals["logits"], logits)
    assert torch.equal(internals["tokens"], model.forward_features(x))
    with capture(model, "pooled") as internals:
        features = model.features(x)
    assert torch.equal(internals["pooled"], features)


@torch.no_grad()
def test_an_intervention_reaches_what_the_head_reads():
    model = small(blocks=(0, 2))
    x = images(model)
    with intervene(model, replace={"blocks.0.output": torch.zeros_like, "tokens": torch.zeros_like}):
        logits = model(x)
    wanted = model.head([torch.zeros(2, 48, 3, 4)] * 2, (24, 32))
    torch.testing.assert_close(logits, wanted)
    with intervene(model, heads_off=[(0, 1)]):
        assert not torch.allclose(model(x), logits)


def test_evidence_is_looked_for_where_the_head_reads_last():
    model = small(blocks=(1,))
    pixel, x = at_pixel(model, 4, 4), images(model, 1)
    assert grad_cam(pixel, x, 1).any() or grad_cam(pixel, x, 2).any()
    assert not grad_cam(pixel, x, 1, layer=2).any()  # beyond what the head reads
    assert gradient_attention(pixel, x, 1).any()
    found = class_evidence(pixel, x, [0, 1])
    assert found.gradient_attention.any()
    assert found.head_importance[:, :2].all()
    assert not found.head_importance[:, 2].any()
