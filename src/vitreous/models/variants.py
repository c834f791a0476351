"""`VARIANTS`: model name → `ViTConfig`, with timm's names (`vit_base_patch16_224`).

`variant(name)` also reads a name with a tag (`vit_base_patch16_224.augreg2_in21k_ft_in1k`), torchvision's names
(`vit_b_16`) and the paper's (`B/16`). Fields may follow a name: `vit_femto_patch4_32:position=sine-1d,channels=1`.
"""

import difflib
import re
from dataclasses import fields, replace
from typing import Any

from vitreous.models.vit_config import ViTConfig

SIZES: dict[str, dict[str, int]] = {  # table 1 of the paper; Ti and S from DeiT; g and G from "Scaling ViTs"
    "tiny": {"width": 192, "depth": 12, "heads": 3},
    "small": {"width": 384, "depth": 12, "heads": 6},
    "medium": {"width": 512, "depth": 12, "heads": 8},
    "base": {"width": 768, "depth": 12, "heads": 12},
    "large": {"width": 1024, "depth": 24, "heads": 16},
    "huge": {"width": 1280, "depth": 32, "heads": 16},
    "giant": {"width": 1408, "depth": 40, "heads": 16, "mlp_width": 6144},
    "gigantic": {"width": 1664, "depth": 48, "heads": 16, "mlp_width": 8192},
}
SMALL_SIZES: dict[str, dict[str, int]] = {  # for images of 8 to 64 px; these names are ours
    "femto": {"width": 32, "depth": 4, "heads": 8},  # a from-scratch model for MNIST: 98 % after 20 epochs
    "pico": {"width": 64, "depth": 4, "heads": 4},
    "nano": {"width": 128, "depth": 6, "heads": 4},
    "micro": {"width": 256, "depth": 8, "heads": 4},
    "mini": {"width": 384, "depth": 10, "heads": 6},
}
LETTERS = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge", "g": "giant", "G": "gigantic"}

DEIT3: dict[str, Any] = {"layer_scale": 1e-6, "prefix_positions": False}
DINOV2: dict[str, Any] = {"layer_scale": 1e-5, "classes": 0}
DINOV2_GIANT: dict[str, Any] = {"width": 1536, "depth": 40, "heads": 24, "mlp_width": 4096, "swiglu": True}
REGISTERS: dict[str, Any] = {"registers": 4, "prefix_positions": False}
CLIP: dict[str, Any] = {"embedding_norm": True, "patch_bias": False, "norm_eps": 1e-5}


def _family() -> dict[str, ViTConfig]:
    """Build the table of variants: timm's names and the paper's sizes."""
    found: dict[str, ViTConfig] = {}

    def add(name: str, size: dict[str, int], patch: int, image: int, **changes: Any) -> None:
        found[name] = ViTConfig(image_size=image, patch_size=patch, **{**size, **changes})

    plain = {"tiny": (16,), "small": (32, 16, 8), "base": (32, 16, 8), "large": (32, 16, 14)}
    for size, patches in plain.items():
        for patch in patches:
            for image in (224,) if patch in (8, 14) else (224, 384):
                add(f"vit_{size}_patch{patch}_{image}", SIZES[size], patch, image)
    for size in ("huge", "giant", "gigantic"):
        add(f"vit_{size}_patch14_224", SIZES[size], 14, 224)

    for size in ("tiny", "small", "base"):
        for image in (224, 384) if size == "base" else (224,):
            add(f"deit_{size}_patch16_{image}", SIZES[size], 16, image)
            two = {"distillation_token": True, "distillation_head": True}
            add(f"deit_{size}_distilled_patch16_{image}", SIZES[size], 16, image, **two)
    for size in ("small", "medium", "base", "large"):
        for image in (224,) if size == "medium" else (224, 384):
            add(f"deit3_{size}_patch16_{image}", SIZES[size], 16, image, **DEIT3)
    add("deit3_huge_patch14_224", SIZES["huge"], 14, 224, **DEIT3)

    for size in ("small", "base", "large", "giant"):
        shape = DINOV2_GIANT if size == "giant" else SIZES[size]
        add(f"vit_{size}_patch14_dinov2", shape, 14, 518, **DINOV2)
        add(f"vit_{size}_patch14_reg4_dinov2", shape, 14, 518, **DINOV2, **REGISTERS)

    for size, patch, image, classes in (
        ("base", 32, 224, 512),
        ("base", 16, 224, 512),
        ("large", 14, 224, 768),
        ("large", 14, 336, 768),
        ("huge", 14, 224, 1024),
    ):
        add(f"vit_{size}_patch{patch}_clip_{image}", SIZES[size], patch, image, classes=classes, **CLIP)
        quick = {"classes": classes, "activation": "quick_gelu", **CLIP}
        add(f"vit_{size}_patch{patch}_clip_quickgelu_{image}", SIZES[size], patch, image, **quick)

    for size, patch, image in (
        ("pico", 2, 8),
        ("femto", 4, 28),
        ("femto", 4, 32),
        ("pico", 4, 28),
        ("nano", 4, 32),
        ("micro", 4, 32),
        ("micro", 2, 32),
        ("mini", 4, 32),
        ("micro", 8, 64),
        ("mini", 8, 64),
    ):
        add(f"vit_{size}_patch{patch}_{image}", SMALL_SIZES[size], patch, image, classes=10)
    for patch in (2, 4):
        add(f"vit_tiny_patch{patch}_32", SIZES["tiny"], patch, 32, classes=10)
    return found


VARIANTS: dict[str, ViTConfig] = _family()


def variant(name: str, **changes: Any) -> ViTConfig:
    """Look up the variant of a model name, its config, and change any of its fields.

    >>> variant("vit_tiny_patch16_224.augreg_in21k_ft_in1k", classes=5).width
    192
    >>> variant("B/16").depth, variant("L/32", image_size=384).grid, variant("vit_b_16").heads
    (12, (12, 12), 12)
    >>> variant("vit_femto_patch4_32:position=sine-1d,channels=1").position
    'sine-1d'
    """
    name, stated = split_changes(name, ViTConfig)
    plain = name.removeprefix("timm/").split(".")[0]
    if match := re.fullmatch(r"(Ti|S|B|L|H|g|G)/(\d+)", name):
        plain = f"vit_{LETTERS[match[1]]}_patch{match[2]}_224"
    elif match := re.fullmatch(r"vit_([blh])_(\d+)", plain):
        plain = f"vit_{LETTERS[match[1].upper()]}_patch{match[2]}_224"
    if plain not in VARIANTS:
        close = difflib.get_close_matches(plain, VARIANTS, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`vitreous models` lists the known ones"
        raise ValueError(f"no variant is called {name!r}: {hint}")
    found, changes = VARIANTS[plain], stated | changes
    if "width" in changes and found.mlp_width == 4 * found.width:
        changes = {"mlp_width": 0} | changes  # four times the new width, as the paper has it
    return replace(found, **changes)


def split_changes(name: str, config: type) -> tuple[str, dict[str, Any]]:
    """Split a variant's name from the fields of `config` that follow and change it, each as the type of its default.

    >>> split_changes("vit_femto_patch4_32:channels=1,pool=mean", ViTConfig), split_changes("B/16", ViTConfig)
    (('vit_femto_patch4_32', {'channels': 1, 'pool': 'mean'}), ('B/16', {}))
    """
    if (match := re.fullmatch(r"([^:]+):(\w+=[^,=]+(?:,\w+=[^,=]+)*)", name)) is None:
        return name, {}
    known: dict[str, Any] = {field.name: field.default for field in fields(config)}
    found: dict[str, Any] = {}
    for part in match[2].split(","):
        key, _, text = part.partition("=")
        default = known.get(key)
        if key not in known or key == "classes" or isinstance(default, tuple):
            raise ValueError(f"{name}: {key} is no field of {config.__name__} that a name can state")
        if key in found:
            raise ValueError(f"{name} states {key} twice: keep one")
        words = {"true": True, "yes": True, "false": False, "no": False}
        try:
            found[key] = words[text.lower()] if isinstance(default, bool) else type(known[key])(text)
        except (KeyError, ValueError):
            raise ValueError(f"{name}: {key} takes a value such as {default}, got {text!r}") from None
    return match[1], found
