"""Gradients by pixels: gradient × input, SmoothGrad and integrated gradients, and their sums over patches.

- gradient × input (Shrikumar et al., 2016): one gradient, times the image.
- SmoothGrad (Smilkov et al., 2017): the gradient, averaged over noisy copies of the image.
- integrated gradients (Sundararajan et al., 2017): the gradient, averaged along the straight line from a baseline to
  the image, times their difference. Contributions add up to the difference of the two logits ("completeness"), up to
  the quadrature error.
"""

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.inside.gradients import Target, chosen_classes, class_score, differentiable
from vitreous.models.token_layout import TokenLayout


def gradient_input(model: nn.Module, x: Tensor, target: Target = None) -> Tensor:
    """Compute gradient × input, a class's gradient at each pixel times the pixel: images `[b c H W]` → `[b c H W]`.

    For a linear model these are the parts that add up to the logit. `to_patches` adds them up over patches.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2, bias=False))
    >>> x = torch.randn(1, 3, 2, 2)
    >>> torch.allclose(gradient_input(model, x, target=1).sum(), model(x)[0, 1], atol=1e-6)
    True
    """
    with differentiable(x) as x:
        (gradient,) = torch.autograd.grad(class_score(model(x), target), x)
    return x.detach() * gradient


def smooth_grad(
    model: nn.Module,
    x: Tensor,
    target: Target = None,
    *,
    copies: int = 32,
    noise: float = 0.15,
    seed: int = 0,
    batch_size: int = 32,
) -> Tensor:
    """Compute SmoothGrad, the mean gradient of a class's logit over noisy copies: images `[b c H W]` → `[b c H W]`.

    `noise` is the standard deviation as a share of the image's range; every second copy has the noise of the one
    before with the other sign, and all images have the same noise. A heat map is the size of the gradient:
    `to_patches(smooth_grad(…).abs(), grid)`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    >>> x = torch.randn(1, 3, 2, 2)
    >>> torch.allclose(smooth_grad(model, x, target=1).flatten(), model[1].weight[1], atol=1e-6)
    True
    """
    if copies < 2 or copies % 2:
        raise ValueError(f"copies come in pairs: expected an even number from 2 on, got {copies}")
    with torch.no_grad():
        classes = chosen_classes(model(x), target)  # of the image without noise
    scale = noise * (x.amax(dim=(1, 2, 3), keepdim=True) - x.amin(dim=(1, 2, 3), keepdim=True))  # [b 1 1 1]
    drawn = torch.randn(copies // 2, 1, *x.shape[1:], generator=torch.Generator().manual_seed(seed)).to(x)
    noises = torch.stack([drawn, -drawn], dim=1).flatten(0, 1)  # [copies 1 c H W]
    total = torch.zeros_like(x)
    for part in noises.split(max(batch_size // len(x), 1)):
        with differentiable((x + scale * part).flatten(0, 1)) as images:
            (gradient,) = torch.autograd.grad(class_score(model(images), classes.repeat(len(part))), images)
        total += gradient.unflatten(0, (-1, len(x))).sum(dim=0)
    return total / copies


RULES = ("dense-start", "gauss-legendre", "midpoint")
START, START_STEPS = 0.2, 0.75
"""The first part of the line, where the gradient changes most, and the share of the steps that it gets: layer norms
make a ViT answer to a picture of little contrast as to the whole one."""


def integrated_gradients(
    model: nn.Module,
    x: Tensor,
    target: Target = None,
    *,
    baseline: Tensor | None = None,
    steps: int = 16,
    rule: str = "dense-start",
    batch_size: int = 8,
) -> Tensor:
    """Compute integrated gradients, each pixel's contribution to a class's logit: images `[b c H W]` → `[b c H W]`.

    `baseline` is a preprocessed image in any shape that broadcasts to `x`; the default is black after the model's
    preprocessing. `batch_size` images between baseline and `x` run at once. The rule "dense-start" has three quarters
    of its steps in the first fifth of the line; 16 of them are about as exact as 32 of "gauss-legendre" on photographs.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    >>> x = torch.randn(1, 3, 2, 2)
    >>> parts = integrated_gradients(model, x, target=1, baseline=torch.zeros(1))
    >>> torch.allclose(parts.flatten(), x.flatten() * model[1].weight[1], atol=1e-6)
    True
    """
    baseline = black(model) if baseline is None else baseline
    baseline = baseline.to(x).expand_as(x)
    with torch.no_grad():
        classes = chosen_classes(model(x), target)  # [b]
    nodes, weights = (part.to(x) for part in _nodes(steps, rule))
    b, total = len(x), torch.zeros_like(x)
    at_once = max(batch_size // b, 1)
    for node, weight in zip(nodes.split(at_once), weights.split(at_once), strict=True):
        points = torch.lerp(baseline, x, node[:, None, None, None, None])  # [s b c H W]
        with differentiable(points.flatten(0, 1)) as images:
            score = class_score(model(images), classes.repeat(len(node)))
            (gradient,) = torch.autograd.grad(score, images)
        total += torch.einsum("s, s b c h w -> b c h w", weight, gradient.unflatten(0, (-1, b)))
    return total * (x - baseline)


def _nodes(steps: int, rule: str) -> tuple[Tensor, Tensor]:
    """Compute the steps of integrated gradients: quadrature nodes on 0 … 1 and their weights, `[steps]` each."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if rule == "midpoint":
        return (torch.arange(steps, dtype=torch.float64) + 0.5) / steps, torch.full((steps,), 1 / steps)
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    early = min(round(START_STEPS * steps), steps - 1) if rule == "dense-start" else 0
    pieces = [(0.0, START, early), (START, 1.0, steps - early)] if early else [(0.0, 1.0, steps)]
    nodes, weights = zip(*(_gauss_legendre(*piece) for piece in pieces), strict=True)
    return torch.from_numpy(np.concatenate(nodes)), torch.from_numpy(np.concatenate(weights))


def _gauss_legendre(first: float, last: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on -1 … 1
    return first + (nodes + 1) / 2 * (last - first), weights / 2 * (last - first)


def to_patches(pixels: Tensor, grid: tuple[int, int] | TokenLayout) -> Tensor:
    """Sum integrated gradients, or any map of pixels, over each patch and its colours: → `[b rows columns]`.

    `grid` is the layout of a ViT, whose patches need not fill the image, or any grid that divides it.

    >>> to_patches(torch.ones(1, 3, 4, 6), grid=(2, 3))
    tensor([[[12., 12., 12.],
             [12., 12., 12.]]])
    """
    if isinstance(grid, TokenLayout):
        pixels, grid = pixels[..., : grid.covered[0], : grid.covered[1]], grid.grid
    (rows, columns), (height, width) = grid, pixels.shape[-2:]
    if height % rows or width % columns:
        raise ValueError(
            f"{height}×{width} pixels are not a whole number of patches on a {rows}×{columns} grid: "
            "if a ViT's patches do not fill the image, pass the model's layout"
        )
    result: Tensor = pixels.unflatten(-1, (columns, -1)).unflatten(-3, (rows, -1)).sum(dim=(-5, -3, -1))
    return result


def black(model: nn.Module) -> Tensor:
    """Make the baseline of integrated gradients, a black image after the model's preprocessing: `[c 1 1]`."""
    preprocess = getattr(getattr(model, "card", None), "preprocess", None)
    if preprocess is None:
        raise ValueError("this model has no preprocessing (model.card is not set): pass a tensor as baseline")
    return -(torch.tensor(preprocess.mean) / torch.tensor(preprocess.std))[:, None, None]
