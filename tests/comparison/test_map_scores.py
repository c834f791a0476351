import numpy as np
import pytest
import torch
import torch.nn.functional as F
from families import family, images
from sklearn.metrics import average_precision_score

from vitreous.comparison.map_scores import Scorer, average_precision, segmentation_scores


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_scikit_learns(ties):
    generator = torch.Generator().manual_seed(0)
    scores, truth = torch.rand(3, 200, generator=generator), torch.rand(3, 200, generator=generator) < 0.3
    scores = (scores * 5).round() if ties else scores
    wanted = [average_precision_score(t, s) for t, s in zip(truth, scores, strict=True)]
    torch.testing.assert_close(average_precision(scores, truth), torch.tensor(wanted, dtype=torch.float32))


def test_scores_are_those_of_the_map_cut_at_its_mean():
    generator = torch.Generator().manual_seed(1)
    maps, mask = torch.rand(2, 4, 4, generator=generator), torch.randint(-1, 2, (16, 16), generator=generator)
    found = segmentation_scores(maps, mask)
    large = F.interpolate(maps[:, None], size=(16, 16), mode="bilinear")[:, 0]
    counted = (mask >= 0).numpy()
    for i, heat in enumerate(large):
        marked, real = (heat > heat.mean()).numpy()[counted], (mask == 1).numpy()[counted]
        assert found.accuracy[i].item() == pytest.approx((marked == real).mean())
        pairs = [(~marked, ~real), (marked, real)]
        assert found.intersections[i].tolist() == [(a & b).sum() for a, b in pairs]
        assert found.unions[i].tolist() == [(a | b).sum() for a, b in pairs]
        scaled = ((heat - heat.min()) / (heat.max() - heat.min())).numpy()[counted]
        both = np.concatenate([1 - scaled, scaled]), np.concatenate([~real, real])
        assert found.precision[i].item() == pytest.approx(average_precision_score(both[1], both[0]), abs=1e-5)


def test_a_map_points_at_the_object_if_its_highest_counted_pixel_is_on_it():
    mask = torch.tensor([[1, 0], [0, -1]])
    maps = torch.tensor([[[3.0, 1.0], [0.0, 9.0]], [[1.0, 3.0], [0.0, 9.0]]])
    assert segmentation_scores(maps, mask).pointing.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("scale", [1e-14, 1e-30, 1e30])
def test_scores_do_not_depend_on_the_scale_of_a_map(scale):
    maps, mask = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(2)), torch.zeros(16, 16, dtype=torch.int64)
    mask[4:9, 3:10] = 1
    expected, found = segmentation_scores(maps, mask), segmentation_scores(maps * scale, mask)
    torch.testing.assert_close(found.precision, expected.precision, rtol=0, atol=0.02)  # rounding makes and breaks ties
    torch.testing.assert_close(found.accuracy, expected.accuracy)


def test_a_constant_map_marks_no_pixel():
    mask = torch.zeros(32, 32, dtype=torch.int64)
    mask[8:20, 8:20] = 1
    found = segmentation_scores(torch.full((1, 4, 4), 0.3), mask)
    assert found.intersections.tolist() == [[32 * 32 - 12 * 12, 0]]


def test_maps_that_are_not_finite_and_masks_of_ignored_pixels_have_no_score():
    maps, mask = torch.rand(2, 4, 4), torch.ones(16, 16, dtype=torch.int64)
    with pytest.raises(ValueError, match="all pixels of the mask are ignored"):
        segmentation_scores(maps, -mask)
    for value in (float("nan"), float("inf")):
        maps[0, 1, 2] = value
        with pytest.raises(ValueError, match="1 of 32 values of heat maps are NaN or infinite"):
            segmentation_scores(maps, mask)


def test_a_mask_is_compared_where_patches_read_the_image():
    model = family("attention pool", image_size=(15, 29))  # 12×24 of them, in patches of 4×6
    heat, mask = torch.zeros(1, 3, 4), torch.zeros(15, 29, dtype=torch.int64)
    heat[0, 1, 2] = 1
    mask[4:8, 12:18] = 1
    scorer = Scorer(model, {})
    found = scorer.segmentation(images(model, 1), heat, mask)
    expected = segmentation_scores(heat, mask[:12, :24])
    assert found["accuracy"] == expected.accuracy.tolist()
    assert found["unions"] == expected.unions.flatten().tolist()
    mask[12:] = mask[:, 24:] = 1  # nothing that the model reads
    assert scorer.segmentation(images(model, 1), heat, mask)["accuracy"] == found["accuracy"]
