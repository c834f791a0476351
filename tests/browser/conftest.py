"""One Chromium for all pages, since it takes a second to start."""

import pytest
from chromium import browser


@pytest.fixture(scope="package")
def chromium():
    with browser() as found:
        yield found
