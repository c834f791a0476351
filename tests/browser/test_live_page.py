"""The live page in real browsers, from disk and without a network: its numbers are Python's, on images dropped in."""

import functools
import http.server
import threading

import numpy as np
import pytest
import torch
from chromium import Watched, settle, until
from firefox import firefox
from PIL import Image, ImageOps

from vitreous.api.explore import write_site
from vitreous.data.preprocess import default_preprocess
from vitreous.data.sample_photos import samples
from vitreous.inside.capture import capture
from vitreous.inside.intervene import intervene
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.pages.explanation import Explanation
from vitreous.pages.live import LIVE_VIEWS, round_weights
from vitreous.views.inspection import Inspection
from vitreous.weights.card import Card

pytestmark = pytest.mark.slow

READY = "document.documentElement.dataset.ready !== undefined"
ARRAY = """(name) => { const { data, shape, scale } = vitreous.viewer.payload.array(name), last = shape.at(-1);
    return Array.from(data, (value, i) => value * (scale ? scale[Math.floor(i / last)] : 1)); }"""


@pytest.fixture(scope="module")
def model():
    """A small model with noise in every tensor, as a live page holds it."""
    torch.manual_seed(0)
    model = ViT(variant("vit_femto_patch4_32")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.card = Card("small", default_preprocess(model.config), tuple("abcdefghij"))
    return round_weights(model, "fp16")


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    """A live page of the model, which explains a cat."""
    explanation = Explanation(Inspection(model, samples()["chelsea"], name="chelsea"), "all")
    return explanation.save(tmp_path_factory.mktemp("live") / "page.html", live=True)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photographs as files: as PNG, and one as a JPEG that EXIF turns."""
    folder, found = tmp_path_factory.mktemp("photos"), {}
    for name in ("coffee", "chelsea"):
        found[name] = folder / f"{name}.png"
        samples()[name].save(found[name])
    turned = Image.Exif()
    turned[0x0112] = 6
    found["turned"] = folder / "turned.jpg"
    samples()["coffee"].save(found["turned"], quality=95, exif=turned)
    return found


def drop(page, path):
    """Drop a file into the page and wait for all that it computes."""
    page.evaluate("""() => {
        delete document.documentElement.dataset.ready;
        document.querySelector("#status").classList.remove("wrong"); // what was said of the file before
    }""")
    page.set_input_files("#file", str(path))
    until(page, f"({READY}) || document.querySelector('#status').classList.contains('wrong')", 120)


def logits_of(page):
    return {each["index"]: each["logit"] for each in page.evaluate("vitreous.viewer.header.predictions")}


def assert_same(found, logits, tolerance=1e-3):
    """The page's first classes have Python's logits, in Python's order."""
    order = logits.argsort(descending=True, stable=True)[: len(found)].tolist()
    assert list(found)[:5] == order[:5]
    for index, value in found.items():
        assert abs(value - logits[index].item()) <= tolerance * logits.abs().max().item()


def test_dropped_images_get_the_numbers_of_python(watched, file, photos, model):
    page = watched.open(file.as_uri())
    for path in photos.values():
        drop(page, path)
        inspection = Inspection(model, ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
        with torch.inference_mode(), capture(model, "attention") as seen:
            logits = model(inspection.x)[0]
        assert_same(
            logits_of(page), logits, 1e-3 if path.suffix == ".png" else 2e-2
        )  # browsers decode a JPEG by themselves
        if path.suffix == ".png":
            attention = np.array(page.evaluate(ARRAY, "attention-rows"))
            assert np.abs(attention - seen.stack("attention").flatten().numpy()).max() < 1e-3
    assert watched.complaints == []
    assert watched.outside() == []


def test_every_view_of_a_dropped_image_is_that_of_python(watched, file, photos, model):
    page = watched.open(file.as_uri())
    drop(page, photos["coffee"])
    explanation = Explanation(Inspection(model, samples()["coffee"], name="coffee.png"), list(LIVE_VIEWS))
    payload = explanation.payload()
    arrays = payload.header["arrays"]
    block = b"".join(payload.parts)
    wanted = {view["name"]: view for view in payload.header["views"]}
    found = {view["name"]: view for view in page.evaluate("vitreous.viewer.header.views")}
    assert set(wanted) <= set(found)
    compared = 0
    for name, view in wanted.items():
        for ours, theirs in zip(view["results"], found[name]["results"], strict=True):
            assert ours["title"] == theirs["title"]
            for field in ("array", "embedding", "positions", "q", "k", "added"):
                array = ours.get(field)
                if not isinstance(array, str):
                    continue
                entry = arrays[array]
                if entry.get("symmetric") or f"{array}.scale" in arrays:
                    continue  # rounded by Python; attention is compared above
                values = np.frombuffer(block, np.float32, int(np.prod(entry["shape"])), entry["offset"])
                got = np.array(page.evaluate(ARRAY, theirs[field]))
                assert np.abs(got - values).max() <= 2e-3 * np.abs(values).max(), (name, field)
                compared += 1
    assert compared >= 8
    ours, theirs = wanted["evidence"]["results"][0], found["evidence"]["results"][0]
    assert theirs["chosen"][0] == ours["chosen"][0]
    assert abs(theirs["random"][0] - ours["random"][0]) < 1e-3
    assert theirs["passed"][0] == ours["passed"][0]


def test_heads_off_and_patches_away_equal_intervene(watched, file, photos, model):
    page = watched.open(file.as_uri())
    drop(page, photos["coffee"])
    x = Inspection(model, samples()["coffee"]).x
    steps = [
        ("edits.off.add('1.0'); edits.off.add('3.2')", {"heads_off": [(1, 0), (3, 2)]}),
        (
            "edits.gone.add(3); edits.gone.add(20); edits.gone.add(21)",
            {"heads_off": [(1, 0), (3, 2)], "patches_off": [3, 20, 21]},
        ),
    ]
    for script, changes in steps:
        before = page.evaluate("vitreous.viewer.news")
        page.evaluate(f"() => {{ const {{ edits }} = vitreous.viewer; edits.change(() => {{ {script} }}); }}")
        until(page, f"vitreous.viewer.news.startsWith('Without') && vitreous.viewer.news !== {before!r}", 60)
        with torch.inference_mode(), intervene(model, **changes):
            assert_same(logits_of(page), model(x)[0])
    until(page, "!vitreous.viewer.header.views.some((view) => view.pending)", 60)
    page.evaluate("() => { vitreous.viewer.edits.clear(); }")
    until(page, "vitreous.viewer.before === null", 20)
    with torch.inference_mode():
        assert_same(logits_of(page), model(x)[0])
    assert watched.complaints == []


def test_a_change_is_answered_while_the_photo_is_still_looked_at(watched, file, photos, model):
    page = watched.open(file.as_uri())
    page.set_input_files("#file", str(photos["coffee"]))
    early = page.evaluate(
        """async () => {
          const until = async (ready) => { while (!ready()) await new Promise((done) => setTimeout(done, 1)); };
          await until(() => vitreous.viewer.header.image.name === "coffee.png");
          const { viewer } = vitreous, { edits } = viewer;
          edits.change(() => edits.gone.add(20));
          await until(() => viewer.news.startsWith("Without 1 patch"));
          const logits = viewer.header.predictions.map(({ index, logit }) => [index, logit]);
          return { logits, waits: edits.base.views.some((each) => each.pending) };
        }"""
    )
    assert early["waits"]  # for views of the whole image
    x = Inspection(model, samples()["coffee"]).x
    with torch.inference_mode(), intervene(model, patches_off=[20]):
        assert_same(dict(early["logits"]), model(x)[0])
    until(page, READY, 60)
    page.evaluate("() => { vitreous.viewer.edits.clear(); }")
    until(page, "vitreous.viewer.before === null", 20)
    with torch.inference_mode():
        assert_same(logits_of(page), model(x)[0])
    assert not page.evaluate("vitreous.viewer.header.views.some((view) => view.pending || !view.results.length)")
    assert page.evaluate("document.querySelectorAll('.story-line button').length") == 8
    maps = "vitreous.viewer.header.views.filter(({ name }) => name === 'removal').flatMap(({ results }) => results)"
    names = page.evaluate(f"{maps}.map(({{ array }}) => array)")
    late = [page.evaluate(ARRAY, name) for name in names]
    drop(page, photos["coffee"])  # once more, without a change in between
    assert late == [page.evaluate(ARRAY, name) for name in names]
    assert len(late) == 2
    assert watched.complaints == []


def test_the_image_of_the_report_can_be_changed_too(watched, file, model):
    page = watched.open(file.as_uri())
    assert page.evaluate(
        "vitreous.viewer.header.views.some((view) => view.name === 'relevance' && view.results.length)"
    )
    page.evaluate("() => { const { edits } = vitreous.viewer; edits.change(() => edits.gone.add(10)); }")
    until(page, "vitreous.viewer.news.startsWith('Without 1 patch')", 60)
    with torch.inference_mode(), intervene(model, patches_off=[10]):
        assert_same(logits_of(page), model(Inspection(model, samples()["chelsea"]).x)[0])
    until(page, "!vitreous.viewer.header.views.some((view) => view.pending)", 60)
    assert not page.evaluate(
        "vitreous.viewer.header.views.some((view) => view.name === 'relevance')"
    )  # gradients: Python's
    page.evaluate("() => { vitreous.viewer.edits.clear(); }")
    until(page, "vitreous.viewer.header.views.some((view) => view.name === 'relevance')", 20)
    assert watched.complaints == []


def test_plain_javascript_gives_the_same_answers(watched, file, photos, model):
    page = watched.open(file.as_uri() + "?plain")
    drop(page, photos["coffee"])
    assert page.evaluate("document.documentElement.dataset.network") == "plain"
    with torch.inference_mode():
        assert_same(logits_of(page), model(Inspection(model, samples()["coffee"]).x)[0])


def test_odd_files_get_an_answer_or_one_line(watched, file, tmp_path):
    page = watched.open(file.as_uri())
    photo = samples()["coffee"].resize((60, 40))

    def saved(name, image, **options):
        image.save(tmp_path / name, **options)
        return tmp_path / name

    answered = [
        saved("dot.png", photo.resize((1, 1))),
        saved("grey.png", photo.convert("L")),
        saved("clear.png", photo.convert("RGBA")),
        saved("moving.gif", photo, save_all=True, append_images=[photo.rotate(90)]),
        saved("press.jpg", photo.convert("CMYK")),
        saved("long.png", photo.resize((1500, 3))),
    ]
    for path in answered:
        drop(page, path)
        assert page.inner_text("#said") == "", path
        assert page.evaluate("vitreous.viewer.header.image.name") == path.name
    refused = {"text.jpg": b"no image at all", "empty.png": b"", "half.png": answered[1].read_bytes()[:60]}
    for name, data in refused.items():
        (tmp_path / name).write_bytes(data)
        drop(page, tmp_path / name)
        said = page.inner_text("#said")
        assert said.startswith(f"{name}: "), said
        assert len(said) < 120
    drop(page, answered[0])
    assert page.inner_text("#said") == ""  # and it goes on


def test_the_page_is_accessible_wide_narrow_and_dark(chromium, file):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for options in (
        {"viewport": {"width": 1366, "height": 650}},
        {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
    ):
        watched = Watched(chromium, **options)
        page = watched.open(file.as_uri())
        settle(page)
        found = axe.run(page).response["violations"]
        assert [each["id"] for each in found] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        watched.context.close()


def test_firefox_gives_the_same_answers(file, photos, model, tmp_path):
    (tmp_path / "profile").mkdir()
    with firefox(tmp_path / "profile") as fox:
        fox.open(file.as_uri())
        fox.until("return document.documentElement.dataset.network === 'wasm'", 60)
        data = list(photos["coffee"].read_bytes())
        fox.run(
            """const data = new DataTransfer(), input = document.querySelector("#file");
            data.items.add(new File([new Uint8Array(arguments[0])], "coffee.png", { type: "image/png" }));
            input.files = data.files; input.dispatchEvent(new Event("change"));""",
            data,
        )
        fox.until("return vitreous.viewer.header.image.name === 'coffee.png'", 60)
        predictions = fox.run("return vitreous.viewer.header.predictions")
        with torch.inference_mode():
            logits = model(Inspection(model, samples()["coffee"]).x)[0]
        assert_same({each["index"]: each["logit"] for each in predictions}, logits)
        fox.run("vitreous.viewer.edits.change(() => vitreous.viewer.edits.gone.add(20))")
        fox.until("return vitreous.viewer.news.includes('Without 1 patch')", 60)
        predictions = fox.run("return vitreous.viewer.header.predictions")
        with torch.inference_mode(), intervene(model, patches_off=[20]):
            logits = model(Inspection(model, samples()["coffee"]).x)[0]
        assert_same({each["index"]: each["logit"] for each in predictions}, logits)
        assert fox.complaints() == []


def test_a_static_site_reads_its_weights_beside_the_page(watched, model, photos, tmp_path):
    page_file, weights = write_site(tmp_path, model)
    assert page_file.name == "index.html"
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_address[1]}/"
        watched.context.set_offline(False)
        page = watched.open(home)
        until(page, "document.documentElement.dataset.network === 'wasm'", 60)
        assert f"{home}{weights.name}" in watched.requests
        assert watched.outside(home) == []
        page.set_input_files("#file", str(photos["coffee"]))
        until(page, "vitreous.viewer.header.image.name === 'coffee.png'", 60)
        with torch.inference_mode():
            assert_same(logits_of(page), model(Inspection(model, samples()["coffee"]).x)[0])
        page.close()
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""
