"""Time a ViT's products on a CPU by torch's own library (MKL) and by oneDNN, in turn: alone, in `--fast`, in training.

    python benchmarks/cpu_products.py

MKL has no AVX-512 code for processors that are not Intel's; oneDNN has (`speed/onednn.py`). Products alone are not
packed, as weights change in every step. The training steps are fine-tuning without the optimiser. `--fast` beside
OpenVINO is `vitreous benchmark --models vit_tiny_patch16_224 --modes compiled --against openvino`.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import vitreous
from vitreous.benchmarking.contenders import random_model
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.runtime.device import cpu_name
from vitreous.runtime.memory import keep_freed_memory
from vitreous.speed import onednn
from vitreous.speed.fused_forward import packed_forward
from vitreous.speed.fused_ops import split_heads
from vitreous.speed.weight_folding import fold
from vitreous.training.model import choose_forward
from vitreous.training.policies import apply_policy

SHAPES = ((1576, 576, 192), (1576, 768, 192), (1576, 192, 768), (1576, 3072, 768))  # rows, outputs, inputs
ATTENTION = ((8, 197, 3, 64), (1, 197, 3, 64), (8, 50, 12, 64), (8, 197, 12, 64), (1, 1025, 12, 64), (1, 3137, 3, 64))
FAST = (("vit_tiny_patch16_224", 8), ("vit_tiny_patch16_224", 1), ("vit_small_patch16_224", 8))
CPU = torch.device("cpu")


def in_turn(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float, str]:
    """Return the median milliseconds of two functions called in turn, and a text with their ratio's quartiles."""
    times: list[list[float]] = [[], []]
    for number in range(rounds + 2):
        for function, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            if number > 1:  # the first two rounds are left out
                taken.append(1e3 * (time.perf_counter() - start))
    low, middle, high = statistics.quantiles([a / b for a, b in zip(*times, strict=True)], n=4)
    return statistics.median(times[0]), statistics.median(times[1]), f"{middle:.2f} ({low:.2f} to {high:.2f})"


def with_onednn(used: bool, function: Callable[[], object]) -> Callable[[], object]:
    """Return a function that runs with or without oneDNN, whatever the processor."""

    def run() -> object:
        onednn.onednn_ahead = lambda: used
        return function()

    return run


def time_products() -> None:
    """Time the three products of linear layers: forward, and the gradients to inputs and to weights."""
    for rows, outputs, inputs in SHAPES:
        x, weight, dy = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        pairs = {"forward": (x, weight), "to inputs": (dy, weight.t()), "to weights": (dy.t(), x.t())}
        for name, (left, right) in pairs.items():
            a, b, ratio = in_turn(lambda: F.linear(left, right), lambda: onednn._product(left, right), 30)  # noqa: B023
            work = 2e-6 * rows * outputs * inputs
            shape, speeds = f"{rows} x {outputs} x {inputs}", f"MKL {work / a:4.0f}  oneDNN {work / b:4.0f} GFLOP/s"
            print(f"{shape}, {name:10}  {speeds}  {ratio}", flush=True)


@torch.no_grad()
def time_attention() -> None:
    """Time torch's attention and oneDNN's, from queries, keys and values side by side."""
    onednn.TOKENS = range(2, 10_000)
    for images, tokens, heads, width in ATTENTION:
        q, k, v = split_heads(torch.randn(images * tokens, 3 * heads * width), images, heads)
        fused = with_onednn(True, lambda: onednn.fused_attention(q, k, v))  # noqa: B023
        a, b, ratio = in_turn(lambda: F.scaled_dot_product_attention(q, k, v), fused, 30)  # noqa: B023
        shape = f"{images} images, {tokens} tokens, {heads} heads of {width}"
        print(f"attention, {shape}: torch {a:.2f}  oneDNN {b:.2f} ms  {ratio}", flush=True)
    onednn.TOKENS = range(64, 2049)


@torch.no_grad()
def time_fast() -> None:
    """Time the forward pass of `--fast` with torch's products where they were before, and with oneDNN's."""
    for name, images in FAST:
        model = random_model(variant(name))
        compute, x = packed_forward(fold(model), images), torch.randn(images, 3, *model.config.size)
        assert torch.allclose(with_onednn(True, lambda: compute(x))(), model(x), atol=1e-4)  # noqa: B023
        pair = [with_onednn(used, lambda: compute(x)) for used in (False, True)]  # noqa: B023
        a, b, ratio = in_turn(*pair, 100 // images)
        print(f"--fast, {name}, batch {images}: torch {a:.1f}  oneDNN {b:.1f} ms  {ratio}", flush=True)


def time_steps() -> None:
    """Time fine-tuning steps by policy, and the small network that learns the digits from scratch."""
    tiny = variant("vit_pico_patch2_8", classes=10)
    cases: list[tuple[str, ViT, str, Tensor]] = [
        (f"ViT-Ti/16, batch 16, {policy}", vitreous.load(classes=5), policy, torch.randn(16, 3, 224, 224))
        for policy in ("head", "attention", "full")
    ]
    cases.append(("digits, batch 64", ViT(tiny), "full", torch.randn(64, tiny.channels, *tiny.size)))
    for name, model, policy, x in cases:
        apply_policy(model.train(), policy)
        forward, y = choose_forward(model, CPU), torch.arange(len(x)) % 5
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def gradients() -> Tensor:
            loss = F.cross_entropy(forward(model, x), y)  # noqa: B023
            return torch.cat([each.flatten() for each in torch.autograd.grad(loss, learned)])  # noqa: B023

        pair = [with_onednn(used, gradients) for used in (False, True)]
        plain, fast = (function() for function in pair)
        a, b, ratio = in_turn(*pair, 9 if len(x) == 16 else 100)
        distance = (fast - plain).norm() / plain.norm()
        print(f"a step, {name}: MKL {a:.1f}  oneDNN {b:.1f} ms  {ratio}, gradients {distance:.1e} apart", flush=True)


def main() -> None:
    keep_freed_memory()  # as `train` and `--fast` do
    print(f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    time_products()
    time_attention()
    time_fast()
    time_steps()


if __name__ == "__main__":
    main()
