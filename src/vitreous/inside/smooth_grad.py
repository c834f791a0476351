"""SmoothGrad: the gradient of a logit, averaged over noisy copies of the image (Smilkov et al., 2017)."""

import torch
from torch import Tensor, nn

from vitreous.inside.gradients import Target, chosen_classes, class_score, differentiable


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
    """Compute the mean gradient of a class's logit over noisy copies: images `[b c H W]` → `[b c H W]`.

    `noise` is the standard deviation as a share of the image's range; every second copy has the noise of the one
    before with the other sign. A heat map is the size of the gradient: `to_patches(smooth_grad(…).abs(), grid)`.

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
    drawn = torch.randn(copies // 2, *x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    noises = torch.stack([drawn, -drawn], dim=1).flatten(0, 1)  # [copies b c H W]
    total = torch.zeros_like(x)
    for part in noises.split(max(batch_size // len(x), 1)):
        with differentiable((x + scale * part).flatten(0, 1)) as images:
            (gradient,) = torch.autograd.grad(class_score(model(images), classes.repeat(len(part))), images)
        total += gradient.unflatten(0, (-1, len(x))).sum(dim=0)
    return total / copies
