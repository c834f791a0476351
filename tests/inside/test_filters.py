import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from vitreous.inside.filters import first_filters, principal_filters
from vitreous.inside.representations import with_sign


def test_against_scikit_learn():
    weight = torch.randn(40, 3, 4, 5) * torch.linspace(3, 0.1, 60).view(3, 4, 5)  # components that lie well apart
    images, shares = principal_filters(weight, count=6)
    pca = PCA(6).fit(weight.flatten(1).double().numpy())
    torch.testing.assert_close(shares.double(), torch.from_numpy(pca.explained_variance_ratio_), rtol=1e-4, atol=1e-6)
    for image, theirs in zip(images, torch.from_numpy(pca.components_), strict=True):
        theirs = theirs * theirs[theirs.abs().argmax()].sign()
        theirs = ((theirs - theirs.min()) / (theirs.max() - theirs.min())).view(3, 4, 5).permute(1, 2, 0)
        torch.testing.assert_close(image.double(), theirs, rtol=0, atol=1e-3)


@given(st.integers(2, 12), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_images_fill_the_range_and_there_are_never_more_than_components(filters, colours, height, width):
    images, shares = principal_filters(torch.randn(filters, colours, height, width), count=28)
    count = min(28, filters - 1, colours * height * width)
    assert images.shape == (count, height, width, colours)
    assert shares.shape == (count,)
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0))
    if colours * height * width > 1:
        torch.testing.assert_close(images.amin(dim=(1, 2, 3)), torch.zeros(count))
        torch.testing.assert_close(images.amax(dim=(1, 2, 3)), torch.ones(count))


def test_the_sign_does_not_depend_on_the_sign_of_the_filters():
    weight = torch.randn(30, 3, 4, 4)
    ours, _ = principal_filters(weight, count=3)
    mirrored, _ = principal_filters(-weight, count=3)
    torch.testing.assert_close(ours, mirrored, rtol=0, atol=1e-4)
    found = with_sign(torch.randn(20, 9))
    assert torch.equal(found.amax(dim=1), found.abs().amax(dim=1))


def test_a_resnets_first_filters_are_stretched_one_by_one():
    weight = torch.randn(64, 3, 7, 7)
    weight[5] = 2.0
    images = first_filters(weight)
    assert images.shape == (64, 7, 7, 3)
    assert (images[5] == 0.5).all()
    low, high = weight[3].min(), weight[3].max()
    assert images[3, 6, 2, 1].item() == pytest.approx(((weight[3, 1, 6, 2] - low) / (high - low)).item())
