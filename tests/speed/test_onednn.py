"""oneDNN's linear layers and attention give what torch's give, where they are faster; elsewhere nothing changes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous.speed import onednn
from vitreous.speed.fused_ops import split_heads
from vitreous.speed.onednn import fused_attention, onednn_ahead, onednn_available, onednn_products

pytestmark = pytest.mark.skipif(not onednn_available(), reason="this torch has no oneDNN")
CPU = torch.device("cpu")


@pytest.fixture
def calls(monkeypatch):
    """Have oneDNN multiply whatever the processor, and list the shapes of its products."""
    shapes, real = [], onednn._product
    monkeypatch.setattr(onednn, "onednn_ahead", lambda: True)
    monkeypatch.setattr(onednn, "_product", lambda x, *rest: (shapes.append(tuple(x.shape)), real(x, *rest))[1])
    onednn._compiled_attention.cache_clear()
    yield shapes
    onednn._compiled_attention.cache_clear()


@pytest.mark.parametrize(
    ("vendor", "capability", "ahead"),
    [("AuthenticAMD", "AVX512", True), ("AuthenticAMD", "AVX2", False), ("GenuineIntel", "AVX512", False)],
)
def test_amds_processors_with_avx512_multiply_by_onednn(monkeypatch, vendor, capability, ahead):
    monkeypatch.setattr(onednn, "cpu_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert onednn_ahead.__wrapped__() is ahead


def test_elsewhere_nothing_changes(monkeypatch):
    monkeypatch.setattr(onednn, "onednn_ahead", lambda: False)
    x, layer, qkv = torch.randn(300, 192), nn.Linear(192, 192), torch.randn(80, 96)
    with onednn_products(CPU):
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    q, k, v = split_heads(qkv, 1, 2)
    assert torch.equal(fused_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(300, 192), (3, 100, 192)])
@pytest.mark.parametrize("learns", ["all", "weights", "input", "none"])
def test_results_and_gradients_are_those_of_double_precision(calls, bias, shape, learns):
    torch.manual_seed(0)
    layer, x, dy = nn.Linear(192, 160, bias=bias), torch.randn(shape), torch.randn(*shape[:-1], 160)
    exact, wide = nn.Linear(192, 160, bias=bias, dtype=torch.float64), x.double()
    exact.load_state_dict(layer.state_dict())
    layer.requires_grad_(learns in ("all", "weights"))
    x.requires_grad_(learns in ("all", "input"))
    wide.requires_grad_()
    with onednn_products(CPU):
        y = layer(x)
    expected = exact(wide)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    assert y.requires_grad is (learns != "none")
    if learns != "none":
        y.backward(dy)
        expected.backward(dy.double())
    assert len(calls) == {"all": 3, "weights": 2, "input": 2, "none": 1}[learns]  # no gradient that nobody wants
    pairs = [(x, wide), *zip(layer.parameters(), exact.parameters(), strict=True)]
    for ours, theirs in pairs:
        if ours.requires_grad:
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-4)


def test_only_large_products_of_fp32_are_onednns(calls):
    layer = nn.Linear(192, 192)
    with onednn_products(CPU):
        assert torch.equal(layer(torch.ones(2, 192)), F.linear(torch.ones(2, 192), layer.weight, layer.bias))
        nn.Linear(192, 192, dtype=torch.float64)(torch.randn(300, 192, dtype=torch.float64))
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(torch.randn(300, 192)).dtype == torch.bfloat16
        for bias in (torch.randn(192, 3)[:, 0], torch.randn(1).expand(192)):  # oneDNN would read other numbers
            x = torch.randn(300, 192)
            assert torch.allclose(F.linear(x, layer.weight, bias), x @ layer.weight.T + bias, atol=1e-5)
        assert calls == []
        layer(torch.randn(300, 192))
        assert calls == [(300, 192)]
    layer(torch.randn(300, 192))
    assert len(calls) == 1  # outside the context, torch's
    with onednn_products(torch.device("meta")):
        layer(torch.randn(300, 192))
    assert len(calls) == 1


def test_compiled_code_keeps_torchs_products(calls):
    layer, x = nn.Linear(192, 192), torch.randn(300, 192)

    def step(x):
        with onednn_products(x.device):
            return layer(x)

    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(x), layer(x))
    assert calls == []


def attention_input(images=2, tokens=100, heads=3, seed=0):
    qkv = torch.randn(images * tokens, 3 * heads * 32, generator=torch.Generator().manual_seed(seed))
    return split_heads(qkv, images, heads)


@torch.no_grad()
def test_attention_is_torchs_and_its_products_are_onednns(calls):
    q, k, v = attention_input()
    expected = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(fused_attention(q, k, v), expected, rtol=1e-5, atol=1e-6)
    layouts = tuple((tuple(each.shape), each.stride()) for each in (q, k, v))
    kernel = onednn._compiled_attention(layouts, torch.get_num_threads())
    assert onednn._compiled_attention.cache_info().misses == 1  # compiled once
    assert "oneDNNFusionGroup" in str(kernel.graph_for(q, k, v))
    for few in (attention_input(tokens=20), [each.bfloat16() for each in (q, k, v)]):
        assert torch.equal(fused_attention(*few), F.scaled_dot_product_attention(*few))
    assert onednn._compiled_attention.cache_info().misses == 1


@torch.no_grad()
def test_threads_that_share_attention_get_their_own_results(calls):
    inputs = [attention_input(seed=seed) for seed in range(8)]

    def compute(given):
        torch.set_num_threads(1)
        return fused_attention(*given)

    with ThreadPoolExecutor(2) as pool:
        for given, result in zip(inputs, pool.map(compute, inputs), strict=True):
            torch.testing.assert_close(result, F.scaled_dot_product_attention(*given), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_compiling_attention_leaves_randomness_and_the_fuser_as_they_were(calls):
    before, fuser = torch.get_rng_state(), torch.jit.onednn_fusion_enabled()
    fused_attention(*attention_input())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.jit.onednn_fusion_enabled() is fuser


def failing(*_, **__):
    raise RuntimeError("no TorchScript here")


@pytest.mark.parametrize("trace", [failing, lambda attention, *_, **__: lambda q, k, v: attention(q, k, v) + 1])
@torch.no_grad()
def test_attention_that_cannot_be_compiled_is_torchs(calls, monkeypatch, trace):
    monkeypatch.setattr(torch.jit, "trace", trace)
    q, k, v = attention_input()
    assert torch.equal(fused_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
