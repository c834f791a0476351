import numpy as np
import pytest
import torch
import torch.nn.functional as F
from families import family, images
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve
from torch import nn

from vitreous.inside.faithfulness import random_map
from vitreous.inside.pixel_gradients import to_patches
from vitreous.inside.road import impute, road


def exact(image, known):
    """Solve the paper's linear system: each unknown pixel is the weighted mean of its neighbours."""
    height, width = known.shape
    number = np.arange(height * width).reshape(height, width)
    matrix, right = lil_matrix((height * width, height * width)), np.zeros(height * width)
    for i, j in np.ndindex(height, width):
        own = number[i, j]
        if known[i, j]:
            matrix[own, own], right[own] = 1, image[i, j]
            continue
        for di, dj in [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]:
            if 0 <= i + di < height and 0 <= j + dj < width:
                weight = 1 / 12 if di and dj else 1 / 6
                matrix[own, number[i + di, j + dj]] = -weight
                matrix[own, own] += weight
    return spsolve(matrix.tocsc(), right).reshape(height, width)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "tolerance"), [(0.3, 0.001), (0.8, 0.01)])
def test_imputed_pixels_solve_the_papers_linear_system(share, tolerance):
    generator = torch.Generator().manual_seed(0)
    image = F.interpolate(torch.randn(1, 2, 7, 6, generator=generator), size=(56, 48), mode="bicubic")
    cells = torch.rand(3, 1, 7, 6, generator=generator) > share
    known = F.interpolate(cells.float(), size=(56, 48)) > 0
    found = impute(image, known)
    assert torch.equal(found[known.expand_as(found)], image.expand_as(found)[known.expand_as(found)])
    for k, c in np.ndindex(3, 2):
        wanted = exact(image[0, c].numpy(), known[k, 0].numpy())
        assert np.abs(found[k, c].numpy() - wanted).mean() < tolerance
        assert np.abs(found[k, c].numpy() - wanted).max() < 10 * tolerance


class Linear(nn.Module):
    """The first class's logit is a weighted sum of patches on a 3×4 grid."""

    def __init__(self):
        super().__init__()
        self.weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        logit = (to_patches(x, (3, 4)) * self.weight).sum(dim=(1, 2)) / 20
        return torch.stack([logit, torch.zeros_like(logit)], dim=1)


def test_road_is_high_for_the_true_map_and_its_negative_has_the_opposite():
    model, x = Linear(), torch.randn(1, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    shown = x.clone()
    shown[:] = x.mean()
    true = (to_patches(x, (3, 4)) * model.weight)[0]
    maps = torch.stack([true, -true, random_map((3, 4))])
    found = road(model, x, maps, 0, noise=0.0)
    assert found[0] > 0 > found[1]
    torch.testing.assert_close(found[0], -found[1])
    assert found[0] > found[2]


def test_road_does_not_depend_on_the_random_state():
    model, x = Linear(), torch.randn(1, 3, 12, 16)
    maps = torch.rand(2, 3, 4)
    first = road(model, x, maps, 0)
    torch.rand(7)
    assert torch.equal(first, road(model, x, maps, 0))
    assert not torch.equal(first, road(model, x, maps, 0, seed=1))


@pytest.mark.parametrize("patch", [0, 6, 11])
def test_what_is_removed_is_what_a_patch_reads_where_pixels_fill_none(patch):
    model, seen = family("attention pool", image_size=(15, 29)), []
    x, heat = images(model, 1), torch.zeros(1, 3, 4)
    heat.view(-1)[patch] = 1
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    road(model, x, heat, 0, shares=(1 / 12,), noise=0.0)
    changed = (seen[-1][1] != x[0]).any(dim=0).nonzero()  # with the highest patch removed
    left, top, right, bottom = model.layout.box(patch)
    assert changed.min(dim=0).values.tolist() == [top, left]
    assert changed.max(dim=0).values.tolist() == [bottom - 1, right - 1]
    embedded = [model.patch_embed(each) for each in (x, seen[-1][1:])]
    assert (embedded[0] != embedded[1]).any(dim=-1)[0].nonzero().flatten().tolist() == [patch]
