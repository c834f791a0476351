import numpy as np
import torch

from vitreous.inside.representations import patch_similarity, principal_colours
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.views.tokens import joint_colours, joint_directions


def outputs(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(model.config.depth, model.layout.tokens, model.config.width, generator=generator)


def test_products_of_directions_are_cosines_of_patches_of_different_images():
    model = ViT(variant("vit_femto_patch4_32")).eval()  # narrower than the numbers that are kept: exact
    tokens = [outputs(model, 0), outputs(model, 1)]
    directions = joint_directions(tokens, model)
    both = torch.cat([each[:, 1:] for each in tokens], dim=1)
    cosines = torch.nn.functional.cosine_similarity(both[:, :, None], both[:, None], dim=-1)
    count = model.layout.patches
    found = directions[0] @ directions[1].swapaxes(-1, -2)
    assert np.allclose(found, cosines[:, :count, count:], atol=1e-5)
    own = directions[0] @ directions[0].swapaxes(-1, -2)
    assert np.allclose(own, patch_similarity(tokens[0], model.layout), atol=1e-5)


def test_colours_of_several_images_are_those_of_their_joint_components():
    model = ViT(variant("vit_femto_patch4_32")).eval()
    tokens = [outputs(model, 0), outputs(model, 1)]
    colours = joint_colours(tokens, model)
    assert colours.shape == (2, model.config.depth, model.layout.patches, 3)
    with torch.inference_mode():
        expected = principal_colours(model.norm(torch.stack([each[1] for each in tokens])), model.layout)
        alone = principal_colours(model.norm(tokens[0][1][None]), model.layout)
    assert np.allclose(colours[:, 1], expected.flatten(1, 2), atol=1e-5)
    assert not np.allclose(colours[:1, 1], alone.flatten(1, 2), atol=1e-2)
