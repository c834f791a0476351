"""A comparison's page in a real browser: nothing asked for, nothing cut off, readable light and dark."""

import pytest
from chromium import Watched
from tiny_studies import make_zoo, tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    tiny(make_zoo(folder / "zoo"), folder / "study")
    return (folder / "study/comparison.html").as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1200, "light")])  # layout and colours are apart
def test_the_page_fits_its_window_and_can_be_read(chromium, address, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    watched = Watched(chromium, offline=True, color_scheme=scheme, viewport={"width": width, "height": 900})
    page = watched.page
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator(".models").first
    assert table.evaluate("table => table.scrollWidth - table.parentElement.clientWidth") <= 0
    assert page.locator("img").evaluate_all("all => all.every((each) => each.naturalWidth > 0 && each.alt)")
    broken = [each["id"] for each in axe.Axe().run(page).response["violations"]]
    assert broken == []
    assert watched.complaints == []
    assert watched.outside() == []
    watched.context.close()
