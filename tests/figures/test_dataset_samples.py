import numpy as np

from vitreous.figures.dataset_samples import draw_samples


def test_samples_are_cut_to_the_square_in_their_centre():
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 200
    figure = draw_samples([[wide, wide], [wide]], ["cat", "dog"])
    images = figure.axes[0].images
    assert len(images) == 3
    assert all((image.get_array() == 200).all() and image.get_array().shape == (4, 4, 3) for image in images)
    assert [text.get_text() for text in figure.axes[0].texts] == ["cat", "dog"]
