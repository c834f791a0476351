"""`--assume FIELD=VALUE` and `load(assume={…})`: what the user says about a checkpoint where its files do not.

A field is one of `ViTConfig`'s; two more are `architecture`, a known name that states all fields, and `ignored`: keys
of tensors or fields of the config file to load without. `image_size` is the size that the checkpoint was trained at.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from vitreous.models.vit_config import ViTConfig
from vitreous.weights.timm_architectures import find_architecture

DEFAULTS = {field.name: field.default for field in fields(ViTConfig)}
WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_assumptions(lines: Iterable[str]) -> dict[str, Any]:
    """Read `FIELD=VALUE` as the command line writes it; `check_assumptions` checks the result.

    >>> parse_assumptions(["heads=6", "image_size=24x48", "qkv_bias=no", "ignored=mask_token"])
    {'heads': 6, 'image_size': (24, 48), 'qkv_bias': False, 'ignored': ('mask_token',)}
    """
    found: dict[str, Any] = {}
    for line in lines:
        name, equals, text = line.partition("=")
        if not equals or not text:
            raise ValueError(f"--assume takes FIELD=VALUE, such as heads=6, got {line!r}")
        value = (*found.get(name, ()), *text.split(",")) if name == "ignored" else _parse_value(name, text)
        if name != "ignored" and found.get(name, value) != value:
            raise ValueError(f"--assume {name} is given twice, as {found[name]} and as {value}: keep one")
        found[name] = value
    return found


def check_assumptions(assume: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the user's assumptions in one form; a name that is no field, or a value of another type, is an error."""
    if not isinstance(assume, Mapping | None):
        raise ValueError(f"assume takes a dict, such as {{'heads': 6}}, got {assume!r:.60}")
    checked = dict(assume or {})
    for name in checked:
        if name not in (known := (*DEFAULTS, "architecture", "ignored")):
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else "expected a field of vitreous.ViTConfig, architecture or ignored"
            )
            raise ValueError(f"nothing called {name} can be assumed: {hint}")
    if "ignored" in checked:
        keys = checked["ignored"]
        checked["ignored"] = (keys,) if isinstance(keys, str) else tuple(str(key) for key in keys)
    if "architecture" in checked:
        entry = find_architecture(str(checked["architecture"]))
        if entry is None or entry.unsupported:
            raise ValueError(f"the architecture {checked['architecture']!r} is not a supported one of timm's")
        checked["architecture"] = entry.name
    for name in ("image_size", "patch_size"):
        if name in checked:
            value = checked[name]
            sides = tuple(value) if isinstance(value, tuple | list) else (value, value)
            if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
                raise ValueError(f"{name} must be one or two whole numbers of pixels, got {value!r:.60}")
            checked[name] = sides
    for name, value in checked.items():
        kind = type(DEFAULTS.get(name, value))
        fits = type(value) is kind or (kind is float and type(value) is int) or name in ("image_size", "patch_size")
        if not fits:
            raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r:.60}")
    return checked


def _parse_value(name: str, text: str) -> Any:
    """Parse the text of an assumption to the type of its field."""
    default = DEFAULTS.get(name, "")
    try:
        if name in ("image_size", "patch_size"):
            sides = tuple(int(side) for side in re.split(r"[x×,]", text))
            return sides if len(sides) > 1 else (sides[0], sides[0])
        if isinstance(default, tuple):
            return tuple(int(number) for number in text.split(","))
        if isinstance(default, bool):
            return WORDS[text.lower()]
        if isinstance(default, int | float):
            return type(default)(text)
    except (ValueError, KeyError):
        raise ValueError(f"--assume {name} takes a value such as {default}, got {text!r}") from None
    return text


def without_fields(section: Mapping[str, Any], ignored: Iterable[str]) -> dict[str, Any]:
    """Apply `--assume ignored=FIELD`: return a config file's content without such fields, in its sections too.

    >>> without_fields({"architecture": "vit", "pretrained_cfg": {"tags": 3, "url": ""}}, ["tags"])
    {'architecture': 'vit', 'pretrained_cfg': {'url': ''}}
    """
    return {
        name: without_fields(value, ignored) if isinstance(value, Mapping) else value
        for name, value in section.items()
        if name not in ignored
    }


def as_flag(value: Any) -> str:
    """Write a field's value as the user writes it after `--assume`."""
    return "x".join(str(side) for side in value) if isinstance(value, tuple) else str(value)
