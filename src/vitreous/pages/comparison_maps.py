"""Where two models look in an image that they disagree on: a map for each, over the image as that model sees it."""

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
"""Places along a side that a ResNet's map must have: of small images its last stage leaves fewer."""


def draw_image(model: Model, image: Image) -> Figure:
    """The image as the model sees it."""
    return draw_overlays([Inspection(model, image).backdrop], None)


def draw_look(model: Model, image: Image, target: int) -> Figure:
    """What speaks for a class: relevance through all layers of a ViT, Grad-CAM of a ResNet."""
    inspection = Inspection(model, image)
    heat = look(model, inspection.x, target)[0].float().cpu().numpy()
    return draw_overlays([inspection.backdrop], heat[None])


def look(model: Model, x: Tensor, target: int) -> Tensor:
    """The map itself: images `[b c H W]` → `[b rows columns]`."""
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


def what(model: Model) -> str:
    """What kind of map a model's is, in words."""
    return "relevance" if isinstance(model, ViT) else "Grad-CAM"
