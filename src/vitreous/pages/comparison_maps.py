"""Heat maps for images on which two models disagree: one map for each model, over the image as that model sees it."""

from matplotlib.figure import Figure
from PIL.Image import Image
from torch import Tensor

from vitreous.figures.maps import draw_overlays
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.relevance import relevance
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT
from vitreous.views.inspection import Inspection
from vitreous.weights.load import Model

COARSEST = 4
"""Cells along a side that a ResNet's map must have: the last stage leaves fewer of a small image."""


def draw_image(model: Model, image: Image) -> Figure:
    """Draw the image as the model sees it."""
    return draw_overlays([Inspection(model, image).backdrop], None)


def draw_map(model: Model, image: Image, target: int) -> Figure:
    """Draw the evidence for a class over the image: relevance through all layers of a ViT, Grad-CAM of a ResNet."""
    inspection = Inspection(model, image)
    heat = evidence_map(model, inspection.x, target)[0].float().cpu().numpy()
    return draw_overlays([inspection.backdrop], heat[None])


def evidence_map(model: Model, x: Tensor, target: int) -> Tensor:
    """Compute the map itself: images `[b c H W]` → `[b rows columns]`."""
    if isinstance(model, ViT):
        return relevance(model, x, target)
    return grad_cam(model, x, target, layer=stage(model, min(x.shape[-2:])))


def stage(model: ResNet, side: int) -> int:
    """The last stage whose map is not too coarse for images of `side` pixels, from 0 to 3.

    >>> from vitreous.models.resnet import ResNet, resnet_config
    >>> small, usual = ResNet(resnet_config("resnet18_small")), ResNet(resnet_config("resnet18"))
    >>> stage(small, 32), stage(small, 8), stage(usual, 224)
    (3, 1, 3)
    """
    first = side if model.config.stem == "small" else side // 4
    return max((number for number in range(4) if first >> number >= COARSEST), default=0)


def map_name(model: Model) -> str:
    """The name of a model's kind of map."""
    return "relevance" if isinstance(model, ViT) else "Grad-CAM"
