"""The live page: the report with the network inside, which answers for other images without Python or a network.

`pack_network` writes weights, config and preprocessing for `pages/assets/network.js`, which runs them in WebAssembly;
`round_weights` gives the same network to Python, so that what the report shows is what the page computes. The page is
the explorer's front end with a worker in the server's place: `live.js` answers what `server.js` would ask.
"""

import copy
import gzip
import hashlib
import io
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.inside import contributions
from vitreous.inside.artifacts import FACTOR, describe_artifacts, has_registers
from vitreous.inside.faithfulness import centre_map, random_map
from vitreous.inside.removal import COSTS, RANDOM_BLOBS, RANDOM_SHARES, draw_masks
from vitreous.models.text import SentenceHead
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.payload import Payload
from vitreous.pages.render import ASSETS, COMMENT, IMPORTED, POLICY, render, scripted_page
from vitreous.runtime.files import write_atomic, write_text
from vitreous.views import evidence
from vitreous.views.inspection import EXPLAINED, LARGEST_ATTENTION, Inspection
from vitreous.weights.load import Model

LivePrecision = Literal["fp16", "int8"]
PRECISIONS: dict[LivePrecision, str] = {"fp16": "16 bits each", "int8": "rounded to 8 bits each"}
"""How weights are stored in a live page, in the page's words."""
LIVE_VIEWS = (
    "predictions", "attention-rows", "attention-maps", "attention-matrix", "rollout", "similarity", "lens",
    "token-norms", "distance", "entropy", "story", "input", "patches", "pruned-gradients", "removal", "evidence",
    "ablation",
)  # fmt: skip
"""What the page computes by itself for another image, or another state of the network."""
MODEL_VIEWS = ("positions", "filters", "architecture", "shapes", "card")
"""What is the same for every image."""
UNKNOWN: dict[str, tuple[object, ...]] = {
    "rope": ("none",), "relative_position": ("none",), "talking_heads": (False,), "stem": ("none",),
    "post_norm": (False,), "attention_norm": (False,), "mlp_norm": (False,), "channels": (1, 3),
    "pool": ("token", "mean", "token+mean"), "head_norm": (False,), "dense": ("none",), "residual_norm": (False,),
}  # fmt: skip
"""Fields of a config, and the values that `network.js` knows."""
LARGE_BYTES = 100_000_000
"""A page beyond which it is slow to open."""
BYTES: dict[LivePrecision, float] = {"fp16": 2.2, "int8": 1.2}
"""Bytes of a page for each weight: compressed, in base 85."""
GFLOPS = 25.0
"""Billions of operations a second of `kernels.wasm` on one ordinary core, to tell how long a pass takes."""
LIVE_POLICY = POLICY.replace("data:;", "data: 'wasm-unsafe-eval';", 1) + "; worker-src blob:"
EXPORT = re.compile(r"^export ", re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function\*?|class|const) (\w+)", re.MULTILINE)
IMPORT = re.compile(r'^import (.*) from "\./([a-z]+\.js)";', re.MULTILINE)


def check_live(model: Model) -> ViT:
    """Return the model if a live page can hold it; a `ValueError` says why not.

    >>> from vitreous.models.vit_config import ViTConfig
    >>> check_live(ViT(ViTConfig(rope="axial")))
    Traceback (most recent call last):
    ValueError: a live page cannot run this model: it has rope='axial', and the page knows none
    """
    cannot = "a live page cannot run this model"
    if not isinstance(model, ViT):
        raise ValueError(f"{cannot}: it is a {type(model).__name__}, and the page knows Vision Transformers")
    config = model.config
    assert isinstance(config, ViTConfig)
    for name, known in UNKNOWN.items():
        if (value := getattr(config, name)) not in known:
            raise ValueError(
                f"{cannot}: it has {name}={value!r}, and the page knows {' or '.join(str(each) for each in known)}"
            )
    if has_registers(model):
        raise ValueError(f"{cannot}: it has test-time registers, and the page does not: load it without")
    if isinstance(model.head, SentenceHead):
        raise ValueError(f"{cannot}: its classes are sentences, and the page has no text tower")
    if model.card is not None and model.card.task != "classify":
        raise ValueError(f"{cannot}: its task is to {model.card.task}, and the page names one class")
    if not config.classes or (model.card is not None and model.card.head != "classifier"):
        raise ValueError(f"{cannot}: it has no classifier, and the page explains answers")
    if config.width % 8 or config.mlp_width % 8:
        raise ValueError(f"{cannot}: widths must be multiples of 8, got {config.width} and {config.mlp_width}")
    if config.depth * config.heads * model.layout.tokens**2 > LARGEST_ATTENTION:
        raise ValueError(f"{cannot}: the attention of {model.layout.tokens} tokens does not fit a page")
    return model


def warn_large(model: ViT, precision: LivePrecision) -> str | None:
    """Say how large a live page becomes and how long an answer takes, where that is much; None for a small model."""
    count = sum(parameter.numel() for parameter in model.parameters())
    if (size := BYTES[precision] * count) < LARGE_BYTES:
        return None
    operations = 2 * model.layout.tokens * sum(weight.numel() for _, weight in _matrices(model))
    seconds = operations / GFLOPS / 1e9
    return (
        f"a large page: about {size / 1e6:,.0f} MB, {4 * count / 1e6:,.0f} MB of memory once open, {seconds:.0f} s an "
        f"answer and {math.ceil(COSTS['quick'] * seconds / 60)} min a removal map"
    )


def round_weights(model: ViT, precision: LivePrecision) -> ViT:
    """Return a copy of the model whose matrices are those that a live page of this precision holds."""
    rounded = copy.copy(model)
    rounded._modules = copy.deepcopy(model._modules)
    rounded._parameters = copy.deepcopy(model._parameters)
    with torch.no_grad():
        for _, weight in _matrices(rounded):
            weight.copy_(_rounded(weight, precision))
    return rounded.eval()


def _rounded(weight: Tensor, precision: LivePrecision) -> Tensor:
    """Round a matrix of the network in a live page to 16-bit floats, or to 8-bit integers with a scale for each row."""
    if precision == "fp16":
        return weight.half().to(weight)
    scale = _scales(weight)
    return ((weight.float().flatten(1) / scale[:, None]).round() * scale[:, None]).view(weight.shape).to(weight)


def _scales(weight: Tensor) -> Tensor:
    """Compute the scale of each row of a live page's matrix: its largest value becomes 127."""
    peak = weight.detach().float().flatten(1).abs().amax(dim=1)
    return torch.where(peak > 0, peak / 127, torch.ones_like(peak))


def _matrices(model: ViT) -> Iterator[tuple[str, Tensor]]:
    """List the matrices of a live page by the names that `network.js` gives them."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            yield name, module.weight
    yield "head", model.head.weight  # type: ignore[misc]  # there are classes
    if model.head_dist is not None:
        yield "head_dist", model.head_dist.weight  # type: ignore[misc]


def _vectors(model: ViT) -> Iterator[tuple[str, Tensor]]:
    """List biases, norms, layer scales, tokens and positions of a live page by their names in `network.js`."""
    for name in ("cls_token", "dist_token", "reg_token", "pos_embed"):
        if (value := getattr(model, name)) is not None:
            yield name, value
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is not None:
            yield name, module.weight
        if isinstance(bias := getattr(module, "bias", None), Tensor):
            yield f"{name}.bias", bias
        if (gamma := getattr(module, "gamma", None)) is not None:
            yield name, gamma


def pack_network(model: ViT, precision: LivePrecision = "fp16") -> Payload:
    """Put the network into a live page: matrices in a precision, everything else as it is, config, kernels, constants.

    16-bit floats are stored as all their low bytes, then all their high ones, which gzip makes a tenth smaller.
    """
    check_live(model)
    config, card = model.config, model.card
    vectors: list[np.ndarray] = []
    matrices: list[np.ndarray] = []
    entries: list[dict[str, Any]] = []
    listed: list[dict[str, Any]] = []
    at = 0
    for name, value in _vectors(model):
        vectors.append(value.detach().cpu().float().flatten().numpy())
        entries.append({"name": name, "shape": [vectors[-1].size], "offset": at})
        at += vectors[-1].size
    tensors = {"vectors": entries, "matrices": listed}
    at = 0
    scales = []
    for name, weight in _matrices(model):
        flat = weight.detach().cpu().float().flatten(1)
        if precision == "int8":
            scale = _scales(flat)
            scales.append(scale.numpy())
            matrices.append((flat / scale[:, None]).round().to(torch.int8).numpy().view(np.uint8).ravel())
        else:
            if not torch.isfinite(half := flat.half()).all():
                raise ValueError(f"{name} holds numbers beyond 65,504, which 16 bits cannot: use --live int8")
            matrices.append(half.numpy().view(np.uint8).reshape(-1, 2).T.copy())  # [2 nk]
        listed.append({"name": name, "shape": list(flat.shape), "offset": at})
        at += flat.numel()
    grid = config.grid
    network = {
        "config": {
            **{name: getattr(config, name) for name in CONFIG},
            "grid": list(grid),
            "size": list(config.size),
            "patch": list(config.patch),
        },
        "preprocess": {"pad": False, **card.preprocess.to_dict()},
        "described": card.preprocess.describe(),
        "tensors": tensors,
        "precision": precision,
        "constants": CONSTANTS,
    }
    payload = Payload({"network": network})
    payload.add("vectors", np.concatenate(vectors))
    if scales:
        payload.add("scales", np.concatenate(scales))
    generator = torch.Generator().manual_seed(0)  # the masks of `removal` at its quick setting
    masks = draw_masks(grid, COSTS["quick"], RANDOM_SHARES, RANDOM_BLOBS, generator)
    rivals = torch.stack([random_map(grid, seed) for seed in range(evidence.DRAWS)] + [centre_map(grid)])
    payload.add("masks", masks.numpy().astype(np.uint8))
    payload.add("rivals", rivals.flatten(1).argsort(dim=1, descending=True, stable=True).numpy().astype(np.int32))
    payload.add_bytes("kernels", (ASSETS / "kernels.wasm").read_bytes())
    payload.add_bytes("matrices", np.concatenate(matrices, axis=-1).tobytes())  # the last: the page lets go of them
    return payload


CONFIG = (
    "channels", "classes", "width", "depth", "heads", "mlp_width", "pool", "class_token", "distillation_token",
    "distillation_head", "registers", "prefix_positions", "qk_norm", "swiglu", "activation", "norm_eps",
    "embedding_norm", "final_norm", "fc_norm", "norm", "patch_norm",
)  # fmt: skip
"""Fields of a config that `network.js` reads; the others are in the weights."""
CONSTANTS = {
    "explained": EXPLAINED,
    "outlier": FACTOR,
    "artifacts": [describe_artifacts(count, "{block}", "{norm}", "{usual}") for count in ("1", "{count}")],
    "shares": evidence.SHARES,
    "answers": evidence.ANSWERS,
    "margin": evidence.MARGIN,
    "lost": evidence.LOST,
    "largest": evidence.LARGEST,
    "plain": evidence.PLAIN,
    "reaches": contributions.REACHES,
    "noises": contributions.NOISES.tolist(),
    "floor": contributions.FLOOR,
    "leastWeight": contributions.LEAST_WEIGHT,
    "leastLeft": contributions.LEAST_LEFT,
}
"""Numbers of the algorithms that the page repeats, from where Python has them."""


def bundle(script: str) -> str:
    """Join a script of the live page and all that it imports to one text, for a worker, which has no import map."""
    texts: dict[str, str] = {}

    def visit(name: str) -> None:
        text = COMMENT.sub("", (ASSETS / name).read_text(encoding="utf-8"))
        for needed in IMPORTED.findall(text):
            if needed not in texts:
                visit(needed)
        names = ", ".join(EXPORTED.findall(text))
        text = IMPORT.sub(r'const \1 = modules["\2"];', EXPORT.sub("", text))
        texts[name] = f'modules["{name}"] = (() => {{\n{text}return {{ {names} }};\n}})();\n'

    visit(script)
    return '"use strict";\nconst modules = {};\n' + "".join(texts.values())


def live_page(title: str, pages: Sequence[tuple[str, Payload]], model: ViT, precision: LivePrecision) -> str:
    """Render the live page: reports of images, whose words are the templates of others, and the network inside."""
    network = pack_network(model, precision)
    return _page(title, pages, model, precision, network=network.to_text())


def live_site(
    folder: Path, title: str, pages: Sequence[tuple[str, Payload]], model: ViT, precision: LivePrecision
) -> list[Path]:
    """Write the live page as a static web site: `index.html`, and the weights beside it under a name of their own."""
    data = gzip.compress(pack_network(model, precision).to_bytes(), mtime=0)
    name = f"network-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    html = _page(title, pages, model, precision, address=name, size=len(data))
    write_atomic(folder / name, partial(Path.write_bytes, data=data))
    write_text(folder / "index.html", html)
    return [folder / "index.html", folder / name]


def _page(
    title: str,
    pages: Sequence[tuple[str, Payload]],
    model: ViT,
    precision: LivePrecision,
    *,
    network: str = "",
    address: str = "",
    size: int = 0,
) -> str:
    """Render the live page, with the network inside or at an address beside it."""
    count = sum(parameter.numel() for parameter in model.parameters())
    body = render(
        "live.html",
        live=" ".join(LIVE_VIEWS),
        model=" ".join(MODEL_VIEWS),
        network=address,
        bytes=size,
        about=f"{count / 1e6:.1f} million weights, {PRECISIONS[precision]}",
    )
    return scripted_page(
        title,
        body,
        "explorer.js",
        pages,
        styles=["explorer.css", "live.css"],
        policy=LIVE_POLICY + "; connect-src 'self'" if address else LIVE_POLICY,
        instead={"server.js": "live.js"},
        worker=bundle("worker.js"),
        network=network,
    )


def add_seen(payload: Payload, inspection: Inspection) -> None:
    """Add what the model sees of an image to a live page, without loss, so that the page can ask again."""
    file = io.BytesIO()
    inspection.view.save(file, "PNG")
    payload.add_bytes("seen", file.getvalue())
