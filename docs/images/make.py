"""The README's image: a screenshot of the page as `vitreous explain` opens it, of a cup of coffee (scikit-image, CC0).

python docs/images/make.py    # needs Playwright and a Chromium
"""

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from vitreous import explain
from vitreous.data.samples import samples

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    image = Path(__file__).with_name("page.png")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "page.html"
        explain(samples()["coffee"], name="coffee").save(path)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 700})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(300)
        page.screenshot(path=image)
        browser.close()
    print(f"wrote {image.name} ({image.stat().st_size / 1024:.0f} KB)")


if __name__ == "__main__":
    main()
