"""The folder of images that tests of training share; some make one of their own."""

import pytest
from tiny_runs import make_images


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("zoo") / "zoo")
