"""Damaged and contradictory checkpoints: each must be refused in one line, or give what its own library gives.

`mutants` yields ways to change a sound checkpoint of `originals.BASES`; `judge` applies one and compares. Where the
original library fails, or would draw weights at random, only a refusal passes.
"""

import json
import random
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from originals import Base, difference, photo, read_weights, write_weights
from torch import Tensor

from vitreous.weights.load import load

Tensors = dict[str, Tensor]
Change = Callable[[Path], None]  # changes the files of a checkpoint in place
STATED = {  # fields that a config may add, and values that other models have
    "model_args": (
        {"pool_include_prefix": True}, {"fc_norm": True}, {"fc_norm": False}, {"final_norm": False},
        {"act_layer": "mish"},
        {"act_layer": "hard_swish"}, {"act_layer": "relu"}, {"act_layer": "gelu_tanh"}, {"act_layer": "quick_gelu"},
        {"num_heads": 2}, {"num_heads": 8}, {"qkv_bias": False}, {"qk_norm": True}, {"init_values": 0.1},
        {"init_values": None}, {"class_token": False}, {"no_embed_class": True}, {"reg_tokens": 2}, {"pre_norm": True},
        {"global_pool": "avg"}, {"global_pool": "max"}, {"global_pool": "token"}, {"global_pool": ""},
        {"global_pool": "map"}, {"pos_embed": "none"}, {"mlp_ratio": 3}, {"img_size": 64}, {"img_size": [32, 48]},
        {"patch_size": 4}, {"depth": 2}, {"depth": 4}, {"in_chans": 1}, {"norm_layer": "rmsnorm"}, {"proj_bias": False},
        {"drop_path_rate": 0.1}, {"dynamic_img_size": True}, {"embed_norm_layer": "layernorm"}, {"mystery": 1},
        {"scale_attn_norm": True}, {"block_fn": "ResPostBlock"}, {"weight_init": "jax"}, {"attn_layer": "diff"},
        {"use_rel_pos_bias": False}, {"use_shared_rel_pos_bias": True}, {"use_abs_pos_emb": True},
        {"rel_pos_type": "mlp_swin"}, {"rel_pos_type": "bias"}, {"rel_pos_dim": 8}, {"shared_rel_pos": False},
        {"shared_rel_pos": True}, {"scale_mlp": True}, {"swiglu_mlp": True}, {"qv_bias": True}, {"norm_eps": 1e-3},
    ),
    "top": (
        {"mystery": 1}, {"global_pool": "avg"}, {"num_classes": 3}, {"num_classes": 0}, {"hidden_act": "relu"},
        {"hidden_act": "quick_gelu"}, {"hidden_act": "mish"}, {"layer_norm_eps": 1e-3}, {"qkv_bias": False},
        {"pooler_act": "relu"}, {"num_attention_heads": 2}, {"image_size": 64}, {"image_size": [32, 48]},
        {"patch_size": 16}, {"num_channels": 1}, {"use_swiglu_ffn": True}, {"use_swiglu_ffn": False},
        {"architecture": "vit_small_patch16_224"}, {"architecture": "vit_base_patch16_rpn_224"},
        {"architecture": "vit_new_patch16_224"}, {"model_type": "vit_msn"}, {"model_type": "dinov2"},
        {"model_type": "mystery"}, {"num_register_tokens": 2}, {"use_mask_token": True}, {"apply_layernorm": False},
        {"num_hidden_layers": 2}, {"encoder_stride": 8}, {"torch_dtype": "float16"}, {"mlp_ratio": 3},
        {"hidden_dropout_prob": 0.1}, {"num_windows": 2}, {"id2label": {"0": "cat", "1": "dog"}}, {"num_labels": 3},
    ),
}  # fmt: skip
WORDS = ("mystery", "gelu", "quick_gelu", "relu", "avg", "token", "bilinear", "squash", "center")


@dataclass(frozen=True)
class Mutant:
    """One way to change a checkpoint."""

    kind: str  # such as `tensor dropped` or `field removed`
    text: str
    change: Change
    harmless: bool = False  # a known wrapper: it may load, with the numbers of the sound checkpoint


# --- tensors --------------------------------------------------------------------------------------------------


def _on_tensors(weights: str, edit: Callable[[Tensors], Tensors]) -> Change:
    def change(folder: Path) -> None:
        write_weights(edit(read_weights(folder / weights)), folder / weights)

    return change


def _replaced(name: str, new: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: new(tensors[name])}


def _renamed(rename: Callable[[str], str]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {rename(name): tensor for name, tensor in tensors.items()}


def block_number(name: str) -> str:
    """Return the part of a name that numbers its block, such as `.3.` or `_3/`; nothing if it is in none."""
    for part in name.replace("/", ".").replace("encoder_layer_", ".").replace("encoderblock_", ".").split("."):
        if part.isdigit() and ("layer" in name or "block" in name):
            return part
    return ""


def _in_block(name: str, number: str) -> bool:
    return block_number(name) == number


DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool)
RESHAPED: dict[str, Callable[[Tensor], Tensor]] = {
    "without its last row": lambda x: x[:-1],
    "with a row more": lambda x: torch.cat([x, x[:1]]),
    "with a dimension more": lambda x: x[None],
    "flat": lambda x: x.flatten(),
    "empty": lambda x: x[:0],
    "a single number": lambda x: x.flatten()[0],
    "reversed": lambda x: x.flip(0),
}


def tensor_mutants(base: Base, folder: Path, rng: random.Random, count: int) -> Iterator[Mutant]:
    """Yield changes of the weights file: tensors or blocks dropped, renamed, transposed, of another type or shape."""
    tensors = read_weights(folder / base.weights)
    names = list(tensors)
    blocks = sorted({block_number(name) for name in names} - {""}, key=int)
    on = lambda edit: _on_tensors(base.weights, edit)  # noqa: E731
    for number in dict.fromkeys((blocks[-1], blocks[0], rng.choice(blocks))):
        gone = lambda held, number=number: {n: t for n, t in held.items() if not _in_block(n, number)}  # noqa: E731
        yield Mutant("block dropped", f"block {number}", on(gone))
    for suffix in sorted({name.replace("/", ".").rpartition(".")[2] for name in names}):
        groups = {name.replace(block_number(name), "*", 1) if block_number(name) else name for name in names}
        group = rng.choice(sorted(g for g in groups if g.endswith(suffix)))
        head, _, tail = group.partition("*")
        lost = lambda held, head=head, tail=tail: {  # noqa: E731
            n: t for n, t in held.items() if not (n.startswith(head) and n.endswith(tail))
        }
        yield Mutant("layer dropped in every block", group, on(lost))
    outside = [name for name in names if not block_number(name)]
    for name in outside:  # few, and each a part of its own
        yield Mutant("tensor dropped", name, on(lambda held, name=name: {n: t for n, t in held.items() if n != name}))
    while count > 0:
        name, other = rng.choice(names), rng.choice(names)
        kind = rng.choice(("dropped", "renamed", "transposed", "dtype", "shape", "swapped", "added", "prefixed"))
        if rng.random() < 0.25:
            name = rng.choice(outside)
        if kind == "dropped":
            yield Mutant("tensor dropped", name, on(lambda h, name=name: {n: t for n, t in h.items() if n != name}))
        elif kind == "renamed":
            new = rng.choice((
                name + "_old", name.replace("weight", "bias"), name.replace("0", "1", 1), name.replace("norm", "nrom"),
                name.replace("attn", "attention"), "ema_" + name, name.replace("head", "head.0"),
                name.replace("head", "fc"), name.replace("head", "head.fc"), name.replace("norm1", "norm3"),
            ))  # fmt: skip
            if new == name:
                continue
            rename = _renamed(lambda n, name=name, new=new: new if n == name else n)
            yield Mutant("tensor renamed", f"{name} → {new}", on(rename))
        elif kind == "transposed":
            if tensors[name].dim() < 2:
                continue
            yield Mutant("tensor transposed", name, on(_replaced(name, lambda x: x.transpose(-1, -2).contiguous())))
        elif kind == "dtype":
            dtype = rng.choice(DTYPES)
            yield Mutant("dtype changed", f"{name} to {dtype}", on(_replaced(name, lambda x, d=dtype: x.to(d))))
        elif kind == "shape":
            text, new_shape = rng.choice(sorted(RESHAPED.items()))
            yield Mutant("shape changed", f"{name} {text}", on(_replaced(name, new_shape)))
        elif kind == "swapped":
            if tensors[name].shape != tensors[other].shape or name == other:
                continue
            swap = lambda h, a=name, b=other: h | {a: h[b], b: h[a]}  # noqa: E731
            yield Mutant("tensors swapped", f"{name} and {other}", on(swap))
        elif kind == "added":
            new = rng.choice((f"extra.{name}", f"{name}2", name.replace(block_number(name) or "?", "99", 1)))
            if new == name:
                continue
            yield Mutant("tensor added", new, on(lambda h, name=name, new=new: h | {new: h[name].clone()}))
        else:
            prefix = rng.choice(("module.", "model.", "backbone.", "foo.", "ema.", "student."))
            part = rng.choice(("", block_number(name)))
            rename = _renamed(lambda n, p=prefix, part=part: p + n if not part or _in_block(n, part) else n)
            known = not part and prefix in ("module.", "model.", "backbone.")
            yield Mutant("names prefixed", f"{prefix} on {f'block {part}' if part else 'all'}", on(rename), known)
        count -= 1


# --- configs --------------------------------------------------------------------------------------------------


def _on_config(file_name: str, edit: Callable[[Any], None]) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / file_name).read_text())
        edit(config)
        (folder / file_name).write_text(json.dumps(config))

    return change


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and value of every field, sections included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key), item
            yield from leaves(item, (*path, key))


def other_values(value: Any, rng: random.Random) -> list[Any]:
    """Return values that a field could have instead."""
    if isinstance(value, bool):
        return [not value, None, "yes"]
    if isinstance(value, int):
        return [value + 1, value * 2, max(value // 2, 1), 0, -1, None, str(value)]
    if isinstance(value, float):
        return [value * 10, value / 10, 0.0, 1.0, None]
    if isinstance(value, str):
        return [rng.choice(WORDS), "", None]
    if isinstance(value, list):
        return [value[:-1], value * 2, [item * 2 if isinstance(item, int | float) else item for item in value], None]
    if isinstance(value, dict):
        return [{}, None]
    return [1, "mystery", 0.5]


def _at(path: tuple[Any, ...], act: Callable[[Any, Any], None]) -> Callable[[Any], None]:
    def edit(config: Any) -> None:
        for key in path[:-1]:
            config = config[key]
        act(config, path[-1])

    return edit


def config_mutants(base: Base, folder: Path, rng: random.Random, count: int) -> Iterator[Mutant]:
    """Yield changes of the config files: a field removed, changed, or contradicted by another."""
    names = [name for name in (*base.config, "preprocessor_config.json") if (folder / name).exists()]
    found: list[Mutant] = []
    for file_name in names:
        config = json.loads((folder / file_name).read_text())
        for path, value in leaves(config):
            text = f"{file_name}: {'.'.join(map(str, path))}"
            if {"id2label", "label2id", "label_names"} & set(path[:-1]):
                continue
            remove = _at(path, lambda section, key: section.pop(key))
            found.append(Mutant("field removed", text, _on_config(file_name, remove)))
            for new in other_values(value, rng):
                put = _at(path, lambda section, key, new=new: section.__setitem__(key, new))
                found.append(Mutant("field changed", f"{text} = {new!r:.40}", _on_config(file_name, put)))
        if file_name != "config.json" or "vitreous" in config:
            continue
        timms = "architecture" in config
        for extra in STATED["top"]:
            text = f"{file_name}: {extra}"
            found.append(Mutant("field added", text, _on_config(file_name, lambda c, extra=extra: c.update(extra))))
        for extra in STATED["model_args"] if timms else ():
            add = lambda c, extra=extra: c.setdefault("model_args", {}).update(extra)  # noqa: E731
            found.append(Mutant("field added", f"{file_name}: model_args {extra}", _on_config(file_name, add)))
    rng.shuffle(found)
    yield from found[:count]


def mutants(base: Base, folder: Path, rng: random.Random, tensors: int, fields: int) -> Iterator[Mutant]:
    """Yield about so many mutants of the tensors and of the config of the sound checkpoint in `folder`."""
    yield from tensor_mutants(base, folder, rng, tensors)
    yield from config_mutants(base, folder, rng, fields)


# --- judging --------------------------------------------------------------------------------------------------


def judge(base: Base, sound: Path, mutant: Mutant | None, folder: Path) -> tuple[str, str]:
    """Return (`refused`, `same`, `silent` or `crash`, why) for a mutant; `folder` is emptied and used for its files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    if mutant is not None:
        mutant.change(folder)
    target = folder if base.config else folder / base.weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours = load(target, assume=base.assume)
            pixels = ours.card.preprocess(photo())  # a model that takes no photo at all is refused, too
        except (ValueError, OSError) as error:
            text = str(error).replace(str(folder), "")
            return ("crash", f"several lines: {text!r:.200}") if "\n" in text else ("refused", text)
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            return "crash", f"{type(error).__name__}: {error!s:.160} ({Path(line.filename).name}:{line.lineno})"
        try:
            original = base.original(sound if mutant is not None and mutant.harmless else folder)
        except Exception as error:
            return "silent", f"the original fails: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
        said = "preprocessing" in ours.card.report.assumed  # such as a crop for a processor without one size
        if ours.config.size != original.size and not said:
            return "silent", f"image size {ours.config.size} instead of {original.size}"
        image = torch.randn(1, ours.config.channels, *ours.config.size, generator=torch.Generator().manual_seed(1))
        try:
            with torch.no_grad():
                theirs = original.outputs(image)
                tokens = theirs.dim() == 3
                mine = ours.forward_features(image)[:, -theirs.shape[1] :] if tokens else ours(image)
        except Exception as error:
            return "silent", f"the original fails: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
        if found := difference(mine, theirs):
            return "silent", found
        if original.answers not in (None, answers := (ours.card.task, ours.card.thresholds)):
            return "silent", f"task and thresholds {answers} instead of {original.answers}"
        if original.preprocess is not None and not said:
            theirs = original.preprocess(photo())
            if pixels.shape != theirs.shape:
                return "silent", f"preprocessing gives {tuple(pixels.shape)} instead of {tuple(theirs.shape)}"
            level = (theirs.max() - theirs.min()).item() / 255  # libraries round a resized image differently
            if (largest := (pixels - theirs).abs().max().item()) > 4 * level:
                return "silent", f"preprocessing differs by {largest:.2g}"
    return "same", ""
