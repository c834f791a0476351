"""`intervene`: change the internals of a forward pass; `KnockOut`: attention that is forbidden.

    with intervene(model, heads_off=[(11, 3)]):
        logits = model(x)                      # without head 3 of block 11

A head is switched off by zeroing its output (`mixed`); attention is knocked out before the softmax; a patch is removed
by forbidding all attention to its token, and leaving it out of a mean over patches; any internal of the glossary can be
replaced. Only a layer whose scores or attention are changed leaves the fused kernel.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch import Tensor, nn

from vitreous.inside.capture import DERIVED, all_within, plain_running, underneath, within
from vitreous.inside.glossary import BLOCK, POOL, WHOLE, full_name
from vitreous.models.hooks import HOOKS, Hook, activate
from vitreous.models.vit import ViT

Change = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KnockOut:
    """Attention from some tokens to others that is forbidden; the rest of each row still sums to 1.

    None means all layers, all heads, or all tokens.
    """

    queries: Sequence[int] | None = None
    keys: Sequence[int] | None = None
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None

    def within(self, model: ViT) -> "KnockOut":
        """Check every index of a `KnockOut` against the model, and convert negative ones, which count from the end."""
        config, tokens = model.config, model.layout.tokens

        def checked(indices: Sequence[int] | None, count: int, what: str) -> list[int] | None:
            return None if indices is None else all_within(indices, count, what)

        return KnockOut(
            checked(self.queries, tokens, "token"),
            checked(self.keys, tokens, "token"),
            checked(self.layers, config.depth, "block"),
            checked(self.heads, config.heads, "head"),
        )

    def forbidden(self, heads: int, tokens: int) -> Tensor:
        """Mark where a `KnockOut` forbids attention: boolean `[h t t]`."""
        parts = []
        for chosen, count in ((self.heads, heads), (self.queries, tokens), (self.keys, tokens)):
            part = torch.full((count,), chosen is None)
            if chosen is not None:
                part[list(chosen)] = True
            parts.append(part)
        return parts[0][:, None, None] & parts[1][:, None] & parts[2]


class _Intervention(Hook):
    """The hook that changes internals."""

    def __init__(
        self,
        model: ViT,
        head_weights: Tensor | None,
        knock_outs: Sequence[KnockOut],
        changes: Mapping[str, Change],
        tokens_off: Sequence[int] = (),
    ) -> None:
        self.model: ViT = model
        self.head_weights, self.changes = head_weights, changes
        self.knock_outs, self.tokens_off = knock_outs, list(tokens_off)
        self.layers = {
            id(module): layer for layer, block in enumerate(model.blocks) for module in (block, block.attn, block.mlp)
        }
        self.embedding = model.patch_embed
        self.read = {"tokens", *(full_name("output", number) for number in model.config.dense_blocks)}  # by heads
        self.pool, pooled_from = model.attn_pool, 0 if model.config.pool_prefix else model.layout.prefix
        pooled_from -= model.attn_pool.own if model.attn_pool is not None else 0
        self.not_pooled = [token - pooled_from for token in tokens_off]
        self.blocked: dict[int, Tensor] = {}  # layer → True where attention is forbidden, [h t t]
        for knock in knock_outs:
            for layer in range(model.config.depth) if knock.layers is None else knock.layers:
                forbidden = knock.forbidden(model.config.heads, model.layout.tokens)
                self.blocked[layer] = self.blocked.get(layer, torch.zeros_like(forbidden)) | forbidden

    def changes_attention(self, module: nn.Module) -> bool:
        if self.pool is not None and module is self.pool:
            return bool(self.not_pooled) or any(f"pool.{name}" in self.changes for name in DERIVED)
        layer = self.layers.get(id(module))
        if layer is None:
            return False
        return layer in self.blocked or any(f"blocks.{layer}.{name}" in self.changes for name in DERIVED)

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        layer = self.layers.get(id(module))
        if self.pool is not None and module is self.pool:
            name = f"pool.{name}"
        elif layer is None and self.embedding not in (module, getattr(module, "patch_embed", None)):
            return value  # of another model; one that shares its blocks, such as a question about it, is changed too
        if name == "pool.scores":
            value = value.index_fill(-1, torch.tensor(self.not_pooled, device=value.device).long(), float("-inf"))
        if name == "scores" and layer in self.blocked:
            value = value.masked_fill(self.blocked[layer].to(value.device), float("-inf"))
        full = name if layer is None else full_name(name, layer)
        if full in self.read and self.tokens_off:  # then the mean over all patches is that over those which are left
            value, left = value.clone(), tokens_left(self.model)  # by other interventions too
            off, left[: self.model.layout.prefix] = (~left).nonzero().flatten(), False
            value[:, off] = value[:, left].mean(dim=1, keepdim=True)  # which no other token reads
        if (change := self.changes.get(full)) is not None:
            value = apply(full, change, value)
        if name == "mixed" and self.head_weights is not None and layer is not None:
            weights = self.head_weights.to(value)[..., layer, :]  # [h] or [b h]
            if weights.ndim == 2 and len(weights) not in (1, len(value)):
                raise ValueError(f"head_weights are for {len(weights)} images, the batch has {len(value)}")
            value = value * weights[..., None, None]
        return value


def interventions_on(model: nn.Module) -> list[_Intervention]:
    """List the active interventions on a model, or on one that shares its blocks with it."""
    found = [each for each in HOOKS.get() if isinstance(each, _Intervention)]
    return [each for each in found if each.model.blocks is getattr(model, "blocks", None)]


def tokens_left(model: ViT) -> Tensor:
    """Mark the tokens whose patches no active intervention removes, bool `[t]`."""
    left = torch.ones(model.layout.tokens, dtype=torch.bool)
    left[[token for each in interventions_on(model) for token in each.tokens_off]] = False
    return left


@contextmanager
def intervene_alike(model: nn.Module, copy: nn.Module) -> Iterator[None]:
    """Change internals of a model's copy, whose config is the same, as the active interventions change the model's."""
    with ExitStack() as stack:
        for each in interventions_on(model):
            assert isinstance(copy, ViT)
            alike = _Intervention(copy, each.head_weights, each.knock_outs, each.changes, each.tokens_off)
            stack.enter_context(activate(alike))
        yield


def apply(name: str, change: Change, value: Tensor) -> Tensor:
    """Intervene on an internal: replace it by a tensor, or by a function of it, which may change what it is given."""
    changed = change(value.clone()) if callable(change) else change.to(value)
    if isinstance(change, Tensor):
        with suppress(RuntimeError):  # shapes that do not broadcast are an error below
            changed = changed.expand_as(value)
    if not isinstance(changed, Tensor) or changed.shape != value.shape:
        found = tuple(changed.shape) if isinstance(changed, Tensor) else repr(changed)[:60]
        raise ValueError(f"{name} is {tuple(value.shape)}, the replacement is {found}")
    return changed


def pairs_of(heads: Iterable[tuple[SupportsIndex, SupportsIndex]]) -> list[tuple[SupportsIndex, SupportsIndex]]:
    """List the (layer, head) pairs of an intervention; one pair alone, or a mask, raises."""
    try:
        return [(layer, head) for layer, head in heads]
    except (TypeError, ValueError):
        raise ValueError(f"heads_off takes (layer, head) pairs, such as [(2, 3)], got {heads!r:.60}") from None


@contextmanager
def intervene(
    model: nn.Module,
    *,
    heads_off: Iterable[tuple[SupportsIndex, SupportsIndex]] = (),
    patches_off: Iterable[SupportsIndex] = (),
    head_weights: Tensor | None = None,
    knock_out: KnockOut | Sequence[KnockOut] = (),
    replace: Mapping[str, Change] | None = None,
) -> Iterator[None]:
    """Change internals of `model` inside the `with`; afterwards the model is as before.

    `heads_off` are (layer, head) pairs. `patches_off` are patches counted row by row: the other tokens and the logits
    are those of a forward pass without these patches' tokens, while all shapes stay. `head_weights`, `[layers heads]`
    or `[b layers heads]`, multiplies each head's output, with a leading `b` for each image separately. `knock_out`
    forbids attention between tokens. `replace` maps full names of the glossary to a tensor, such as the activation of
    another image, or to a function of the value.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> x = torch.randn(1, 3, 32, 32)
    >>> with intervene(model, replace={"pooled": torch.zeros_like}):
    ...     model(x).abs().sum().item()
    0.0
    """
    plain, compiled = underneath(model)
    depth, heads = plain.config.depth, plain.config.heads
    pairs = [(within(layer, depth, "block"), within(head, heads, "head")) for layer, head in pairs_of(heads_off)]
    if head_weights is not None:
        if not isinstance(head_weights, Tensor):
            raise ValueError(f"head_weights should be a tensor, got a {type(head_weights).__name__}")
        if head_weights.ndim not in (2, 3) or head_weights.shape[-2:] != (depth, heads):
            raise ValueError(
                f"head_weights [layers heads] or [b layers heads] should end in {(depth, heads)}, "
                f"got {tuple(head_weights.shape)}"
            )
    if pairs:
        off = torch.ones(depth, heads)
        off[[layer for layer, _ in pairs], [head for _, head in pairs]] = 0.0
        head_weights = off if head_weights is None else head_weights * off
    known = WHOLE.keys() | (POOL.keys() if plain.attn_pool is not None else set())
    known |= {f"blocks.{layer}.{name}" for layer in range(depth) for name in BLOCK}
    if not isinstance(replace, Mapping | None):
        raise ValueError(f"replace takes a dict, such as {{'pooled': torch.zeros_like}}, got {replace!r:.60}")
    if strange := set(replace or ()) - known:
        raise ValueError(f"no internal is called {', '.join(sorted(map(str, strange)))}: see inside/glossary.py")
    for name, change in (replace or {}).items():
        if not isinstance(change, Tensor) and not callable(change):
            raise ValueError(f"{name} is replaced by a tensor or a function of its value, got {change!r:.60}")
    chosen = [knock_out] if isinstance(knock_out, KnockOut) else knock_out
    if not isinstance(chosen, Sequence) or not all(isinstance(knock, KnockOut) for knock in chosen):
        raise ValueError(f"knock_out takes a KnockOut or a list of them, got {knock_out!r:.60}")
    knocks = [knock.within(plain) for knock in chosen]
    layout = plain.layout
    gone = sorted({layout.prefix + patch for patch in all_within(patches_off, layout.patches, "patch")})
    if len(gone) and not tokens_left(plain).index_fill(0, torch.tensor(gone), False)[layout.prefix :].any():
        raise ValueError(f"all {layout.patches} patches are to be removed: leave at least one")
    if gone:
        knocks.append(KnockOut(keys=gone))
    changes = head_weights is not None or knocks or replace
    hook = activate(_Intervention(plain, head_weights, knocks, replace or {}, gone)) if changes else nullcontext()
    with hook, plain_running(compiled):
        yield
