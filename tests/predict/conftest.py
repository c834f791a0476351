"""Images that tests of answers and of features share."""

import pytest
import torch
from PIL import Image


@pytest.fixture
def images(tmp_path):
    """Five small images of noise, each of another height."""
    found = []
    for i in range(5):
        colours = torch.randint(256, (20 + i, 30, 3), dtype=torch.uint8)
        found.append(tmp_path / f"{i}.png")
        Image.fromarray(colours.numpy()).save(found[-1])
    return found
