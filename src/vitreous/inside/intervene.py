"""`intervene`: step into a forward pass and see what changes.

    with intervene(model, heads_off=[(11, 3)]):
        logits = model(x)                      # as if head 3 of block 11 said nothing

Heads are switched off where their results are gathered; attention is knocked out before the softmax; any named
internal can be replaced. Only a layer whose attention is touched leaves the fused kernel.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.inside.capture import masked, plain_running, scaled, underneath, watching
from vitreous.inside.glossary import BLOCK, WHOLE
from vitreous.models.vit import ViT
from vitreous.models.watch import see

Change = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KnockOut:
    """Attention from some tokens to some others, forbidden; the rest of each row still sums to 1.

    None means all: all layers, all heads, all tokens.
    """

    queries: Sequence[int] | None = None
    keys: Sequence[int] | None = None
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None


class _Intervention:
    """The watcher that steps in."""

    def __init__(
        self, model: ViT, head_weights: Tensor | None, knock_outs: Sequence[KnockOut], changes: Mapping[str, Change]
    ) -> None:
        self.head_weights, self.knock_outs, self.changes = head_weights, knock_outs, changes
        self.tokens, self.heads = model.layout.tokens, model.config.heads
        self.layers = {id(module): i for i, block in enumerate(model.blocks) for module in block.modules()}
        self.whole = {id(model), id(model.patch_embed)}

    def see(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        layer = self.layers.get(id(module))
        if layer is None and id(module) not in self.whole:
            return value
        full = name if layer is None else f"blocks.{layer}.{name}"
        if (change := self.changes.get(full)) is not None and name not in ("scores", "attention"):
            value = apply(full, change, value)
        if name == "mixed" and self.head_weights is not None and layer is not None:
            weights = self.head_weights.to(value)[..., layer, :]  # [h] or [b h]
            value = value * weights[..., None, None]
        return value

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor | None:
        layer = self.layers.get(id(module))
        if layer is None:
            return None
        blocked = [knock for knock in self.knock_outs if knock.layers is None or layer in knock.layers]
        changes = {name: self.changes.get(f"blocks.{layer}.{name}") for name in ("scores", "attention")}
        if not blocked and not any(change is not None for change in changes.values()):
            return None  # the fused kernel stays
        scores = masked(scaled(q) @ k.transpose(-2, -1), mask)
        for knock in blocked:
            scores = scores.masked_fill(self.blocked(knock).to(scores.device), float("-inf"))
        if changes["scores"] is not None:
            scores = apply(f"blocks.{layer}.scores", changes["scores"], scores)
        attention = (
            see(module, "scores", scores).softmax(dim=-1).nan_to_num()
        )  # a row with nothing left gathers nothing
        if changes["attention"] is not None:
            attention = apply(f"blocks.{layer}.attention", changes["attention"], attention)
        return see(module, "attention", attention) @ v

    def blocked(self, knock: KnockOut) -> Tensor:
        """True where attention is forbidden: `[h t t]`."""
        parts = []
        for chosen, count in ((knock.heads, self.heads), (knock.queries, self.tokens), (knock.keys, self.tokens)):
            part = torch.ones(count, dtype=torch.bool) if chosen is None else torch.zeros(count, dtype=torch.bool)
            if chosen is not None:
                part[list(chosen)] = True
            parts.append(part)
        heads, queries, keys = parts
        return heads[:, None, None] & queries[:, None] & keys


def apply(name: str, change: Change, value: Tensor) -> Tensor:
    """A replacement given as a tensor, or a function of what is there."""
    changed = change(value) if callable(change) else change.to(value).expand_as(value)
    if changed.shape != value.shape:
        raise ValueError(f"{name} is {tuple(value.shape)}, the replacement is {tuple(changed.shape)}")
    return changed


@contextmanager
def intervene(
    model: nn.Module,
    *,
    heads_off: Iterable[tuple[int, int]] = (),
    head_weights: Tensor | None = None,
    knock_out: KnockOut | Sequence[KnockOut] = (),
    replace: Mapping[str, Change] | None = None,
) -> Iterator[None]:
    """Change what happens inside `model` while the `with` lasts; nothing stays behind.

    `heads_off` are (layer, head) pairs. `head_weights`, `[layers heads]` or `[b layers heads]`, multiplies each head's
    result, for each picture by itself if wanted. `knock_out` forbids attention between tokens. `replace` maps names
    of the glossary to a tensor or to a function of the value, such as an activation of another picture.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> x = torch.randn(1, 3, 32, 32)
    >>> with intervene(model, replace={"pooled": torch.zeros_like}):
    ...     model(x).abs().sum().item()
    0.0
    """
    plain, compiled = underneath(model)
    depth, heads = plain.config.depth, plain.config.heads
    pairs = list(heads_off)
    for layer, head in pairs:
        if not (0 <= layer < depth and 0 <= head < heads):
            raise ValueError(f"there is no head ({layer}, {head}): blocks are 0 to {depth - 1}, heads 0 to {heads - 1}")
    if pairs:
        off = torch.ones(depth, heads)
        off[[layer for layer, _ in pairs], [head for _, head in pairs]] = 0.0
        head_weights = off if head_weights is None else head_weights * off
    if head_weights is not None and head_weights.shape[-2:] != (depth, heads):
        raise ValueError(f"head_weights should end in {(depth, heads)}, got {tuple(head_weights.shape)}")
    known = WHOLE.keys() | {f"blocks.{layer}.{name}" for layer in range(depth) for name in BLOCK}
    if strange := set(replace or ()) - known:
        raise ValueError(f"no internal is called {', '.join(sorted(strange))}: see inside/glossary.py")
    knocks = (knock_out,) if isinstance(knock_out, KnockOut) else tuple(knock_out)
    with watching(_Intervention(plain, head_weights, knocks, replace or {})), plain_running(compiled):
        yield


@torch.no_grad()
def ablate_heads(model: ViT, x: Tensor, target: int | None = None) -> Tensor:
    """What switching each head off does to a class's logit: `[layers heads]`, negative where the head had helped.

    `x` is one picture `[1 c h w]`; `target` is a class, by default the predicted one. Blocks before the head are run
    once; from its own block on, all heads of a layer run as one batch.
    """
    if len(x) != 1:
        raise ValueError(f"expected one picture [1 c h w], got {tuple(x.shape)}")
    depth, heads = model.config.depth, model.config.heads
    inputs, tokens = [], model.embed(x)
    for block in model.blocks:
        inputs.append(tokens)
        tokens = block(tokens)
    logits = model.forward_head(model.norm(tokens))
    target = int(logits.argmax()) if target is None else target
    effect = torch.empty(depth, heads)
    for layer, start in enumerate(inputs):
        weights = torch.ones(heads, depth, heads)
        weights[range(heads), layer, range(heads)] = 0.0  # the i-th copy of the picture loses head i
        tokens = start.expand(heads, -1, -1)
        with intervene(model, head_weights=weights):
            for block in model.blocks[layer:]:
                tokens = block(tokens)
            changed = model.forward_head(model.norm(tokens))
        effect[layer] = (changed[:, target] - logits[0, target]).cpu()
    return effect
