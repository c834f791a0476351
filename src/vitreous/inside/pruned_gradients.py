"""Pruned gradients: gradient × token, with the backward paths left out that make parts not add up.

Ali et al. (2022), "XAI for Transformers: Better Explanations through Conservative Propagation", and Mehri et al.
(2025), "LibraGrad": attention weights, the deviation of a layer norm and the gate of an activation are taken as
constants. The network is then linear in its tokens, so that what each token adds to the logit is its gradient times
itself. The forward pass does not change.

Shapes:  b images · t tokens · d width
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitreous.inside.capture import underneath
from vitreous.inside.gradients import Target, class_score, differentiable
from vitreous.models.hooks import Hook, activate
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
    """Compute gradient × token of the tokens that enter each block: images `[b c H W]` → `[layers b t]`."""
    plain, _ = underneath(model)
    passed = _Passed(plain)
    with differentiable(x) as x, activate(passed), activate(_Pruning(plain, passed)):
        score = class_score(model(x), target)
        gradients = torch.autograd.grad(score, passed.inputs)
    parts = [(value.detach() * slope).sum(dim=-1) for value, slope in zip(passed.inputs, gradients, strict=True)]
    return torch.stack(parts)


class _Passed(Hook):
    """The hook that keeps the values which the blocks pass on, as they are after any intervention."""

    records = True

    def __init__(self, model: ViT) -> None:
        self.blocks = {id(block) for block in model.blocks}
        self.inputs: list[Tensor] = []  # of the blocks, [b t d] each
        self.last: Tensor | None = None  # the value before the next norm, or the next MLP

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        if id(module) in self.blocks:
            if name == "input":
                self.inputs.append(value)
            self.last = value
        return value


class _Pruning(Hook):
    """The hook that makes attention weights, deviations and gates constants."""

    recomputes = True

    def __init__(self, model: ViT, passed: _Passed) -> None:
        self.model, self.passed = model, passed
        self.blocks: dict[int, Any] = {id(block): block for block in model.blocks}
        self.inside = {id(part) for block in model.blocks for part in (block.attn, block.mlp)}

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        if (block := self.blocks.get(id(module))) is not None:  # norms after a branch keep their gradients
            return self.normed(getattr(block, name)) if name in ("norm1", "norm2") and not block.post_norm else value
        if id(module) in self.inside:
            if name in ("q", "k"):
                return value.detach()  # attention weights are constants, and the fused kernel stays
            return self.gated(module, value) if name == "mlp_hidden" else value
        if module is self.model and name == "tokens" and not isinstance(self.model.norm, nn.Identity):
            return self.normed(self.model.norm)
        return value

    def normed(self, norm: nn.Module) -> Tensor:
        """A layer norm, or a root mean square norm, whose divisor is a constant."""
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        last = self.passed.last
        assert last is not None
        shifted = last - last.mean(dim=-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else last
        result = shifted / (shifted.square().mean(dim=-1, keepdim=True) + (norm.eps or 0.0)).sqrt().detach()
        result = result if norm.weight is None else result * norm.weight
        return result + norm.bias if isinstance(norm, nn.LayerNorm) and norm.bias is not None else result

    def gated(self, mlp: nn.Module, value: Tensor) -> Tensor:
        """An activation as a constant gate times its input: GELU(h) = h · Φ(h)."""
        assert isinstance(mlp, MLP)
        last = self.passed.last
        assert last is not None
        hidden: Tensor = mlp.fc1(last)
        if mlp.swiglu:
            hidden = hidden.chunk(2, dim=-1)[1]
        gate = torch.where(hidden.abs() > 1e-6, value / torch.where(hidden == 0, 1.0, hidden), 0.5)
        return hidden * gate.detach()
