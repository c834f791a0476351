"""The README's image: a screenshot of `vitreous explain`'s page, the pointer on Chelsea's eye (scikit-image, CC0).

python docs/images/make.py vit_tiny_patch16_224.augreg_in21k_ft_in1k    # needs Playwright and a Chromium
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from vitreous import explain
from vitreous.data.samples import samples

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main(model: str) -> None:
    image = Path(__file__).with_name("page.png")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "page.html"
        explain(samples()["chelsea"], model, name="chelsea").save(path)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 700})
        page.goto(f"{path.as_uri()}#view=attention-rows&block=5")
        page.wait_for_selector("html[data-ready]")
        box = page.locator(".stage").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.33 * box["width"], box["y"] + 0.36 * box["height"])
        page.wait_for_timeout(300)
        page.screenshot(path=image)
        browser.close()
    print(f"wrote {image.name} ({image.stat().st_size / 1024:.0f} KB)")


if __name__ == "__main__":
    main(sys.argv[1])
