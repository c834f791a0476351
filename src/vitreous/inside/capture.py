"""`capture`: the internals of a forward pass, kept while it runs.

    with capture(model, ["attention"], queries=[0]) as seen:
        logits = model(x)
    seen["blocks.11.attention"]      # [b h 1 t]

The forward pass is untouched: the fused kernel runs and the logits are the same bits. Attention is worked out beside
it from the queries and keys, for the layers, heads and query rows that were asked for and no others.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitreous.inside.glossary import BLOCK, WHOLE, full_name
from vitreous.models.hooks import activate, masked, scaled
from vitreous.models.vit import ViT

DERIVED = ("scores", "attention")
"""Worked out from q and k rather than met on the way."""
HALF = (torch.float16, torch.bfloat16)


class Internals(Mapping[str, Tensor]):
    """What was seen, by full name: `seen["blocks.3.attention"]`."""

    def __init__(
        self, layers: Sequence[int], heads: Sequence[int] | None = None, queries: Sequence[int] | None = None
    ) -> None:
        self.layers, self.heads, self.queries = tuple(layers), heads, queries
        self._values: dict[str, Tensor] = {}

    def choose(self, value: Tensor) -> Tensor:
        """The chosen heads and rows of `[b h t …]`."""
        if self.heads is not None:
            value = value[:, span(self.heads)]
        return value if self.queries is None else value[:, :, span(self.queries)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            raise KeyError(f"{name!r} was not captured; there is {', '.join(self._values) or 'nothing yet'}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def stack(self, name: str) -> Tensor:
        """One internal of every captured layer, on top of each other: `[layers …]`."""
        return torch.stack([self[full_name(name, layer)] for layer in self.layers])

    def gradient(self, name: str) -> Tensor:
        """The gradient at an internal, after `backward`; capture with `gradients=True`.

        For attention it is dA = dO vᵀ, from the gradient at `mixed`: the fused kernel may stay.
        """
        if name.endswith(".attention"):
            wanted, block = self[name].shape, name.removesuffix("attention")
            whole = self.gradient(block + "mixed") @ self[block + "v"].detach().transpose(-2, -1)
            return self.choose(whole).reshape(wanted)
        gradient = self[name].grad
        if gradient is None:
            if name.endswith(".scores"):
                raise ValueError(
                    "scores are worked out beside the forward pass and have no gradient: ask for attention's"
                )
            raise ValueError(f"{name} has no gradient: capture with gradients=True and call backward first")
        return gradient


class _Recorder:
    """The watcher that keeps what was asked for."""

    records = True

    def __init__(
        self,
        model: ViT,
        names: Iterable[str],
        seen: Internals,
        gradients: bool,
        to: str | torch.device | None,
    ) -> None:
        self.names, self.seen = set(names), seen
        self.gradients, self.to = gradients, to
        self.identity: Tensor | None = None  # made once for all layers
        self.places: dict[int, str] = {id(model): "", id(model.patch_embed): ""}  # module → what its names begin with
        for layer in seen.layers:
            block = model.blocks[layer]
            for module in (block, block.attn, block.mlp):
                self.places[id(module)] = f"blocks.{layer}."

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        if name in self.names:
            place = self.places.get(id(module))
            if place is not None:  # else another model, or a layer that was not asked for
                self.keep(place + name, self.seen.choose(value) if name in DERIVED else value)
        return value

    def changes_attention(self, module: nn.Module) -> bool:
        return False

    def on_attention(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        """Work out scores and attention beside the kernel, for the chosen heads and rows alone: `[b h q t]`."""
        place = self.places.get(id(module))
        if place is None or not self.names.intersection(DERIVED):
            return
        with torch.no_grad():
            chosen, heads = self.seen.choose(q), self.seen.heads
            k = k if heads is None else k[:, span(heads)]
            if q.is_cuda and q.dtype in HALF and mask is None and "scores" not in self.names:
                if self.identity is None or self.identity.shape[0] != k.shape[-2]:
                    self.identity = padded_identity(k)
                self.keep(place + "attention", read_out(chosen, k, self.identity))
                return
            if mask is not None:
                mask = self.seen.choose(mask.expand(*q.shape[:3], k.shape[-2]))
            scores = masked(scaled(chosen) @ k.transpose(-2, -1), mask)
            if "scores" in self.names:
                self.keep(place + "scores", scores)
            if "attention" in self.names:
                self.keep(place + "attention", scores.softmax(dim=-1))

    def keep(self, name: str, value: Tensor) -> None:
        if self.gradients and value.requires_grad:
            value.retain_grad()
            self.seen._values[name] = value
            return
        value = value.detach()
        if self.to is not None:
            value = value.to(self.to)
        if value.untyped_storage().nbytes() > 1.2 * value.nbytes:  # a view, such as q in qkv, would hold on to the rest
            value = value.clone()
        self.seen._values[name] = value


def span(indices: Sequence[int]) -> slice | Sequence[int]:
    """Neighbours as a slice, which is a view; a list of indices would be copied to the device, and the device wait.

    >>> span([3, 4, 5]), span([2, 0])
    (slice(3, 6, None), [2, 0])
    """
    first = indices[0] if indices else 0
    return slice(first, first + len(indices)) if list(indices) == list(range(first, first + len(indices))) else indices


def read_out(q: Tensor, k: Tensor, identity: Tensor) -> Tensor:
    """Attention `[b h q t]` by the fused kernel itself: what it makes of the identity is its own matrix.

    For half precision on a GPU: one kernel in place of a product and a softmax, twice as fast and four times as exact,
    since scores are never rounded.
    """
    values = identity.expand(*k.shape[:2], -1, -1)
    return nn.functional.scaled_dot_product_attention(q, k, values)[..., : k.shape[-2]]


def padded_identity(k: Tensor) -> Tensor:
    """The identity `[t t]` with columns up to a multiple of 8, which the kernel wants."""
    tokens = k.shape[-2]
    return torch.eye(tokens, tokens + -tokens % 8, device=k.device, dtype=k.dtype)


@contextmanager
def capture(
    model: nn.Module,
    names: str | Iterable[str] = "attention",
    *,
    layers: Iterable[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    gradients: bool = False,
    to: str | torch.device | None = None,
) -> Iterator[Internals]:
    """Keep chosen internals of every forward pass of `model` inside the `with`; a later pass replaces an earlier one's.

    `names` are from the glossary (`inside/glossary.py`). `layers` chooses blocks (negative counts from the end),
    `heads` and `queries` choose heads and query rows of attention and scores. `gradients` keeps values in the graph, so
    that `seen.gradient(name)` works after `backward`. `to="cpu"` moves each value away as soon as it is seen.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> with capture(model, "attention", layers=[-1], queries=[0]) as seen:
    ...     logits = model(torch.randn(2, 3, 32, 32))
    >>> list(seen), seen["blocks.3.attention"].shape
    (['blocks.3.attention'], torch.Size([2, 8, 1, 65]))
    """
    plain, compiled = underneath(model)
    wanted = {names} if isinstance(names, str) else set(names)
    known = WHOLE.keys() | BLOCK.keys()
    if strange := wanted - known:
        raise ValueError(f"no internal is called {', '.join(sorted(strange))}; there are {', '.join(sorted(known))}")
    if gradients and "attention" in wanted:
        wanted |= {"v", "mixed"}
    depth, count = plain.config.depth, plain.config.heads
    chosen = sorted({within(layer, depth, "block") for layer in (range(depth) if layers is None else layers)})
    if heads is not None:
        heads = [within(head, count, "head") for head in heads]
    if queries is not None:
        queries = [within(query, plain.layout.tokens, "token") for query in queries]
    seen = Internals(chosen, heads, queries)
    recorder = _Recorder(plain, wanted, seen, gradients, to)
    with activate(recorder), plain_running(compiled):
        yield seen


def within(index: int, count: int, what: str) -> int:
    """An index from 0 on, where a negative one counts from the end; a `ValueError` says what there is.

    >>> within(-1, 12, "block")
    11
    """
    if not -count <= index < count:
        raise ValueError(f"there is no {what} {index}: this model has 0 to {count - 1}")
    return index % count


def underneath(model: nn.Module) -> tuple[ViT, bool]:
    """The plain ViT inside a compiled or wrapped model, and whether it was compiled."""
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
    raise ValueError(f"only a ViT's internals have names, got a {type(model).__name__}")


@contextmanager
def plain_running(compiled: bool) -> Iterator[None]:
    """Run a compiled model's plain code meanwhile, and say so: a compiled graph has no internals to show."""
    if not compiled:
        yield
        return
    warnings.warn("the model is compiled: inside capture its plain code runs", stacklevel=4)
    with torch.compiler.set_stance("force_eager"):
        yield
