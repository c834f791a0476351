"""`capture`: record the internals of a forward pass, attention of the fused kernel too; `Internals`: the result.

    with capture(model, ["attention"], queries=[0]) as internals:
        logits = model(x)
    internals["blocks.11.attention"]      # [b h 1 t]

The forward pass does not change: the fused kernel runs and the logits are bit-equal. Attention is computed in addition,
from queries and keys, only for the requested layers, heads and query rows.
"""

import html
import operator
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import SupportsIndex

import torch
from torch import Tensor, nn

from vitreous.inside.glossary import BLOCK, POOL, WHOLE, full_name
from vitreous.models.hooks import Hook, Turn, activate, masked, scaled
from vitreous.models.vit import ViT
from vitreous.runtime.device import pick_device

DERIVED = ("scores", "attention")
"""Internals computed from q and k in addition to the forward pass, which does not have them."""
HALF = (torch.float16, torch.bfloat16)


class Internals(Mapping[str, Tensor]):
    """Recorded tensors by full name: `internals["blocks.3.attention"]`; printed, a list of names, shapes and types."""

    def __init__(
        self, layers: Sequence[int], heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> None:
        self.layers, self.heads, self.queries = tuple(layers), heads, queries
        self._values: dict[str, Tensor] = {}
        self.weighted: dict[str, Tensor] = {}
        """Attention times values by the full name of `mixed`, if captured: before an intervention changed it."""

    def __repr__(self) -> str:
        if not self._values:
            return "Internals: nothing recorded yet"
        rows = self._rows()
        names, shapes = (max(len(row[i]) for row in rows) for i in (0, 1))
        lines = [f"  {name:<{names}}  {shape:<{shapes}}  {kind}" for name, shape, kind in rows]
        return "\n".join([f"Internals of {len(rows)} tensors:", *lines])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{html.escape(name)}</code></td><td>{shape}</td><td>{kind}</td></tr>"
            for name, shape, kind in self._rows()
        )
        return f"<table><tr><th>internal</th><th>shape</th><th>type</th></tr>{rows}</table>"

    def _rows(self) -> list[tuple[str, str, str]]:
        """List name, shape and type of each recorded tensor; with its device if that is not the CPU."""
        rows = []
        for name, value in self._values.items():
            device = "" if value.device.type == "cpu" else f", {value.device}"
            rows.append((name, str(list(value.shape)), str(value.dtype).removeprefix("torch.") + device))
        return rows

    def select(self, value: Tensor) -> Tensor:
        """Select the captured heads and query rows of `[b h t …]`."""
        if self.heads is not None:
            value = value[:, as_slice(self.heads)]
        return value if self.queries is None else value[:, :, as_slice(self.queries)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            raise KeyError(f"{name!r} was not captured; there is {', '.join(self._values) or 'nothing yet'}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def stack(self, name: str) -> Tensor:
        """Stack one captured internal of every layer: `[layers …]`, by depth, in whichever order they were chosen."""
        return torch.stack([self[full_name(name, layer)] for layer in self.layers])

    def gradient(self, name: str) -> Tensor:
        """Return the gradient of a captured internal after `backward`; needs `capture(…, gradients=True)`.

        For attention it is dA = dO vᵀ, from the gradient of O = A v, so that the fused kernel can stay: of `mixed`, but
        before an intervention changed that.
        """
        if name.endswith(".attention"):
            wanted, block = self[name].shape, name.removesuffix("attention")
            product = self.weighted.get(block + "mixed", self[block + "mixed"])
            whole = self._gradient(name, product) @ self[block + "v"].detach().transpose(-2, -1)
            return self.select(whole).reshape(wanted)
        return self._gradient(name, self[name])

    def _gradient(self, name: str, value: Tensor) -> Tensor:
        """Return the gradient that `backward` left at the value of a captured internal, or say why there is none."""
        gradient = value.grad
        if gradient is None:
            if name.endswith(".scores"):
                raise ValueError(
                    "scores are not part of the fused forward pass and have no gradient: use the gradient of attention"
                )
            raise ValueError(
                f"{name} has no gradient: capture with gradients=True and call backward first, "
                "and replace nothing that follows by a constant"
            )
        return gradient


class _Recorder(Hook):
    """The hook that records the requested internals."""

    turn = Turn.RECORD

    def __init__(
        self,
        model: ViT,
        names: Iterable[str],
        internals: Internals,
        gradients: bool,
        to: torch.device | None,
    ) -> None:
        self.model, self.names, self.internals = model, set(names), internals
        self.gradients, self.to = gradients, to
        self.identity: Tensor | None = None  # made once for all layers
        self.prefixes: dict[int, str] = {id(model): "", id(model.patch_embed): ""}  # module → prefix of its names
        for layer in internals.layers:
            block = model.blocks[layer]
            for module in (block, block.attn, block.mlp):
                self.prefixes[id(module)] = f"blocks.{layer}."
        self.pool = model.attn_pool

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        if module is self.pool and f"pool.{name}" in self.names:
            self.keep(f"pool.{name}", value)
        elif name in self.names:
            prefix = self.prefixes.get(id(module))
            if prefix is not None:  # else another model, or a layer that was not requested
                self.keep(prefix + name, self.internals.select(value) if name in DERIVED else value)
        return value

    def on_attention(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        """Record for `capture` the scores of the requested heads and rows, and their softmax: `[b h q t]`.

        They are computed from q and k.
        """
        if module is self.pool and self.names & {"pool.scores", "pool.attention"}:
            scores = masked(scaled(q) @ k.transpose(-2, -1), mask)
            for name, value in (("pool.scores", scores), ("pool.attention", scores.softmax(dim=-1))):
                if name in self.names:
                    self.keep(name, value.detach())
        prefix = self.prefixes.get(id(module))
        if prefix is None or not self.names.intersection(DERIVED):
            return
        with torch.no_grad():
            chosen, heads = self.internals.select(q), self.internals.heads
            k = k if heads is None else k[:, as_slice(heads)]
            if q.is_cuda and q.dtype in HALF and mask is None and "scores" not in self.names:
                if self.identity is None or self.identity.shape[0] != k.shape[-2]:
                    self.identity = padded_identity(k)
                self.keep(prefix + "attention", read_out(chosen, k, self.identity))
                return
            if mask is not None:
                mask = self.internals.select(mask.expand(*q.shape[:3], k.shape[-2]))
            scores = masked(scaled(chosen) @ k.transpose(-2, -1), mask)
            if "scores" in self.names:
                self.keep(prefix + "scores", scores)
            if "attention" in self.names:
                self.keep(prefix + "attention", scores.softmax(dim=-1))

    def keep(self, name: str, value: Tensor) -> None:
        """Keep a recorded tensor, with its gradient if that was asked for."""
        if self.gradients and value.requires_grad:
            value.retain_grad()
            self.internals._values[name] = value
            return
        value = value.detach()
        if self.to is not None:
            value = value.to(self.to)
        if value.untyped_storage().nbytes() > 1.2 * value.nbytes:  # a view, such as q in qkv, would keep the rest alive
            value = value.clone()
        self.internals._values[name] = value


class _Weighted(Hook):
    """The hook that keeps attention times values as the captured attention gave it, in the graph if gradients are."""

    turn = Turn.UNCHANGED

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder, self.model = recorder, recorder.model

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        known, kept = self.recorder, self.recorder.internals.weighted
        prefix = "pool." if module is known.pool else known.prefixes.get(id(module))
        if name == "mixed" and prefix is not None:
            if known.gradients and value.requires_grad:
                value.retain_grad()
                kept[prefix + name] = value
            elif known.to is None:  # else the device's memory is to be free again
                kept[prefix + name] = value.detach()
        return value


def as_slice(indices: Sequence[int]) -> slice | Sequence[int]:
    """Convert the indices of heads or tokens to record to a slice, a view; a list would be copied.

    >>> as_slice([3, 4, 5]), as_slice([2, 0])
    (slice(3, 6, None), [2, 0])
    """
    first = indices[0] if indices else 0
    return slice(first, first + len(indices)) if list(indices) == list(range(first, first + len(indices))) else indices


def read_out(q: Tensor, k: Tensor, identity: Tensor) -> Tensor:
    """Record attention `[b h q t]` of the fused kernel itself: applied to the identity, it returns its matrix.

    For half precision on a GPU: one kernel instead of a product and a softmax, twice as fast and four times as exact,
    since scores are not rounded.
    """
    values = identity.expand(*k.shape[:2], -1, -1)
    return nn.functional.scaled_dot_product_attention(q, k, values)[..., : k.shape[-2]]


def padded_identity(k: Tensor) -> Tensor:
    """Make the identity `[t t]` with which the fused kernel is captured, with columns up to a multiple of 8."""
    tokens = k.shape[-2]
    return torch.eye(tokens, tokens + -tokens % 8, device=k.device, dtype=k.dtype)


@contextmanager
def capture(
    model: nn.Module,
    names: str | Iterable[str] = "attention",
    *,
    layers: Iterable[SupportsIndex] | None = None,
    heads: Iterable[SupportsIndex] | None = None,
    queries: Iterable[SupportsIndex] | None = None,
    gradients: bool = False,
    to: str | torch.device | None = None,
) -> Iterator[Internals]:
    """Record internals of every forward pass of `model` inside the `with`; a later pass replaces an earlier one's.

    `names` are from the glossary (`inside/glossary.py`). `layers` selects blocks (negative numbers count from the end),
    `heads` and `queries` select heads and query rows of attention and scores. `gradients` keeps values in the autograd
    graph, so that `internals.gradient(name)` works after `backward`. `to="cpu"` moves each value as soon as it is
    recorded.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> with capture(model, "attention", layers=[-1], queries=[0]) as internals:
    ...     logits = model(torch.randn(2, 3, 32, 32))
    >>> internals
    Internals of 1 tensors:
      blocks.3.attention  [2, 8, 1, 65]  float32
    >>> internals["blocks.3.attention"].shape
    torch.Size([2, 8, 1, 65])
    """
    plain, compiled = underneath(model)
    try:
        wanted = {names} if isinstance(names, str) else set(names)
    except TypeError:
        raise ValueError(f"expected names of internals, such as 'attention', got {names!r:.60}") from None
    known = WHOLE.keys() | BLOCK.keys() | (POOL.keys() if plain.attn_pool is not None else set())
    if strange := wanted - known:
        raise ValueError(
            f"no internal is called {', '.join(sorted(map(str, strange)))}; there are {', '.join(sorted(known))}"
        )
    if gradients:
        for prefix in ("", "pool."):
            wanted |= {f"{prefix}v", f"{prefix}mixed"} if f"{prefix}attention" in wanted else set()
    depth, count = plain.config.depth, plain.config.heads
    chosen = sorted(set(all_within(range(depth) if layers is None else layers, depth, "block")))
    if heads is not None:
        heads = all_within(heads, count, "head")
    if queries is not None:
        queries = all_within(queries, plain.layout.tokens, "token")
    internals = Internals(chosen, heads, queries)
    recorder = _Recorder(plain, wanted, internals, gradients, None if to is None else pick_device(to))
    weighted = activate(_Weighted(recorder)) if wanted & {"mixed", "pool.mixed"} else nullcontext()
    with activate(recorder), weighted, plain_running(compiled):
        yield internals


def within(index: SupportsIndex, count: int, what: str) -> int:
    """Check the index of a captured block, head or token; a negative one counts from the end.

    >>> within(-1, 12, "block")
    11
    """
    if isinstance(index, bool) or str(getattr(index, "dtype", "")).endswith("bool"):
        raise ValueError(f"expected the index of a {what}, got {index!r:.60}: pass indices, as mask.nonzero() has them")
    try:
        index = operator.index(index)
    except (TypeError, ValueError):  # torch raises either
        raise ValueError(f"the index of a {what} should be a whole number, got {index!r:.60}") from None
    if not -count <= index < count:
        raise ValueError(f"there is no {what} {index}: this model has 0 to {count - 1}")
    return index % count


def all_within(indices: Iterable[SupportsIndex], count: int, what: str) -> list[int]:
    """Check a list, or a one-dimensional tensor or array, of the indices of captured blocks, heads or tokens.

    >>> all_within(torch.tensor([3, -1]), 12, "block")
    [3, 11]
    """
    try:
        listed = list(indices)
    except TypeError:
        raise ValueError(
            f"expected a list, each the index of a {what}, got {indices!r:.60}: write [{indices!r:.60}]"
        ) from None
    return [within(index, count, what) for index in listed]


def underneath(model: nn.Module) -> tuple[ViT, bool]:
    """Return the ViT to capture inside a compiled or wrapped model, and whether it is compiled."""
    compiled = False
    for _ in range(8):
        if isinstance(model, ViT):
            return model, compiled
        inner = getattr(model, "_orig_mod", None)
        compiled = compiled or inner is not None
        inner = inner if inner is not None else getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    raise ValueError(f"only the internals of a ViT can be captured, got a {type(model).__name__}")


@contextmanager
def plain_running(compiled: bool) -> Iterator[None]:
    """Inside `capture`, run a compiled model uncompiled, with a warning; likewise inside `intervene`."""
    if not compiled:
        yield
        return
    warnings.warn("the model is compiled: inside capture it runs uncompiled", stacklevel=4)
    with torch.compiler.set_stance("force_eager"):  # compiled graphs call no hooks
        yield
