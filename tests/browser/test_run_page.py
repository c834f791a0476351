"""A run's page in a real browser, from disk, with the network off: scrubbed, played, clicked, read."""

import numpy as np
import pytest
from chromium import Watched, settle, until

from vitreous.pages.run import write_run_page
from vitreous.training.config import TrainConfig
from vitreous.training.run_folder import RunFolder
from vitreous.training.snapshots import Snapshot, write_snapshot

pytestmark = pytest.mark.slow

EPOCHS = [0, 1, 3, 8]


def recorded(epoch):
    random = np.random.default_rng(epoch)
    return Snapshot(
        epoch,
        filters=random.integers(0, 256, (12, 4, 4, 3)).astype(np.uint8),
        positions=random.uniform(-1, 1, (3, 4, 3, 4)).astype(np.float16),
        distances=random.uniform(1, 5, (4, 3)),
        maps=random.dirichlet(np.ones(12), 8).reshape(8, 3, 4),
        images=np.random.default_rng(99).integers(0, 256, (8, 12, 16, 3)).astype(np.uint8),
        labels=tuple("abcdefgh"),
    )


def write(path, snapshots, epochs=8):
    folder = RunFolder(path)
    path.mkdir()
    folder.begin(TrainConfig(epochs=8))
    for epoch in range(1, epochs + 1):
        row = {"epoch": epoch, "loss": 2 / epoch, "top1": 1 - 0.5 / epoch, "learning_rate": 1e-3 / epoch}
        row |= {"test_top1": 1 - 0.6 / epoch, "test_loss": 3 / epoch, "test_top5": 1.0, "test_images": 100}
        folder.add_metrics(row | {"seconds": float(epoch)})
    for snapshot in snapshots:
        write_snapshot(folder.snapshots, snapshot)
    return write_run_page(folder).as_uri()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write(tmp_path_factory.mktemp("runs") / "vit", [recorded(epoch) for epoch in EPOCHS])


def now(page):
    settle(page)
    return page.locator(".scrubber .now").inner_text()


def middle(page, view, tile, row, column):
    """The colour in the middle of a cell of a tile."""
    return page.evaluate(
        """([view, tile, row, column]) => {
          const { mosaic } = vitreous.views[view];
          const { x, y, width, height } = mosaic.position(tile);
          const [rows, columns] = view === "positions" ? [3, 4] : [4, 4];
          const place = [x + ((column + 0.5) / columns) * width, y + ((row + 0.5) / rows) * height];
          return [...mosaic.canvas.getContext("2d").getImageData(...place, 1, 1).data];
        }""",
        [view, tile, row, column],
    )


def test_it_opens_from_disk_at_the_last_moment_without_complaint_or_request(watched, run):
    page = watched.open(run)
    assert now(page) == "epoch 8"
    assert page.get_by_label("Moment of training").last.get_attribute("aria-valuetext") == now(page)
    assert watched.complaints == []
    assert watched.outside() == []


def test_scrubbing_draws_that_moments_numbers(watched, run):
    page = watched.open(run)
    for place, epoch in enumerate(EPOCHS):
        page.locator(".scrubber input").fill(str(place))
        settle(page)
        seen = recorded(epoch)
        for tile, row, column in ((0, 0, 0), (5, 2, 1), (11, 3, 3)):
            assert middle(page, "filters", tile, row, column)[:3] == seen.filters[tile, row, column].tolist()
        for tile, row, column in ((0, 0, 0), (7, 1, 2), (11, 2, 3)):
            red, _, blue, _ = middle(page, "positions", tile, row, column)
            cosine = float(seen.positions[tile // 4, tile % 4, row, column])
            assert (red > blue) == (cosine > 0), (epoch, tile, cosine)
        dots = page.locator("#distance .moment circle title").all_text_contents()
        assert dots[4] == f"block 1, head 1: {seen.distances[1, 1]:.1f} px"


def test_arrow_keys_go_from_moment_to_moment(watched, run):
    page = watched.open(run)
    page.locator(".scrubber input").focus()
    page.keyboard.press("ArrowLeft")
    assert now(page).startswith("epoch 3")
    page.keyboard.press("Home")
    assert now(page) == "before training"
    page.keyboard.press("ArrowRight")
    assert now(page).startswith("epoch 1")


def test_play_goes_through_all_moments_and_stops_at_the_end(watched, run):
    page = watched.open(run)
    page.get_by_role("button", name="Play").click()
    assert now(page) == "before training"
    until(page, "vitreous.state.values.epoch === 8")
    until(page, "document.querySelector('.scrubber .play').textContent === 'Play'")


def test_a_click_on_a_curve_goes_to_the_nearest_moment(watched, run):
    page = watched.open(run)
    box = page.locator("#loss .plot svg").bounding_box()
    page.mouse.click(box["x"] + 52 + (box["width"] - 72) * 3.4 / 8, box["y"] + 60)
    assert now(page).startswith("epoch 3")
    page.mouse.move(5, 5)
    settle(page)
    said = page.locator("#loss .legend").inner_text().split()
    assert said == ["training", "0.667", "held", "out", "1"]
    places = page.evaluate("vitreous.charts.map((chart) => Number(chart.rule.getAttribute('x1')))")
    assert places[0] == pytest.approx(52 + (box["width"] - 72) * 3 / 8, abs=1)


def test_hovering_over_a_curve_tells_its_numbers(watched, run):
    page = watched.open(run)
    box = page.locator("#accuracy .plot svg").bounding_box()
    page.mouse.move(box["x"] + 52 + (box["width"] - 72) * 2.1 / 8, box["y"] + 60)
    settle(page)
    assert page.locator("#accuracy .legend b").all_inner_texts() == ["75 %", "70 %"]
    assert now(page).startswith("epoch 8")


def test_a_link_leads_to_the_same_moment(watched, run):
    page = watched.open(run + "#epoch=3")
    assert now(page).startswith("epoch 3")
    page.locator(".scrubber input").fill("1")
    until(page, "location.hash === '#epoch=1'")
    page.get_by_role("link", name="Settings").click()
    assert now(page).startswith("epoch 1")


@pytest.mark.parametrize("text", ["#epoch=99", "#epoch=-1", "#epoch=x", "#positions", "#%%%"])
def test_a_wrong_link_does_no_harm(watched, run, text):
    page = watched.open(run + text)
    assert now(page).startswith("epoch 8")
    assert watched.complaints == []


def test_all_moments_stand_side_by_side_and_a_click_goes_to_one(watched, run):
    page = watched.open(run)
    for view in ("positions", "filters", "distance", "attention"):
        page.locator(f"#{view} summary").click()
        settle(page)
        assert page.locator(f"#{view} .panels button").count() == len(EPOCHS)
    page.locator("#filters .panels button").nth(2).click()
    assert now(page).startswith("epoch 3")
    assert page.locator("#filters .panels button").nth(2).get_attribute("aria-pressed") == "true"
    assert watched.complaints == []


def test_a_moment_without_a_view_says_so(watched, tmp_path):
    snapshots = [Snapshot(0, filters=np.zeros((4, 2, 2, 1), np.uint8)), recorded(3)]
    page = watched.open(write(tmp_path / "run", snapshots, epochs=3) + "#epoch=0")
    settle(page)
    assert page.locator("#positions .missing").is_visible()
    assert not page.locator("#filters .missing").is_visible()
    assert watched.complaints == []


@pytest.mark.parametrize(("epochs", "snapshots"), [(0, []), (1, []), (1, [Snapshot(1)]), (3, [recorded(1)])])
def test_short_runs_and_runs_without_snapshots_are_drawn(watched, tmp_path, epochs, snapshots):
    page = watched.open(write(tmp_path / "run", snapshots, epochs))
    settle(page)
    assert page.locator(".plot svg").count() == (3 if epochs else 0)
    assert watched.complaints == []


def test_bands_gaps_and_many_lines_are_drawn(watched, run):
    page = watched.open(run)
    found = page.evaluate(
        """async () => {
          const { Curves } = await import("vitreous/curves.js");
          const line = (i) => ({ label: `model ${i}`, x: [1, 2, 3, 4], y: [i, null, i + 1, i + 2] });
          const lines = [...Array(9).keys()].map(line);
          lines[0] = { ...lines[0], low: [0, null, 0, 1], high: [1, null, 2, 3] };
          const words = { title: "Compared", xLabel: "epoch", yLabel: "loss", unit: "", xFrom: null };
          const chart = new Curves({ ...words, series: lines });
          document.querySelector("main").append(chart.element);
          await new Promise((done) => setTimeout(done, 200));
          const paths = chart.element.querySelectorAll("path.curve");
          const bands = chart.element.querySelectorAll("path.band").length;
          const pieces = paths[0].getAttribute("d").split("M").length - 1;
          return [bands, paths.length, pieces, chart.description(), chart.legend.children.length];
        }"""
    )
    assert found[:3] == [1, 9, 2]  # a gap begins a new piece
    assert found[3].startswith("Compared (loss) by epoch: model 0 from 0 to 2; model 1 from 1 to 3")
    assert found[4] == 9


def test_an_axis_has_room_for_its_numbers_and_the_ramp_has_the_colours_of_the_maps(watched, run):
    page = watched.open(run)
    left, ramp, tint = page.evaluate(
        """async () => {
          const { dots } = await import("vitreous/charts.js");
          const { gradient } = await import("vitreous/colours.js");
          const chart = dots(Float32Array.from([13.96, 13.98]), 2, 1, { title: "x", unit: " px", limits: [13.95, 14] });
          const ramp = document.querySelector("[data-view=attention] .ramp"), wanted = ramp.cloneNode();
          document.querySelector("main").append(chart);
          wanted.style.background = gradient("tint");
          const lefts = [...chart.querySelectorAll("text")].map((text) => text.getBBox().x);
          return [Math.min(...lefts), ramp.style.background, wanted.style.background];
        }"""
    )
    assert left >= 0
    assert ramp == tint


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.6e-3, 1.75e-3, ["1.6e-3", "1.65e-3", "1.7e-3", "1.75e-3"]),
        (0, 2e-3, ["0", "5e-4", "1e-3", "1.5e-3", "2e-3"]),
        (0, 1e-3, ["0", "2.5e-4", "5e-4", "7.5e-4", "1e-3"]),
        (9.98e-4, 1.002e-3, ["9.98e-4", "9.99e-4", "1e-3", "1.001e-3", "1.002e-3"]),
    ],
)
def test_small_numbers_of_an_axis_differ(watched, run, low, high, expected):
    page = watched.open(run)
    code = 'async ([low, high]) => (await import("vitreous/charts.js")).ticks(low, high).map(([, text]) => text)'
    assert page.evaluate(code, [low, high]) == expected


def test_curves_have_room_for_the_numbers_of_their_axis(watched, run):
    page = watched.open(run)
    lefts = page.evaluate(
        """async () => {
          const { Curves } = await import("vitreous/curves.js");
          const words = { title: "Rate", xLabel: "epoch", yLabel: "rate", unit: "", xFrom: 0 };
          const chart = new Curves({ ...words, series: [{ label: "rate", x: [1, 2], y: [1.6661e-3, 1.6662e-3] }] });
          document.querySelector("main").append(chart.element);
          await new Promise((done) => setTimeout(done, 200));
          return [...chart.element.querySelectorAll("svg text")].map((text) => text.getBBox().x);
        }"""
    )
    assert min(lefts) >= 0


def test_a_printed_run_leaves_out_what_only_works_on_a_screen(watched, run):
    page = watched.open(run)
    page.emulate_media(media="print")
    for name in ("nav", ".play", ".scrubber input", "details.all"):
        assert not page.locator(name).first.is_visible(), name
    assert page.locator(".scrubber .now").is_visible()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])  # layout and colours are apart
def test_nothing_is_wider_than_the_screen_and_axe_has_no_complaint(chromium, run, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    watched = Watched(chromium, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = watched.open(run)
    for summary in page.locator("summary").all():
        summary.click()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.run(page)
    assert [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found.response["violations"]] == []
    watched.context.close()
