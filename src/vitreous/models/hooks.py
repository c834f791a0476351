"""How a forward pass is looked at and stepped into without being rewritten.

The model names its internals where it computes them: `q = see(self, "q", q)`. When nobody watches that is the value
itself. A watcher (`inside.capture`, `inside.intervene`) may keep it or hand back another. Who watches is a context
variable, not a part of the model: threads do not see each other's watchers, and nothing stays behind in the module.
Those who change come before those who record, so that a record shows what happened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Watcher(Protocol):
    """Looks at one model's internals while it is in place."""

    records: bool
    """Whether it only records: recorders see what the others have changed."""

    def see(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        """Called with each named value; what it returns goes on through the network."""
        ...

    def opens(self, module: nn.Module) -> bool:
        """Whether it changes this module's scores or attention, so that the fused kernel has to be left."""
        ...

    def beside(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        """Called where the fused kernel stays: whoever wants the matrix works it out beside it."""
        ...


WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("WATCHERS", default=())


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Put a watcher in place for this thread, and take that very one away again, whatever happens meanwhile."""
    present = WATCHERS.get()
    changing = tuple(w for w in present if not w.records)
    recording = tuple(w for w in present if w.records)
    WATCHERS.set((*changing, *recording, watcher) if watcher.records else (*changing, watcher, *recording))
    try:
        yield
    finally:
        WATCHERS.set(tuple(w for w in WATCHERS.get() if w is not watcher))


def see(module: nn.Module, name: str, value: Tensor) -> Tensor:
    """Show `value` to whoever watches this module."""
    if torch.compiler.is_compiling():  # a compiled graph has no one to call
        return value
    for watcher in WATCHERS.get():
        value = watcher.see(module, name, value)
    return value


def attend(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> Tensor | None:
    """Attention with its matrix in the open, where a watcher changes it: `[b h t k]`; None leaves it to the kernel."""
    if torch.compiler.is_compiling() or not (watchers := WATCHERS.get()):
        return None
    if not any(watcher.opens(module) for watcher in watchers):
        for watcher in watchers:
            watcher.beside(module, q, k, mask)
        return None
    scores = see(module, "scores", masked(scaled(q) @ k.transpose(-2, -1), mask))
    attention = scores.softmax(dim=-1).nan_to_num()  # a row that may look nowhere gathers nothing
    return F.dropout(see(module, "attention", attention), dropout, training=dropout > 0) @ v


def scaled(q: Tensor) -> Tensor:
    """Queries divided by √k, as the softmax wants them."""
    return q * q.shape[-1] ** -0.5


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores `[b h q t]` with a mask that broadcasts to them: where it is False nothing is seen, numbers are added."""
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
