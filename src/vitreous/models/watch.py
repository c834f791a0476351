"""How a forward pass is looked at and stepped into without being rewritten.

The model names its internals where it computes them: `q = see(self, "q", q)`. When nobody watches that is the value
itself. A watcher (`inside.capture`, `inside.intervene`) may keep it or hand back another. Who watches is a context
variable, not a part of the model: threads do not see each other's watchers, and nothing stays behind in the module.
"""

from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor, nn


class Watcher(Protocol):
    """Looks at one model's internals while it is in place."""

    def see(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        """Called with each named value; what it returns goes on through the network."""
        ...

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor | None:
        """Attention's result in place of the fused kernel's, or None to leave the kernel to it.

        One that takes over shows its scores and attention to all watchers by `see`.
        """
        ...


WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("WATCHERS", default=())


def see(module: nn.Module, name: str, value: Tensor) -> Tensor:
    """Show `value` to whoever watches this module."""
    if torch.compiler.is_compiling():  # a compiled graph has no one to call
        return value
    for watcher in WATCHERS.get():
        value = watcher.see(module, name, value)
    return value


def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor | None:
    """Ask whether a watcher works out this module's attention itself; usually none does."""
    if torch.compiler.is_compiling():
        return None
    for watcher in WATCHERS.get():
        if (result := watcher.attend(module, q, k, v, mask)) is not None:
            return result
    return None
