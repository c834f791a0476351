"""Which backends are tried, and what they need."""

import pytest
import torch
from optimized_models import close, small

from vitreous.speed import backends
from vitreous.speed.optimize import optimize
from vitreous.speed.weight_folding import fold


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small()


@pytest.mark.cuda
def test_a_kernel_for_few_tokens_gives_the_models_logits_in_bf16_and_is_left_out_elsewhere(model):
    x = torch.randn(2, 3, 16, 16)
    fast = optimize(model, "bf16", batch_size=2, backends=("small-batch graph",), device="cuda")
    assert (fast.backend, fast.notes) == ("small-batch graph", [])
    with torch.no_grad():
        close(fast(x), model(x), 0.05)
    assert optimize(model, "fp32", batch_size=2, backends=("small-batch graph",), device="cuda").backend == "eager"
    assert optimize(model, "bf16", batch_size=64, backends=("small-batch graph",), device="cuda").backend == "eager"


def test_backends_tried_on_a_gpu_and_what_the_small_batch_one_needs(model, monkeypatch):
    """Without one: what is chosen, not what it computes."""
    cuda = torch.device("cuda")
    assert backends.default_backends(cuda, "fp8") == backends.default_backends(cuda, "int8") == ("compiled graph",)
    assert backends.default_backends(cuda, "bf16")[-1] == "small-batch graph"
    network = fold(model).bfloat16()
    images = torch.zeros(2, 3, 16, 16, dtype=torch.bfloat16)
    monkeypatch.setattr(backends, "has_triton", lambda device: True)
    assert callable(backends.small_batch(network, backends.Forward(), images))
    for given in (images.float(), images.repeat(32, 1, 1, 1)):  # fp32; 64 × 17 tokens
        with pytest.raises(backends.UnsupportedBackend, match="needs bf16"):
            backends.small_batch(network, backends.Forward(), given)
    monkeypatch.setattr(backends, "has_triton", lambda device: False)
    with pytest.raises(backends.UnsupportedBackend, match="Triton"):
        backends.small_batch(network, backends.Forward(), images)


@pytest.mark.parametrize("build", [backends.fused, backends.packed])
def test_backends_with_their_own_forward_need_a_class_token_and_no_merging(build, model):
    images = torch.zeros(2, 3, 16, 16)
    assert callable(build(fold(model), backends.Forward("features"), images))
    for network, forward in ((model, backends.Forward(merge=4)), (small(pool="mean"), backends.Forward())):
        with pytest.raises(backends.UnsupportedBackend, match="class token"):
            build(fold(network), forward, images)
