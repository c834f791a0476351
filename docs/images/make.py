"""Make the images of README and docs: a screenshot of the page as `explain` opens it, and the figures of views.

python docs/images/make.py            # all of them; needs Playwright and a Chromium
python docs/images/make.py page       # or some: page, live, and the names in FIGURES

The page shows a cup of coffee, the live page the same cup dropped into a page of Chelsea the cat, with the coffee
clicked away, the figures Chelsea (both scikit-image, CC0).
"""

import io
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from vitreous import explain, load
from vitreous.data.sample_photos import samples
from vitreous.figures.style import encode

HERE = Path(__file__).parent
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FIGURES: dict[str, tuple[str, dict[str, Any]]] = {  # name → model and choice
    "predictions": ("vit_tiny", {}),
    "patches": ("vit_tiny", {}),
    "positions": ("vit_tiny", {}),
    "attention-matrix": ("vit_tiny", {"block": 0, "head": 0}),
    "attention-rows": ("vit_tiny", {"block": 0, "query": 100, "heads": (0, 1, 2)}),
    "relevance": ("vit_tiny", {}),
    "attention-maps": ("vit_tiny", {}),
    "lens": ("vit_tiny", {}),
    "distance": ("vit_tiny", {}),
    "filters": ("vit_tiny", {}),
    "rollout": ("vit_tiny", {}),
    "trust": ("vit_tiny", {}),
    "packaged": ("cifar10", {}),
}
PREFIX = {"vit_tiny": "ti", "cifar10": "packaged"}
WIDEST = 900  # pixels
PATIENCE = 900_000  # milliseconds
SHOWN = "vitreous.viewer.header.image.name.startsWith('coffee') && document.documentElement.dataset.ready"
CLICKED = """() => { const { edits } = vitreous.viewer;
    edits.change(() => {
        for (let row = 3; row < 8; row++) for (let column = 3; column < 11; column++) edits.gone.add(14 * row + column);
    });
}"""


def take_page() -> None:
    """Take the page of a cup of coffee."""
    take_screenshot("page.png", samples()["coffee"], 1280, 700)


def take_live() -> None:
    """Take the live page of a cat after a cup of coffee was dropped into it and its coffee clicked away."""
    take_screenshot("live.webp", samples()["chelsea"], 1366, 720, dropped=samples()["coffee"])


def take_screenshot(name: str, image: Image.Image, width: int, height: int, dropped: Image.Image | None = None) -> None:
    """Take a page of an image, live if another one is dropped into it."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path, photo = Path(folder) / "page.html", Path(folder) / "coffee.png"
        explain(image, load(), name="coffee" if dropped is None else "chelsea").save(path, live=dropped is not None)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        if dropped is not None:
            dropped.save(photo)
            page.set_input_files("#file", photo)
            while not page.evaluate(SHOWN):
                page.wait_for_timeout(200)
            page.evaluate(CLICKED)
            page.wait_for_selector(".answer small", timeout=PATIENCE)
            page.wait_for_selector(".viewer .pending", state="detached", timeout=PATIENCE)
        page.wait_for_timeout(300)
        taken = Image.open(io.BytesIO(page.screenshot()))
        taken.convert("RGB").save(HERE / name, **({"quality": 85} if name.endswith("webp") else {"optimize": True}))
        print(f"wrote {name} ({(HERE / name).stat().st_size / 1024:.0f} KB)")
        browser.close()


def draw(name: str) -> None:
    """Draw a view of Chelsea with its figures, those that a page of the docs shows."""
    kind, choice = FIGURES[name]
    view = "attention-maps" if name == "packaged" else name
    explanation = explain(samples()["chelsea"], load(f"packaged:{kind}"), view, name="chelsea", **choice)
    for part, figure in explanation.figures(view).items():
        target = HERE / f"{'-'.join(filter(None, (PREFIX[kind], view, part)))}.webp"
        if not target.exists():  # no page shows it
            continue
        with Image.open(io.BytesIO(encode(figure))) as image:
            small = image.convert("RGB")
        if small.width > WIDEST:
            small = small.resize((WIDEST, round(small.height * WIDEST / small.width)), Image.Resampling.LANCZOS)
        small.save(target, "WEBP", quality=78, method=6)
        print(f"wrote {target.name} ({target.stat().st_size / 1024:.0f} KB)")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["page", "live", *FIGURES]:
        {"page": take_page, "live": take_live}.get(name, partial(draw, name))()
