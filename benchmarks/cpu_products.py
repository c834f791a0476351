"""Time a ViT's products on a CPU by torch's own library (MKL) and by oneDNN, in turn, alone and in a fine-tuning step.

    python benchmarks/cpu_products.py

MKL has no AVX-512 code for processors that are not Intel's; oneDNN has. Weights are not packed here, as they change in
every step. The step is of the packaged ViT-Ti/16, batch 16, without the optimiser.
"""

import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from vitreous.models.last_block import logits_only
from vitreous.runtime.device import cpu_name
from vitreous.training.policies import apply_policy

SHAPES = ((1576, 576, 192), (1576, 768, 192), (1576, 192, 768), (1576, 3072, 768))  # rows, outputs, inputs


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x Wᵀ + b` by oneDNN."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], None)
    return result


class OneDnnLinear(torch.autograd.Function):
    """A linear layer whose three products, forward and backward, are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        dy, rows = gradients[0].flatten(0, -2), x.flatten(0, -2)
        wanted = ctx.needs_input_grad
        dx = product(dy, weight.t()).view_as(x) if wanted[0] else None
        return dx, product(dy.t(), rows.t()) if wanted[1] else None, dy.sum(0) if wanted[2] else None


def in_turn(first: Any, second: Any, rounds: int) -> tuple[float, float]:
    """Return the median seconds of two functions that are called in turn, the first two rounds left out."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 2):
        for function, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])


def main() -> None:
    print(f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for rows, outputs, inputs in SHAPES:
        x, weight, dy = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        pairs = {
            "forward": (lambda: F.linear(x, weight), lambda: product(x, weight)),  # noqa: B023
            "to inputs": (lambda: dy @ weight, lambda: product(dy, weight.t())),  # noqa: B023
            "to weights": (lambda: dy.t() @ x, lambda: product(dy.t(), x.t())),  # noqa: B023
        }
        for name, (mkl, onednn) in pairs.items():
            a, b = in_turn(mkl, onednn, 30)
            work = 2e-9 * rows * outputs * inputs
            shape, speeds = f"{rows} x {outputs} x {inputs}", f"MKL {work / a:4.0f}  oneDNN {work / b:4.0f} GFLOP/s"
            print(f"{shape}, {name:10}  {speeds}  {a / b:.2f}")
    plain = nn.Linear.forward
    for policy in ("head", "attention", "full"):
        torch.manual_seed(0)
        model = vitreous.load(classes=5).train()
        apply_policy(model, policy)
        x, y = torch.randn(16, 3, 224, 224), torch.randint(0, 5, (16,))
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients: dict[Any, Tensor] = {}

        def step(forward: Any) -> None:
            nn.Linear.forward = forward
            for parameter in learned:  # noqa: B023
                parameter.grad = None
            F.cross_entropy(logits_only(model, x), y).backward()  # noqa: B023
            gradients[forward] = torch.cat([p.grad.flatten() for p in learned])  # noqa: B023

        def by_onednn(self: nn.Linear, x: Tensor) -> Tensor:
            return OneDnnLinear.apply(x, self.weight, self.bias)

        try:
            a, b = in_turn(lambda: step(plain), lambda: step(by_onednn), 9)
        finally:
            nn.Linear.forward = plain
        distance = (gradients[plain] - gradients[by_onednn]).norm() / gradients[plain].norm()
        times = f"MKL {a * 1e3:.0f}  oneDNN {b * 1e3:.0f} ms  {a / b:.2f}"
        print(f"a step, {policy:9}  {times}  (gradients differ by {distance:.1e})")


if __name__ == "__main__":
    main()
