import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score

from vitreous.comparison.map_scores import average_precision, segmentation_scores


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
