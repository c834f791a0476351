"""Pruned gradients: gradient × token, with the backward paths left out that make parts not add up.

Ali et al. (2022), "XAI for Transformers: Better Explanations through Conservative Propagation", and Mehri et al.
(2025), "LibraGrad": attention weights, the deviation of a layer norm and the gate of an activation are taken as
constants. The network is then linear in its tokens, so that what each token adds to the logit is its gradient times
itself. The forward pass does not change.

Shapes:  b images · t tokens · d width
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.capture import underneath
from vitreous.inside.gradients import Target, class_score, differentiable
from vitreous.models.hooks import Hook, Turn, activate
from vitreous.models.vit import MLP, ViT


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

    What a dense head has read of earlier blocks counts there, too.
    """
    plain, _ = underneath(model)
    passed = _Passed(plain)
    with differentiable(x) as x, activate(passed), activate(_Pruning(plain, passed)):
        score = class_score(model(x), target)
        values = [*passed.inputs, *passed.read]
        gradients = torch.autograd.grad(score, values, materialize_grads=True)
    parts = [(value.detach() * slope).sum(dim=-1) for value, slope in zip(values, gradients, strict=True)]
    found, read = torch.stack(parts[: len(passed.inputs)]), parts[len(passed.inputs) :]
    for number, part in zip(plain.config.dense_blocks, read, strict=True):  # [b rows columns] each
        found[number + 2 :] += F.pad(part.flatten(1), (plain.layout.prefix, 0))
    return found


class _Passed(Hook):
    """The hook that keeps the values which the blocks pass on, as they are after any intervention."""

    turn = Turn.RECORD

    def __init__(self, model: ViT) -> None:
        self.blocks = {id(block) for block in model.blocks}
        self.dense = {id(part) for part in model.head.modules() if isinstance(part, nn.LayerNorm)}
        self.inputs: list[Tensor] = []  # of the blocks, [b t d] each
        self.read: list[Tensor] = []  # by a dense head, [b rows columns d] each
        self.last: Tensor | None = None  # the value before the next norm, or the next MLP

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        if id(module) in self.blocks:
            if name == "input":
                self.inputs.append(value)
            self.last = value
        elif id(module) in self.dense and name == "norm_input":
            self.read.append(value)
        return value


class _Pruning(Hook):
    """The hook that makes attention weights, deviations and gates constants."""

    turn = Turn.ANEW

    def __init__(self, model: ViT, passed: _Passed) -> None:
        self.model: ViT = model
        self.passed = passed
        self.blocks: dict[int, Any] = {id(block): block for block in model.blocks}
        self.inside = {id(part) for block in model.blocks for part in (block.attn, block.mlp)}
        self.dense = {id(part) for part in model.head.modules()} if model.config.dense != "none" else set()
        self.read = torch.empty(0)

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        last = self.passed.last
        if (block := self.blocks.get(id(module))) is not None:  # norms after a branch keep their gradients
            if last is None or name not in ("norm1", "norm2") or block.post_norm or block.residual_norm:
                return value
            return pruned_norm(getattr(block, name), last)
        if id(module) in self.inside:
            if name in ("q", "k"):
                return value.detach()  # attention weights are constants, and the fused kernel stays
            return self.gated(module, value) if name == "mlp_hidden" else value
        if module is self.model and name == "tokens" and last is not None:
            return value if isinstance(self.model.norm, nn.Identity) else pruned_norm(self.model.norm, last)
        if id(module) in self.dense:  # its norms and activations name what they read first
            if name in ("norm_input", "gate_input"):
                self.read = value
            elif name == "gate":
                return pruned_gate(self.read, value)
            else:
                return pruned_norm(module, self.read)
        return value

    def gated(self, mlp: nn.Module, value: Tensor) -> Tensor:
        """Compute the activation of an MLP for pruned gradients: its gate is a constant."""
        assert isinstance(mlp, MLP)
        last = self.passed.last
        assert last is not None
        hidden: Tensor = mlp.fc1(last)
        return pruned_gate(hidden.chunk(2, dim=-1)[1] if mlp.swiglu else hidden, value)


def pruned_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """Compute a layer norm, a root mean square norm or a group norm `[b c H W]`, whose divisor has no gradient."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm)
    grouped = isinstance(norm, nn.GroupNorm)
    parts = x.unflatten(1, (norm.num_groups, -1)) if isinstance(norm, nn.GroupNorm) else x
    over = (2, 3, 4) if grouped else (-1,)
    parts = parts if isinstance(norm, nn.RMSNorm) else parts - parts.mean(dim=over, keepdim=True)
    parts = parts / (parts.square().mean(dim=over, keepdim=True) + (norm.eps or 0.0)).sqrt().detach()
    result = parts.flatten(1, 2) if grouped else parts
    shape = (-1, 1, 1) if grouped else (-1,)
    result = result if norm.weight is None else result * norm.weight.view(shape)
    return result if isinstance(norm, nn.RMSNorm) or norm.bias is None else result + norm.bias.view(shape)


def pruned_gate(hidden: Tensor, value: Tensor) -> Tensor:
    """Compute an activation for pruned gradients: its input times a gate without gradient, GELU(h) = h · Φ(h)."""
    gate = torch.where(hidden.abs() > 1e-6, value / torch.where(hidden == 0, 1.0, hidden), 0.5)
    return hidden * gate.detach()
