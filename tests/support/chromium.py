"""A real browser for tests: Debian's Chromium, driven by Playwright, with every request and complaint written down."""

import os
import shutil
import time
from contextlib import contextmanager

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def browser():
    """Chromium, or a skip with its reason; where VITREOUS_CI is set its absence is a failure."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        if os.environ.get("VITREOUS_CI"):
            pytest.fail("no Chromium on this machine: apt-get install chromium")
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield found
        finally:
            found.close()


class Watched:
    """A page that remembers what went wrong on it and what it asked for."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1300, "height": 950}, **options})
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address):
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def outside(self, *allowed):
        """Requests that went anywhere but to a file, to data in the page, or to what is allowed."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:", *allowed))]


def settle(page):
    """Let the page draw what was just asked for."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def until(page, condition, patience=60.0):
    """Wait for something to be true on the page (Playwright's own way needs eval, which the page forbids)."""
    end = time.monotonic() + patience
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never came true: {condition}"
        time.sleep(0.05)
