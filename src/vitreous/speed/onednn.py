"""oneDNN's fp32 products on a CPU: linear layers in inference and training, with packed weights, and attention.

torch gives fp32 products to MKL, which has AVX-512 code for Intel's processors alone. On others with AVX-512 oneDNN is
up to twice as fast (results/speed.md), so `onednn_products` and `fused_attention` are for those; elsewhere nothing
changes. Which library multiplies follows from the processor, not from a measurement: a timing may fall either way from
one start to the next, and a resumed run must go on with the same bits.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from vitreous.runtime.device import cpu_multiplies, cpu_vendor

LARGE = 8_000_000
"""Multiplications of a product from which oneDNN is faster: below, the longer call costs more than it saves."""
TOKENS = range(64, 2049)
"""Tokens of an image for which `fused_attention` is faster: with more, the scores of a head do not fit into a cache."""
COMPILING = Lock()
"""Held while attention is compiled, since the fuser is switched on for the whole process."""


def onednn_available(dtype: torch.dtype = torch.float32) -> bool:
    """Return whether this torch has oneDNN and its fused linear layers, and this CPU the instructions for `dtype`."""
    operations = torch.ops.mkldnn
    wanted = ("_linear_pointwise", "_reorder_linear_weight")
    built = torch.backends.mkldnn.is_available() and all(hasattr(operations, name) for name in wanted)
    return built and cpu_multiplies(dtype)


@cache
def onednn_ahead() -> bool:
    """Return whether oneDNN's fp32 products are faster than torch's own: AMD's processors with AVX-512."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512") and torch.backends.mkl.is_available()
    return wide and cpu_vendor() == "AuthenticAMD" and onednn_available()


# --- linear layers ----------------------------------------------------------------------------------------------------


class PackedLinear:
    """A linear layer whose weight is packed for oneDNN, for a number of rows at once."""

    def __init__(self, layer: nn.Linear, rows: int) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        self.bias = layer.bias.detach()

    def __call__(self, x: Tensor, then: str = "none", kind: str | None = None) -> Tensor:
        """Compute `x Wᵀ + b` by oneDNN with packed weights, and with `then="gelu"` its GELU.

        `kind` is that of the GELU: "none" is exact, or "tanh".
        """
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, then, [], kind)
        return result

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Compute `residual + x Wᵀ + b` with a packed weight, fused."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return result


def onednn_products(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which fp32 linear layers run by oneDNN, gradients included, if it is faster on this device.

    Compiled code keeps torch's products.

    >>> layer, x = nn.Linear(192, 192), torch.randn(256, 192)
    >>> with onednn_products(x.device):
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x), atol=1e-5)
    True
    """
    if torch.compiler.is_compiling() or device.type != "cpu" or not onednn_ahead():
        return nullcontext()
    return OneDnnProducts()


class OneDnnProducts(TorchFunctionMode):
    """A context of this thread in which every large fp32 linear layer on the CPU is computed by oneDNN."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and not kwargs and _suits(*args):
            return _linear(*args)
        return func(*args, **(kwargs or {}))


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether oneDNN may compute a linear layer: plain fp32 tensors on the CPU, large enough."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or x.device.type != "cpu" or x.dim() < 2:
        return False
    if bias is not None and (bias.dtype != torch.float32 or bias.dim() != 1 or not bias.is_contiguous()):
        return False  # oneDNN would read other numbers
    plain = type(x) is Tensor and type(weight) in (Tensor, nn.Parameter)
    return plain and x.numel() * len(weight) >= LARGE and not torch.is_autocast_enabled("cpu")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a linear layer by oneDNN, with gradients if one is wanted."""
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, weight, bias)):
        result: Tensor = _Linear.apply(x, weight, bias)
        return result
    return _product(x, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x Wᵀ + b` by oneDNN, the weight not packed."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], None)
    return result


class _Linear(torch.autograd.Function):
    """Compute a linear layer whose three products, one forward and two backward, are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        dx = _product(dy, weight.t()) if wants_x else None
        dy, rows = dy.flatten(0, -2), x.flatten(0, -2)  # [r m], [r d]
        return dx, _product(dy.t(), rows.t()) if wants_weight else None, dy.sum(0) if wants_bias else None


# --- attention --------------------------------------------------------------------------------------------------------


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute `softmax(q kᵀ / √k) v` without gradients, by oneDNN's fused kernel where it is faster: three `[b h t k]`.

    torch's own kernel multiplies small tiles with MKL. oneDNN's keeps the scores of one head in the cache; the only way
    to it from Python is the fuser of TorchScript, which is compiled once for each shape, in some milliseconds.
    """
    if q.dtype != torch.float32 or q.shape[2] not in TOKENS or not onednn_ahead():
        return F.scaled_dot_product_attention(q, k, v)
    layouts = tuple((tuple(each.shape), each.stride()) for each in (q, k, v))
    with COMPILING:
        attention = _compiled_attention(layouts, torch.get_num_threads())
    return attention(q, k, v)


@lru_cache(maxsize=32)
@torch.no_grad()
def _compiled_attention(layouts: tuple[Any, ...], threads: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Compile oneDNN's attention for inputs of these shapes and strides; return torch's kernel if that fails."""
    if not hasattr(torch.jit, "enable_onednn_fusion"):  # TorchScript is deprecated
        return F.scaled_dot_product_attention
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.empty_strided(*layout).normal_(generator=random) for layout in layouts)
    scale, before = q.shape[-1] ** -0.5, torch.jit.onednn_fusion_enabled()

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * scale, -1), v)

    expected = F.scaled_dot_product_attention(q, k, v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated
        try:
            torch.jit.enable_onednn_fusion(True)
            traced: Any = torch.jit.trace(attention, (q, k, v), check_trace=False)
            results = [traced(q, k, v) for _ in range(3)]  # the first is profiled, the second compiled
        except RuntimeError:
            return F.scaled_dot_product_attention
        finally:
            torch.jit.enable_onednn_fusion(before)
    return traced if torch.allclose(results[-1], expected, atol=1e-5) else F.scaled_dot_product_attention
