"""Translate another library's tensor names to ours and back: `Format`, key templates (`Rule`), tensor transforms.

A `Rule` pairs one of our templates with one or more of theirs. In a template `{n}` is a block's number and `{p}` is
`weight` or `bias`; the same letter means the same on both sides. `to_ours` reads with the rules and `to_theirs` writes
with them, so that one table serves both directions.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitreous.models.vit_config import ViTConfig
from vitreous.weights.safety import CheckpointError

Tensors = dict[str, Tensor]
Allowed = dict[str, tuple[Any, ...]]  # field of `ViTConfig` → the values that it may have


@dataclass(frozen=True)
class Transform:
    """How a tensor changes when a checkpoint is read and, given the model's config, when it is written."""

    read: Callable[[Sequence[Tensor]], Tensor]
    write: Callable[[Tensor, ViTConfig], Sequence[Tensor]]


SAME = Transform(lambda parts: parts[0], lambda x, _: [x])
JOIN_QKV = Transform(lambda parts: torch.cat(list(parts)), lambda x, _: x.chunk(3))  # three layers ↔ one
JOIN_GATE = Transform(lambda parts: torch.cat(list(parts)), lambda x, _: x.chunk(2))  # SwiGLU's gate and value
TRANSPOSE = Transform(lambda parts: parts[0].T, lambda x, _: [x.T])  # [in out] ↔ [out in]
TOKEN = Transform(lambda parts: parts[0].reshape(1, 1, -1), lambda x, _: [x.reshape(-1)])  # [d] ↔ [1 1 d]
TABLE = Transform(lambda parts: parts[0][None], lambda x, _: [x[0]])  # [t d] ↔ [1 t d]


@dataclass(frozen=True)
class Rule:
    """One of our key templates, and theirs; `older` are other spellings that are read but never written."""

    ours: str
    theirs: tuple[str, ...]
    transform: Transform = SAME
    older: tuple[tuple[str, ...], ...] = ()


def rule(ours: str, *theirs: str, transform: Transform = SAME, older: Iterable[Sequence[str]] = ()) -> Rule:
    """Make a `Rule` of key templates; an older spelling may be one string or several."""
    return Rule(ours, theirs, transform, tuple((o,) if isinstance(o, str) else tuple(o) for o in older))


@cache
def pattern(template: str) -> re.Pattern[str]:
    """Compile a key template to a regular expression.

    >>> pattern("blocks.{n}.norm1.{p}").fullmatch("blocks.3.norm1.bias").groupdict()
    {'n': '3', 'p': 'bias'}
    """
    text = re.escape(template).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{p\}", "(?P<p>weight|bias)")
    return re.compile(text.replace(r"\*", ".*"))


def to_ours(tensors: Mapping[str, Tensor], rules: Sequence[Rule]) -> tuple[Tensors, list[str]]:
    """Translate another library's tensors; return ours by name, and the keys that no rule matches.

    >>> rules = [rule("blocks.{n}.norm1.{p}", "layers.{n}.ln_1.{p}")]
    >>> ours, stray = to_ours({"layers.0.ln_1.bias": torch.zeros(2), "extra": torch.zeros(1)}, rules)
    >>> list(ours), stray
    (['blocks.0.norm1.bias'], ['extra'])
    """
    found: Tensors = {}
    used: set[str] = set()
    spellings = [(r, theirs) for r in rules for theirs in (r.theirs, *r.older)]
    for key in tensors:
        for r, theirs in spellings:
            if (match := pattern(theirs[0]).fullmatch(key)) is None:
                continue
            names = [template.format(**match.groupdict()) for template in theirs]
            if absent := [name for name in names if name not in tensors]:
                raise CheckpointError(f"the checkpoint has {key} but not {', '.join(absent)}: it is incomplete")
            try:
                found[r.ours.format(**match.groupdict())] = r.transform.read([tensors[name] for name in names])
            except (RuntimeError, IndexError) as error:
                shapes = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in names)
                raise CheckpointError(f"the shapes of {shapes} do not fit together: get it again") from error
            used.update(names)
            break
    for key in (key for key in tensors if key not in used):  # a part of several, without the first
        for theirs in (theirs for _, theirs in spellings if len(theirs) > 1):
            match = next((m for template in theirs[1:] if (m := pattern(template).fullmatch(key))), None)
            if match is not None:
                raise CheckpointError(
                    f"the checkpoint has {key} but not {theirs[0].format(**match.groupdict())}: it is incomplete"
                )
    return found, [key for key in tensors if key not in used]


def to_theirs(tensors: Mapping[str, Tensor], rules: Sequence[Rule], config: ViTConfig) -> Tensors:
    """Translate our tensors to another library's names.

    >>> rules = [rule("blocks.{n}.attn.qkv.{p}", "q{n}.{p}", "k{n}.{p}", "v{n}.{p}", transform=JOIN_QKV)]
    >>> sorted(to_theirs({"blocks.0.attn.qkv.bias": torch.arange(6)}, rules, ViTConfig()))
    ['k0.bias', 'q0.bias', 'v0.bias']
    """
    written: Tensors = {}
    for key, value in tensors.items():
        for r in rules:
            if (match := pattern(r.ours).fullmatch(key)) is None:
                continue
            names = [template.format(**match.groupdict()) for template in r.theirs]
            parts = r.transform.write(value, config)
            written.update((name, part.contiguous()) for name, part in zip(names, parts, strict=True))
            break
        else:
            raise ValueError(f"the target format has no name for {key}")
    return written


@dataclass(frozen=True)
class Format:
    """How one library names a ViT's tensors and describes the model in a config file."""

    name: str  # as the command line spells it: `timm`, `huggingface`, …
    recognise: Callable[[Mapping[str, Tensor]], bool]  # whether these keys are of this format
    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()
    """Templates of known keys that a model does not need, such as mask tokens; `*` stands for anything."""
    prepare: Callable[[Tensors], Tensors] = lambda tensors: tensors
    """Applied to their keys first: remove a prefix, split stacked layers."""
    adjust: Callable[[Tensors], Tensors] = lambda tensors: tensors
    """Applied to our keys last: fold a class position into the class token."""
    read_shapes: Callable[[Tensors], Allowed] = lambda tensors: {}
    """Read fields of `ViTConfig` from the shapes of their tensors, where ours lose them."""
    read_config: Callable[[Mapping[str, Any]], Allowed] = lambda sidecar: {}
    """Read fields of `ViTConfig` from their config file: each field of the file is read, harmless or an error."""
    known: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Allowed, str]] = lambda shapes, assume: ({}, "")
    """Given the fields that the tensors state and those that the user assumes, return the values that models of this
    library have, and the name of one with the same tensors. A single value is assumed, several are asked about."""
    run_size: Callable[[Mapping[str, Any]], tuple[int, int] | None] = lambda sidecar: None
    """Given the config file, return the image size that a model runs at if its positions are always of another."""
    model_type: str = ""  # in transformers' config file, of a format that keys alone may not tell from another
    resize: str = "timm"  # the convention by which this library resizes position embeddings


def strip_prefix(*prefixes: str) -> Callable[[Tensors], Tensors]:
    """Make the step that prepares keys to be mapped: it takes a prefix off those that have it.

    It is a `Format`'s `prepare`; the prefix is often the name of a base model.
    """

    def strip(tensors: Tensors) -> Tensors:
        found = {key: next((p for p in prefixes if key.startswith(p)), "") for key in tensors}
        plain: Tensors = {}
        for key, value in tensors.items():
            if (short := key.removeprefix(found[key])) in plain:
                raise CheckpointError(f"it has {short} twice, as {key} and under another prefix: one is expected")
            plain[short] = value
        return plain

    return strip
