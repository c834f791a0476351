"""Report, run page and explorer in Firefox: they draw, answer a hover and a key, and complain of nothing."""

import io

import numpy as np
import pytest
from firefox import firefox
from PIL import Image

from conftest import CHELSEA, SMALL
from vitreous.cli.main import main
from vitreous.pages.run import write_run_page
from vitreous.server.serve import RunningExplorer
from vitreous.training.config import TrainConfig
from vitreous.training.run_folder import RunFolder
from vitreous.training.snapshots import Snapshot, write_snapshot
from vitreous.weights.load import load

pytestmark = pytest.mark.slow

LEFT = "\ue012"


@pytest.fixture(scope="module")
def fox(tmp_path_factory):
    with firefox(tmp_path_factory.mktemp("profile")) as found:
        yield found


def colours(fox):
    """How many different colours there are on the screen."""
    pixels = np.asarray(Image.open(io.BytesIO(fox.image())).convert("RGB")).reshape(-1, 3)
    return len(np.unique(pixels // 8, axis=0))


def test_the_report_answers_a_hover(fox, tmp_path):
    main(["explain", CHELSEA, *SMALL, "-o", str(tmp_path / "report.html"), "--device", "cpu"])
    fox.open((tmp_path / "report.html").as_uri() + "#view=attention-rows")
    box = fox.run("const b = document.querySelector('.stage').getBoundingClientRect(); return [b.x, b.y, b.width]")
    fox.move(box[0] + box[2] * 5.5 / 8, box[1] + box[2] * 2.5 / 8)
    fox.until("return document.querySelector('.said').textContent.includes('row 2, column 5 attends most to')")
    for tab in range(1, fox.run("return document.querySelectorAll('[role=tab]').length")):
        fox.run("document.querySelectorAll('[role=tab]')[arguments[0]].click()", tab)
    assert colours(fox) > 100
    assert fox.complaints() == []


def test_the_explorer_shows_the_next_image_and_clicks_patches_away(fox):
    with RunningExplorer({"packaged": load("packaged:cifar10")}) as page:
        fox.open(page.url)
        fox.run("document.querySelectorAll('.thumb')[1].click()")
        fox.until(
            "return vitreous.viewer.header.image.name === 'chelsea' && document.documentElement.dataset.ready", 60
        )
        assert fox.run("return document.querySelectorAll('.pending').length") == 0
        fox.run("vitreous.viewer.edits.change(() => vitreous.viewer.edits.gone.add(20))")
        fox.until("return vitreous.viewer.news.includes('Without 1 patch')", 60)
        assert fox.run("return document.querySelectorAll('.answer .value small').length") == 5
        assert colours(fox) > 100
        assert fox.complaints() == []


def test_a_runs_page_goes_from_moment_to_moment(fox, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.begin(TrainConfig(epochs=2))
    for epoch in (1, 2):
        folder.add_metrics({"epoch": epoch, "loss": 1 / epoch, "top1": 0.5, "learning_rate": 1e-3, "seconds": 1.0})
        filters = np.random.default_rng(epoch).integers(0, 256, (9, 3, 3, 3)).astype(np.uint8)
        write_snapshot(folder.snapshots, Snapshot(epoch, filters=filters))
    fox.open(write_run_page(folder).as_uri())
    fox.until("return document.querySelector('.now').textContent === 'epoch 2'")
    fox.run("document.querySelector('.scrubber input').focus()")
    fox.press(LEFT)
    fox.until("return document.querySelector('.now').textContent === 'epoch 1'")
    assert fox.run("return document.querySelectorAll('.plot svg path.curve').length") == 3
    seen = fox.run(
        """const { mosaic } = vitreous.views.filters, { x, y, width, height } = mosaic.position(4);
        return [...mosaic.canvas.getContext("2d").getImageData(x + width / 2, y + height / 2, 1, 1).data]"""
    )
    expected = np.random.default_rng(1).integers(0, 256, (9, 3, 3, 3))[4, 1, 1]
    assert seen[:3] == expected.tolist()
    assert fox.complaints() == []
