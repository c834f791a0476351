"""Chromium for the tests of a module.

It ends with the module: a process that steals work may run other tests next, and Playwright holds its event loop.
"""

import pytest
from chromium import Watched, browser


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture
def watched(chromium):
    """A page of its own that reaches no network."""
    watched = Watched(chromium, offline=True)
    yield watched
    watched.context.close()
