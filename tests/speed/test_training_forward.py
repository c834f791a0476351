"""The forward pass for training: the same loss and gradients as the plain model's, by other means."""

import pytest
import torch
import torch.nn.functional as F

from conftest import noise
from vitreous.models.last_block import logits_only
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed import fused_ops, training_forward
from vitreous.speed.training_forward import training_logits

SMALL = {"image_size": 16, "patch_size": 4, "width": 48, "depth": 3, "heads": 3, "classes": 7}


def learned(model, forward, x, classes):
    """The loss and every gradient."""
    model.zero_grad(set_to_none=True)
    logits = forward(model, x)
    targets = classes if logits.dim() == 2 else classes[:, None, None].expand(-1, *logits.shape[2:])
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    return loss.item(), {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def same(one, other, share=1e-5):
    assert abs(one[0] - other[0]) <= share * abs(one[0])
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        assert (gradient - other[1][name]).abs().max() <= share * gradient.abs().max() + 1e-7, name


@pytest.fixture
def batch():
    torch.manual_seed(3)
    return torch.randn(5, 3, 16, 16), torch.arange(5)


FAMILIES = {
    "plain": {},
    "registers, layer scale": {"registers": 2, "layer_scale": 0.1},
    "query and key norms": {"qk_norm": True},
    "rotary positions beside a class token": {"rope": "dinov3", "width": 96, "registers": 1},
    "rotary positions by row and column": {"rope": "axial"},
    "distilled": {"distillation_token": True, "distillation_head": True},
    "swiglu, which is not fused": {"swiglu": True},
    "mean of the patches, whose head reads all tokens": {"pool": "mean", "fc_norm": True, "final_norm": False},
    "a class for each pixel": {"dense": "linear", "dense_blocks": (0, 2)},
    "a decoder that reads no last block": {"dense": "decoder", "dense_blocks": (0, 1)},
}


@pytest.fixture(params=[False, True], ids=["", "attention's kernel"])
def kernel(request, monkeypatch):
    """Whether attention of few tokens is computed as on a GPU, with what replaces the kernel elsewhere."""
    if request.param:
        monkeypatch.setattr(training_forward, "has_triton", lambda device: True)
        monkeypatch.setattr(training_forward, "KERNEL_TYPES", (torch.float32,))
        monkeypatch.setattr(training_forward, "_multiplies_bf16", lambda device: True)
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"fused": False, "recompute": True}])
def test_loss_and_gradients_are_the_plain_models(family, options, batch, kernel):
    model = ViT(ViTConfig(**{**SMALL, **FAMILIES[family]}))
    rotation = None if model.rope is None else model.rope.rotation.clone()
    noise(model).train()
    if rotation is not None:
        model.rope.rotation.copy_(rotation)  # the halves of noise would differ
    plain = learned(model, lambda model, x: model(x), *batch)
    same(plain, learned(model, lambda model, x: training_logits(model, x, **options), *batch))


def test_the_kernels_are_really_used_and_only_where_they_fit(batch, monkeypatch):
    calls = []
    kernel = fused_ops.gelu_backward
    monkeypatch.setattr(
        "vitreous.speed.training_forward.gelu_backward", lambda *given: (calls.append(1), kernel(*given))[1]
    )
    learned(noise(ViT(ViTConfig(**SMALL))).train(), training_logits, *batch)
    assert len(calls) == SMALL["depth"] - 1  # the last block is worked out for one token alone
    learned(noise(ViT(ViTConfig(**SMALL, dropout=0.5))).train(), training_logits, *batch)
    assert len(calls) == SMALL["depth"] - 1


def test_dropped_branches_fall_alike_when_a_block_is_worked_out_again(batch):
    model = noise(ViT(ViTConfig(**SMALL, dropout=0.3, stochastic_depth=0.5))).train()

    def seeded(recompute):
        def forward(model, x):
            torch.manual_seed(8)
            return training_logits(model, x, recompute=recompute)

        return forward

    same(learned(model, seeded(False), *batch), learned(model, seeded(True), *batch))


def kept(model, x, **options):
    """Bytes that the backward pass waits for, weights aside."""
    total, seen = 0, {value.data_ptr() for value in model.parameters()}

    def pack(value):
        nonlocal total
        if value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            total += value.nbytes
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        training_logits(model, x, **options)
    return total


def test_recomputing_keeps_a_fraction(batch):
    whole, x = (
        noise(
            ViT(ViTConfig(**{**SMALL, "depth": 6}, **FAMILIES["mean of the patches, whose head reads all tokens"]))
        ).train(),
        batch[0],
    )
    assert kept(whole, x, recompute=True) < 0.45 * kept(whole, x, fused=False)
    model = noise(ViT(ViTConfig(**{**SMALL, "depth": 6}))).train()
    assert kept(model, x, recompute=True) < 0.45 * kept(model, x, fused=False)


@pytest.mark.slow
def test_bf16_tokens_keep_less_where_norms_are_compiled(batch):
    model = noise(ViT(ViTConfig(**{**SMALL, "depth": 6}))).train()
    with torch.autocast("cpu", torch.bfloat16):
        less, usual = (kept(model, batch[0], in_parts=True, residual=each) for each in (torch.bfloat16, None))
    assert less < 0.96 * usual  # tokens between blocks are one of several things kept


@pytest.mark.parametrize(
    "changes",
    [{"pool": "mean"}, {"pool": "token+mean", "swiglu": True}, {"dense": "linear", "dense_blocks": (2, 5)}],
)
def test_recomputing_serves_heads_that_read_all_tokens_too(batch, changes):
    model, x = noise(ViT(ViTConfig(**{**SMALL, "depth": 6}, **changes))).train(), batch[0]
    assert kept(model, x, recompute=True) < 0.45 * kept(model, x, fused=False)


def test_bf16_tokens_are_near(batch):
    model = noise(ViT(ViTConfig(**SMALL))).train()
    plain = learned(model, lambda model, x: model(x), *batch)
    with torch.autocast("cpu", torch.bfloat16):
        near = learned(model, lambda model, x: training_logits(model, x, torch.bfloat16), *batch)
    same(plain, near, 0.15)
    assert plain[0] != near[0]


def test_the_pieces_against_autograd():
    x = torch.randn(130, 40, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(130, 40, dtype=torch.float64)
    (F.gelu(x) * slope).sum().backward()
    into, after, sums = fused_ops.gelu_backward(x.detach().float(), slope.float())
    torch.testing.assert_close(into.double(), x.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after.double(), F.gelu(x).detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sums.sum(0).double(), x.grad.sum(0), atol=1e-4, rtol=1e-4)
    q, k, v = torch.randn(2, 21, 3, 3, 24).permute(2, 0, 3, 1, 4).unbind(0)
    packed, sums = fused_ops.pack(q, k, v)
    back = packed.view(2, 21, 3, 3, 24).permute(2, 0, 3, 1, 4)
    assert all(torch.equal(one, other) for one, other in zip(back.unbind(0), (q, k, v), strict=True))
    torch.testing.assert_close(sums.sum(0), packed.flatten(0, 1).sum(0), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_step_and_a_look_are_compiled_once_each_and_whole(batch):
    from torch._dynamo.testing import CompileCounterWithBackend

    x, classes = batch
    model, counter = noise(ViT(ViTConfig(**SMALL))), CompileCounterWithBackend("aot_eager")
    plain = learned(model.train(), lambda model, x: model(x), x, classes)
    step = torch.compile(training_logits, backend=counter, fullgraph=True, dynamic=False)
    look = torch.compile(logits_only, backend=counter, fullgraph=True, dynamic=False)
    for _ in range(3):  # learn, look, learn, look: neither makes the other compile again
        same(plain, learned(model.train(), step, x, classes))
        with torch.no_grad():
            look(model.eval(), x)
    assert counter.frame_count == 2


def test_the_gradient_of_attention_is_autograds():
    for images, tokens, heads, width in ((2, 21, 3, 16), (1, 1, 2, 4)):
        qkv = torch.randn(images * tokens, 3 * heads * width, dtype=torch.float64, requires_grad=True)
        slope = torch.randn(images * tokens, heads * width, dtype=torch.float64)
        mixed = F.scaled_dot_product_attention(*fused_ops.split_heads(qkv, images, heads))
        (mixed.transpose(1, 2).reshape(slope.shape) * slope).sum().backward()
        found, sums = fused_ops.attend_backward(qkv.detach().float(), slope.float(), images, heads)
        torch.testing.assert_close(found.double(), qkv.grad, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(sums.sum(0).double(), qkv.grad.sum(0), atol=1e-4, rtol=1e-4)


def test_attentions_kernel_is_taken_for_few_tokens_in_half_precision_on_a_gpu(monkeypatch):
    def takes(dtype=torch.bfloat16, device="cuda", **changes):
        model = ViT(ViTConfig(**{**SMALL, **changes}))
        return training_forward.takes_kernel(model, torch.device(device), dtype)

    monkeypatch.setattr(fused_ops, "TRITON", True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not takes()  # its matrix units have no bf16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert takes()
    assert takes(rope="dinov3", width=96)
    assert takes(heads=1, width=128)
    assert not takes(rope="dinov3", heads=1, width=256)  # four halves do not fit into a multiprocessor
    assert not takes(torch.float32)  # Triton would multiply with fewer digits
    assert not takes(device="cpu")
    assert not takes(image_size=32)  # 65 tokens
    assert not takes(qk_norm=True)
    assert not takes(attention_dropout=0.1)
    assert not takes(rope="axial")
    assert not takes(rope="dinov3")  # halves of 8 channels
    assert not takes(width=72)


@pytest.mark.slow
def test_one_compiled_graph_serves_all_blocks(batch, kernel):
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    model = noise(ViT(ViTConfig(**{**SMALL, "depth": 5, "pool": "mean", "stochastic_depth": 0.3})))
    assert training_forward.shares_graph(model, torch.float32)

    def seeded(in_parts):
        def forward(model, x):
            torch.manual_seed(8)
            return training_logits(model, x, in_parts=in_parts)

        return forward

    same(learned(model.train(), seeded(False), *batch), learned(model, seeded(True), *batch))
    assert counters["stats"]["unique_graphs"] == 3  # embedding, block, head


@pytest.mark.parametrize(
    "unlike", [{"swiglu": True}, {"rope": "axial"}, {"post_norm": True}, {"dropout": 0.1}], ids=str
)
def test_blocks_that_are_not_alike_share_no_graph(unlike):
    assert not training_forward.shares_graph(ViT(ViTConfig(**SMALL, **unlike)), torch.bfloat16)
