"""Chromium for the tests of a module.

It ends with the module: a process that steals work may run other tests next, and Playwright holds its event loop.
"""

import pytest
from chromium import browser


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found
