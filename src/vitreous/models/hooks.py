"""Hooks, by which `capture` and `intervene` read or replace internals; attention as an explicit matrix for them.

The model names its internals where it computes them: `q = hook(self, "q", q)`. Without an active hook that returns the
value itself. An active `Hook` (`inside.capture`, `inside.intervene`) may record the value or return another. Active
hooks are kept in a context variable, not in the model: threads do not share them, and nothing remains in the module.
Hooks act in turns (`Turn`), whichever was activated first: no change is lost, and a recording shows what the network
computed with.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Turn(IntEnum):
    """When a hook gets a value, among the hooks that are active."""

    UNCHANGED = 0
    """First: it sees the value as the network computed it, and changes nothing."""
    CHANGE = 1
    RECORD = 2
    """Last: it sees the value that continues through the network, and changes nothing."""


class Hook:
    """Base of hooks, called with the named internals of every model that runs while it is active; does nothing."""

    turn = Turn.CHANGE
    model: nn.Module | None = None
    """The model whose internals it records or changes, and not those of a copy; None: of whichever model runs."""

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        """Take a named value of a module; the returned tensor continues through the network."""
        return value

    def changes_attention(self, module: nn.Module) -> bool:
        """Return whether a hook changes a module's scores or attention, so that the fused kernel cannot be used."""
        return False

    def on_attention(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        """Let a hook take queries and keys where the fused kernel runs: the attention matrix follows from them."""


HOOKS: ContextVar[tuple[Hook, ...]] = ContextVar("HOOKS", default=())


@contextmanager
def activate(added: Hook) -> Iterator[None]:
    """Activate a hook for this thread, and remove that same hook at the end, whichever others were added meanwhile."""
    HOOKS.set(tuple(sorted((*HOOKS.get(), added), key=lambda each: each.turn)))
    try:
        yield
    finally:
        HOOKS.set(tuple(each for each in HOOKS.get() if each is not added))


def hooks_active() -> bool:
    """Return whether a hook is active, which needs the whole network to run. Compiled graphs call no hooks."""
    return not torch.compiler.is_compiling() and bool(HOOKS.get())


def hooks_act_on(model: nn.Module) -> bool:
    """Return whether an active hook is bound to this model, or to another that shares modules with it."""
    bound = [each.model for each in HOOKS.get() if each.model is not None]
    return bool(bound) and not set(model.modules()).isdisjoint(module for each in bound for module in each.modules())


def check_no_copy(model: nn.Module, instead: str) -> None:
    """Raise if hooks act on a model of which a copy is about to run, since they would have no effect there."""
    if hooks_act_on(model):
        raise ValueError(f"capture and intervene act on this model, and this would run a copy of it: {instead}")


def hook(module: nn.Module, name: str, value: Tensor) -> Tensor:
    """Pass a named value of a module through the active hooks."""
    if torch.compiler.is_compiling():
        return value
    for each in HOOKS.get():
        value = each.on_value(module, name, value)
    return value


def hooked_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> Tensor | None:
    """Compute attention by an explicit matrix where a hook changes it, `[b h t k]`; None: the fused kernel does it."""
    if torch.compiler.is_compiling() or not (hooks := HOOKS.get()):
        return None
    if not any(each.changes_attention(module) for each in hooks):
        for each in hooks:
            each.on_attention(module, q, k, mask)
        return None
    scores = hook(module, "scores", masked(scaled(q) @ k.transpose(-2, -1), mask))
    attention = scores.softmax(dim=-1).nan_to_num()  # a row whose columns are all masked gives zeros
    return F.dropout(hook(module, "attention", attention), dropout, training=dropout > 0) @ v


def scaled(q: Tensor) -> Tensor:
    """Divide queries by √k, where a hook needs the attention scores."""
    result: Tensor = q * q.shape[-1] ** -0.5
    return result


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a mask to scores `[b h q t]` that a hook needs: False forbids attention, numbers are added."""
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
