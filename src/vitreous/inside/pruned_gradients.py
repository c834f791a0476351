"""Pruned gradients: gradient × token, with the backward paths left out that make parts not add up.

Ali et al. (2022), "XAI for Transformers: Better Explanations through Conservative Propagation", and Mehri et al.
(2025), "LibraGrad": attention weights, the divisor of a norm and the gate of an activation are taken as constants. The
network is then linear in its tokens, but for biases, so that what each token adds to the logit is its gradient times
itself. The forward pass does not change, to the bit.

`Pruning` changes the gradients of torch's functions rather than of modules, wherever the network calls them: in blocks,
in a pool and in a head alike. Other threads are not affected.

Shapes:  b images · t tokens · d width
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.inside.capture import capture, underneath
from vitreous.inside.glossary import full_name
from vitreous.inside.gradients import Target, class_score, differentiable
from vitreous.models.hooks import Hook, Turn, activate
from vitreous.models.vit import ViT


def pruned_gradients(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Compute each patch's part in a class's logit by pruned gradients: images `[b c H W]` → `[b rows columns]`.

    Parts of the tokens that enter the blocks, in the mean over blocks.

    >>> from vitreous.models.variants import variant
    >>> pruned_gradients(ViT(variant("vit_femto_patch4_32")), torch.randn(2, 3, 32, 32), target=3).shape
    torch.Size([2, 8, 8])
    """
    parts = token_parts(model, x, target)  # [l b t]
    plain, _ = underneath(model)
    return plain.layout.to_grid(parts.mean(dim=0))


def token_parts(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Compute pruned gradients × tokens, for the tokens that enter each block: images `[b c H W]` → `[layers b t]`.

    What a dense head has read of earlier blocks counts there, too. In each layer the parts of all tokens sum to the
    logit, less the parts of what joins later and is no token: biases, and the class token of CaiT's class attention.
    """
    plain, _ = underneath(model)
    read = _Read(plain)
    with differentiable(x) as x, capture(model, "input", gradients=True) as internals, activate(read):
        with Pruning():
            score = class_score(model(x), target)
        values = [*(internals[full_name("input", layer)] for layer in internals.layers), *read.values]
        gradients = torch.autograd.grad(score, values, materialize_grads=True)
    parts = [(value.detach() * slope).sum(dim=-1) for value, slope in zip(values, gradients, strict=True)]
    depth = plain.config.depth
    found = torch.stack(parts[:depth])
    for number, part in zip(plain.config.dense_blocks, parts[depth:], strict=True):  # [b rows columns] each
        found[number + 2 :] += F.pad(part.flatten(1), (plain.layout.prefix, 0))
    return found


class _Read(Hook):
    """The hook that keeps the tokens which a dense head reads, `[b rows columns d]` each."""

    turn = Turn.RECORD

    def __init__(self, model: ViT) -> None:
        self.model = model
        self.norms = {part for part in model.head.modules() if isinstance(part, nn.LayerNorm)}
        self.values: list[Tensor] = []

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        if name == "norm_input" and module in self.norms:
            self.values.append(value)
        return value


class Pruning(TorchFunctionMode):
    """Prune gradients inside the `with`, in this thread: torch's functions give the same values with other slopes.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> with Pruning():
    ...     y = F.gelu(x)
    >>> (slope,) = torch.autograd.grad(y.sum(), x)
    >>> torch.allclose(slope * x, y)
    True
    """

    activated: Any = None  # what the last activation gave

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.mul and args[0] is self.activated and getattr(args[1], "requires_grad", False):
            return args[0].detach() * args[1]  # SwiGLU: an activation is the gate of what it multiplies
        if (pruned := PRUNED.get(function)) is None:
            return function(*args, **kwargs or {})
        value = pruned(*args, **kwargs or {})
        self.activated = value if function in ACTIVATIONS else None
        return value


def constant(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Compute a function without gradients."""
    return function(*args, **kwargs).detach()


def pruned_attention(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute attention by the fused kernel with weights that have no gradient."""
    return F.scaled_dot_product_attention(q.detach(), k.detach(), v, *args, **kwargs)


def pruned_activation(function: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> Tensor:
    """Compute an activation as its input times a gate without gradient, GELU(h) = h · Φ(h)."""
    safe = torch.where(x.abs() < 1e-6, 1e-6, x).detach()  # the gate at 0 is the slope there
    return _with_slopes_of(x * (function(safe, **kwargs) / safe), function(x, **kwargs))


def pruned_norm(function: Callable[..., Tensor], x: Tensor, shape: Any, **kwargs: Any) -> Tensor:
    """Compute a layer norm, a root mean square norm or a group norm `[b c …]`, whose divisor has no gradient."""
    grouped = function is F.group_norm
    parts = x.unflatten(1, (shape, -1)) if grouped else x
    over = tuple(range(2, parts.ndim)) if grouped else tuple(range(-len(shape), 0))
    parts = parts.to(torch.promote_types(x.dtype, torch.float32))  # squares of half precision may overflow
    if function is not F.rms_norm:
        parts = parts - parts.mean(dim=over, keepdim=True)
    eps = torch.finfo(x.dtype).eps if kwargs["eps"] is None else kwargs["eps"]
    linear = parts * (parts.square().mean(dim=over, keepdim=True) + eps).rsqrt().detach()
    if (weight := kwargs["weight"]) is not None:
        linear = linear.flatten(1, 2) * weight.view(-1, *[1] * (x.ndim - 2)) if grouped else linear * weight
    return _with_slopes_of(linear.view_as(x), function(x, shape, **kwargs))


def pruned_direction(x: Tensor, p: float, dim: int, eps: float, **kwargs: Any) -> Tensor:
    """Compute a vector divided by its length, which has no gradient."""
    divided: Tensor = x / x.norm(p, dim, keepdim=True).clamp_min(eps).detach()
    return divided


def _with_slopes_of(linear: Tensor, value: Tensor) -> Tensor:
    """Return a value with the gradients of another tensor; what is added is 0."""
    linear = linear.to(value.dtype)
    return value.detach() + (linear - linear.detach())


ACTIVATIONS = (F.gelu, F.silu, torch.tanh)  # and F.relu as it is: its slope is its gate
PRUNED: dict[Any, Callable[..., Tensor]] = {
    F.scaled_dot_product_attention: pruned_attention,
    F.normalize: pruned_direction,
    **{each: partial(constant, each) for each in (Tensor.softmax, torch.sigmoid)},  # sigmoid: the gate of quick GELU
    **{each: partial(pruned_activation, each) for each in ACTIVATIONS},
    **{each: partial(pruned_norm, each) for each in (F.layer_norm, F.rms_norm, F.group_norm)},
}
"""torch's functions that are not linear, and what computes them with pruned gradients."""
