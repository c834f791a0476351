"""The interactive page of a large model: its size, how soon it opens, how quickly it answers a hover.

    python benchmarks/page.py --model vit_base_patch16_224

Weights are random: what a page weighs and takes does not depend on them. Needs Playwright and a Chromium.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from vitreous import ViT, variant
from vitreous.data.preprocess import default_preprocess
from vitreous.data.sample_photos import samples
from vitreous.pages.explanation import Explanation
from vitreous.pages.report import save_report
from vitreous.views.inspection import Inspection
from vitreous.weights.card import Card

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--hovers", type=int, default=100)
    given = parser.parse_args()
    model = ViT(variant(given.model)).eval()
    model.card = Card(given.model, default_preprocess(model.config))
    begun = time.monotonic()
    pages = [Explanation(Inspection(model, samples()["chelsea"], name="chelsea")).page()]
    spent = time.monotonic() - begun
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        size = save_report(path, pages, model).stat().st_size
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1300, "height": 950})
            opened: list[float] = []
            painted: list[float] = []
            for _ in range(5):
                begun = time.monotonic()
                page.goto(path.as_uri())
                page.wait_for_selector("html[data-ready]")
                opened.append(time.monotonic() - begun)
                paint = "performance.getEntriesByName('first-paint')[0].startTime"
                painted.append(page.evaluate(paint) / 1000)
            box = page.locator(".stage").bounding_box()
            assert box is not None
            times = []
            for i in range(given.hovers):
                across, down = 0.1 + 0.8 * (i % 10) / 10, (i % 7 + 0.5) / 7
                page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
                page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                times.append(page.evaluate("vitreous.viewer.took"))
            browser.close()
    soon = statistics.median(opened)
    first = statistics.median(painted)
    print(f"{given.model}: computed in {spent:.1f} s, {size / 1e6:.2f} MB")
    print(f"first paint after {first:.2f} s, opens in {soon:.2f} s")
    print(f"a hover takes {statistics.median(times):.1f} ms (median), {max(times):.1f} ms (longest of {len(times)})")


if __name__ == "__main__":
    main()
