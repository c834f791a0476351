import pytest
import torch
from captum.attr import Occlusion
from families import FAMILIES, family, images

from vitreous.inside.integrated_gradients import to_patches
from vitreous.inside.occlusion import occlusion


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_captums_with_the_mean_colour(name):
    model = family(name)
    x, (height, width) = images(model, 1), model.config.patch
    mean = x.mean(dim=(-2, -1), keepdim=True).expand_as(x)
    window = (x.shape[1], height, width)
    wanted = Occlusion(model).attribute(x, target=1, sliding_window_shapes=window, strides=window, baselines=mean)
    patches = to_patches(wanted, model.layout.grid) / (x.shape[1] * height * width)  # captum gives it to every pixel
    torch.testing.assert_close(occlusion(model, x, 1, grid=model.layout.grid), patches.float(), atol=1e-5, rtol=1e-3)
