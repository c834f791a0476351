"""The report in a real browser, from disk, with the network off."""

from pathlib import Path

import numpy as np
import pytest
import torch
from chromium import Watched, browser, settle, until
from scipy.stats import spearmanr

from vitreous.cli.main import main
from vitreous.data.samples import samples
from vitreous.inside.capture import capture
from vitreous.views.inspection import Inspection
from vitreous.weights.load import load


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    main(["explain", "-o", str(path), "--ablate", "heads", "--trust", "--device", "cpu"])
    return path.as_uri()


@pytest.fixture(scope="module")
def attention():
    """The truth: [layers heads tokens tokens]."""
    inspection = Inspection(load(), samples()["chelsea"])
    with torch.inference_mode(), capture(inspection.vit, "attention") as seen:
        inspection.vit(inspection.x)
    return seen.stack("attention")[:, 0].numpy()


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture
def watched(chromium):
    watched = Watched(chromium, offline=True)
    yield watched
    watched.context.close()


def centre(page, row, column, rows=8, columns=8):
    box = page.locator(".stage").bounding_box()
    return box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows


def drawn(page):
    return np.array(page.evaluate("Array.from(vitreous.viewer.drawn.values)"))


def test_it_opens_from_disk_without_complaint_or_request(watched, report):
    page = watched.open(report)
    for tab in page.get_by_role("tab").all():
        tab.click()
        settle(page)
    assert watched.complaints == []
    assert watched.outside() == []


def test_hovering_shows_what_that_patch_looks_at(watched, report, attention):
    page = watched.open(report)
    for row, column in ((0, 0), (3, 5), (7, 7)):
        page.mouse.move(*centre(page, row, column))
        settle(page)
        truth = attention[-1].mean(axis=0)[1 + row * 8 + column, 1:]
        assert np.abs(drawn(page) - truth).max() <= attention[-1].max() / 255
        assert f"row {row + 1}, column {column + 1} looks most at" in page.locator(".said").inner_text()


def test_a_hover_is_answered_within_a_frame(watched, report):
    page = watched.open(report)
    times = []
    for step in range(30):
        page.mouse.move(*centre(page, step % 8, (3 * step) % 8))
        settle(page)
        times.append(page.evaluate("vitreous.viewer.took"))
    assert np.median(times) < 16


def test_sliders_and_tiles_choose_block_and_head(watched, report, attention):
    page = watched.open(report)
    page.get_by_label("Block", exact=True).fill("2")
    page.get_by_role("button", name="head 1", exact=True).click()
    settle(page)
    truth = attention[2, 1, 0, 1:]
    assert np.abs(drawn(page) - truth).max() <= truth.max() / 255
    page.get_by_role("button", name="Strongest head").click()
    settle(page)
    truth = attention[2, :, 0, 1:].max(axis=0)
    assert np.abs(drawn(page) - truth).max() <= attention[2].max() / 255


def test_what_is_painted_is_the_map(watched, report, attention):
    page = watched.open(report)
    pixels = page.evaluate(
        "Array.from(document.querySelector('.tile canvas').getContext('2d').getImageData(0, 0, 8, 8).data)"
    )
    brightness = np.array(pixels).reshape(8, 8, 4)[..., :3].sum(axis=-1).flatten()
    truth = attention[-1, 0, 0, 1:]
    truth = np.minimum(truth, np.sort(truth)[int(0.97 * (len(truth) - 1))])  # where the scale ends
    assert spearmanr(brightness, truth).statistic > 0.99


def test_the_keyboard_moves_from_patch_to_patch(watched, report):
    page = watched.open(report)
    page.locator(".stage").focus()
    page.keyboard.press("ArrowDown")  # from the class token to the middle
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.evaluate("vitreous.state.values.query") == 1 + 4 * 8 + 5
    page.keyboard.press("Home")
    settle(page)
    assert "class token looks most" in page.locator(".said").inner_text()
    page.get_by_role("tab", name="Attention").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.get_by_role("tab", name="Relevance").get_attribute("aria-selected") == "true"


def test_a_click_on_a_class_shows_its_relevance(watched, report):
    page = watched.open(report)
    page.locator("button.answer").nth(1).click()
    settle(page)
    second = page.evaluate("vitreous.viewer.header.predictions[1].label")
    assert page.get_by_role("tab", name="Relevance").get_attribute("aria-selected") == "true"
    assert page.get_by_role("button", name=second, exact=True).get_attribute("aria-pressed") == "true"


def test_a_link_leads_to_the_same_view(watched, report):
    page = watched.open(report + "#tab=attention&layer=1&head=3&query=20&opacity=0.3")
    values = page.evaluate("vitreous.state.values")
    assert (values["layer"], values["head"], values["query"], values["opacity"]) == (1, 3, 20, 0.3)
    page.get_by_role("button", name="head 2", exact=True).click()
    until(page, "location.hash.includes('head=2')")
    assert "layer=1" in page.evaluate("location.hash")


@pytest.mark.parametrize(
    "text", ["#layer=99", "#head=foo", "#query=-3", "#tab=nothing", "#opacity=x", "#%%%", "#query=1e9"]
)
def test_a_wrong_link_does_no_harm(watched, report, text):
    page = watched.open(report + text)
    page.mouse.move(*centre(page, 2, 2))
    settle(page)
    assert watched.complaints == []
    assert drawn(page).max() > 0


def test_the_view_is_saved_as_png(watched, report):
    page = watched.open(report)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_play_goes_through_the_blocks(watched, report):
    page = watched.open(report)
    page.get_by_role("button", name="Play").click()
    until(page, "vitreous.state.values.layer === 2")
    page.get_by_role("button", name="Pause").click()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])  # layout and colours are apart
def test_nothing_is_wider_than_the_screen_and_axe_has_no_complaint(chromium, report, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    watched = Watched(chromium, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = watched.open(report)
    for tab in page.get_by_role("tab").all():
        tab.click()
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.run(page)
        problems = [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found.response["violations"]]
        assert problems == [], f"{tab.inner_text()} {scheme} {width}"
    watched.context.close()


def test_numbers_are_written_as_they_are(watched, report):
    page = watched.open(report)
    found = page.evaluate(
        """async () => {
          const { number, percent } = await import("vitreous/dom.js");
          const { dots } = await import("vitreous/charts.js");
          const chart = dots(Float32Array.from([0, 150]), 2, 1, { title: "x" });
          return [percent(0), percent(0.5), percent(0.012), number(150), chart.textContent];
        }"""
    )
    assert found[:4] == ["0 %", "50 %", "1.2 %", "150"]
    assert "100" in found[4]
    assert "150" in found[4]


def test_the_answer_above_figures_is_one_line(watched, tmp_path):
    """It shares its class with the list of answers, whose first column is narrow."""
    main(["explain", "-o", str(tmp_path / "report.html"), "--views", "predictions", "--device", "cpu"])
    page = watched.open((tmp_path / "report.html").as_uri())
    box = page.locator("p.answer").bounding_box()
    assert box["height"] < 40
    assert box["width"] > 300
