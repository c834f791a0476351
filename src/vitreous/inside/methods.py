"""`METHODS`: every method of heat maps with its paper and its cost, called in the same way.

To add one: write its module in this folder and add a line here; `vitreous compare --maps` then measures it beside the
others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.inside.attention import class_maps, readout
from vitreous.inside.capture import capture, underneath
from vitreous.inside.faithfulness import centre_map, random_map
from vitreous.inside.grad_cam import grad_cam, grad_cam_plus_plus
from vitreous.inside.hiding import HiddenPatches, log_odds
from vitreous.inside.occlusion import occlusion, rise
from vitreous.inside.pixel_gradients import gradient_input, integrated_gradients, smooth_grad, to_patches
from vitreous.inside.pruned_gradients import pruned_gradients
from vitreous.inside.relevance import gradient_attention, relevance
from vitreous.inside.removal import COSTS, removal
from vitreous.inside.rollout import rollout_map, value_norm_rollout
from vitreous.models.vit import ViT

Compute = Callable[[nn.Module, Tensor, int | None], Tensor]


@dataclass(frozen=True)
class Method:
    """A way to make a heat map of one image."""

    compute: Compute
    """A model, an image `[1 c H W]` and a class (None: the predicted one) → `[1 rows columns]`."""
    paper: str
    forward: int = 1
    """Forward passes for one map of 196 patches."""
    backward: int = 0
    """Backward passes."""
    fitted: tuple[str, ...] = ()
    """Ways of removing patches that the method itself uses: it is not judged by them."""
    vit: bool = False
    """Whether it needs a ViT's tokens."""
    trained: bool = True
    """Whether it depends on the model at all."""

    def __call__(self, model: nn.Module, x: Tensor, target: int | None = None) -> Tensor:
        """Compute the map of one image: `[1 c H W]` → `[rows columns]`."""
        return self.compute(model, x, target)[0].detach().float()


def patch_grid(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the grid of every method's maps: a ViT's patches, or the cells of a ResNet's last stage."""
    if hasattr(model, "layer4"):
        pixels: int = model.config.stride  # type: ignore[assignment]
        return -(-x.shape[-2] // pixels), -(-x.shape[-1] // pixels)
    grid: tuple[int, int] = underneath(model)[0].layout.grid
    return grid


def _attention(model: nn.Module, x: Tensor, target: int | None) -> Tensor:
    plain, _ = underneath(model)
    with torch.no_grad(), capture(model, "attention", layers=[plain.config.last_read]) as internals:
        model(x)
    if plain.config.dense != "none":  # the patches around a pixel are asked, not the class token
        attention = internals.stack("attention")[0].mean(dim=1)  # over heads: [1 t t]
        return plain.layout.to_grid(readout(plain).to(attention) @ attention)
    return class_maps(internals, plain.layout)[0].mean(dim=1)  # over heads


def _in_patches(parts: Callable[..., Tensor], *, size: bool = False) -> Compute:
    """Make one of the methods of heat maps from a function whose parts `[b c H W]` are summed over each patch.

    With `size`, their absolute values are summed.
    """

    def compute(model: nn.Module, x: Tensor, target: int | None) -> Tensor:
        found = parts(model, x, target)
        return _sums(model, found.abs() if size else found)

    return compute


def _rise(model: nn.Module, x: Tensor, target: int | None) -> Tensor:
    return _sums(model, rise(model, x, target)[:, None])


def _sums(model: nn.Module, pixels: Tensor) -> Tensor:
    """Sum one of the methods' maps of pixels `[b c H W]` over the cells of the grid of every method."""
    return to_patches(pixels, patch_grid(model, pixels) if hasattr(model, "layer4") else underneath(model)[0].layout)


def removal_method(passes: int) -> Method:
    """`removal` with this many passes, beginning from pruned gradients in a ViT and from CAM in a ResNet."""

    def compute(model: nn.Module, x: Tensor, target: int | None) -> Tensor:
        if target is None:
            with torch.no_grad():
                target = int(model(x).argmax())
        prior = grad_cam if hasattr(model, "layer4") else pruned_gradients
        hidden = HiddenPatches(model, x, patch_grid(model, x), batch_size=128)
        found = removal(
            lambda kept, operator: log_odds(hidden(kept, operator), target),
            prior(model, x, target)[0],
            passes=passes,
            operators=hidden.operators,
        )
        return found.map.to(x.device)[None]

    fitted = ("blur",) if passes <= COSTS["quick"] else ("blur", "removed")  # tokens are left out in later rounds alone
    return Method(compute, "this package", forward=passes + 1, backward=1, fitted=fitted)


METHODS: dict[str, Method] = {
    "removal-1024": removal_method(COSTS["thorough"]),
    "removal-256": removal_method(COSTS["middle"]),
    "removal-64": removal_method(COSTS["quick"]),
    "relevance": Method(relevance, "Chefer et al., 2021", backward=1, vit=True),
    "gradient × attention": Method(gradient_attention, "Chefer et al., 2021", backward=1, vit=True),
    "attention": Method(_attention, "Dosovitskiy et al., 2021", vit=True),
    "rollout": Method(lambda model, x, target: rollout_map(model, x), "Abnar & Zuidema, 2020", vit=True),
    "value-norm rollout": Method(
        lambda model, x, target: value_norm_rollout(model, x), "Kobayashi et al., 2020", vit=True
    ),
    "CAM": Method(grad_cam, "Selvaraju et al., 2017 (Grad-CAM)", backward=1),
    "Grad-CAM++": Method(grad_cam_plus_plus, "Chattopadhay et al., 2018", backward=1),
    "gradient × input": Method(_in_patches(gradient_input), "Shrikumar et al., 2016", backward=1),
    "pruned gradients": Method(pruned_gradients, "Ali et al., 2022; Mehri et al., 2025", backward=1, vit=True),
    "SmoothGrad": Method(_in_patches(smooth_grad, size=True), "Smilkov et al., 2017", forward=33, backward=32),
    "integrated gradients": Method(
        _in_patches(integrated_gradients), "Sundararajan et al., 2017", forward=17, backward=16, fitted=("black",)
    ),
    "occlusion": Method(
        lambda model, x, target: occlusion(model, x, target, grid=patch_grid(model, x)),
        "Zeiler & Fergus, 2014",
        forward=197,
        fitted=("mean",),
    ),
    "RISE": Method(_rise, "Petsiuk et al., 2018", forward=1025, fitted=("mean",)),
    "centre": Method(
        lambda model, x, target: centre_map(patch_grid(model, x)).to(x)[None], "a baseline", forward=0, trained=False
    ),
    "random": Method(
        lambda model, x, target: random_map(patch_grid(model, x)).to(x)[None], "a baseline", forward=0, trained=False
    ),
}
"""RISE multiplies the preprocessed image by its masks, which is close to showing the mean colour."""


def choose_methods(names: tuple[str, ...], model: nn.Module) -> dict[str, Method]:
    """Choose the methods of heat maps of these names, or all that the model allows.

    >>> list(choose_methods(("relevance", "rollout"), ViT.__new__(ViT)))
    ['relevance', 'rollout']
    """
    vit = isinstance(model, ViT)
    for name in names:
        if name not in METHODS:
            raise ValueError(f"no method is called {name!r}: the methods are {', '.join(METHODS)}")
        if METHODS[name].vit and not vit:
            raise ValueError(f"the method {name!r} needs the tokens of a ViT: leave it out for a ResNet")
    return {name: METHODS[name] for name in (names or METHODS) if vit or not METHODS[name].vit}
