"""The explorer in a real browser: a server of its own on loopback, images dropped in, heads switched off."""

import io
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from chromium import Watched, settle, until
from PIL import Image
from two_towers import write_open_clip

import vitreous
from vitreous.data.preprocess import default_preprocess
from vitreous.data.sample_photos import samples
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.pages.explanation import Explanation
from vitreous.server.page_parts import Question
from vitreous.server.serve import RunningExplorer
from vitreous.views.inspection import Inspection
from vitreous.weights.card import Card
from vitreous.weights.load import load

pytestmark = pytest.mark.slow

TI = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def fresh(config):
    model = ViT(config).eval()
    model.card = Card("fresh", default_preprocess(config), tuple("abcdefghij"))
    return model


@pytest.fixture(scope="module", autouse=True)
def computed_once():
    """Let pages of the same question share their results, since nearly every test opens the same sample."""
    known, make = {}, Question.explanation

    def explanation(question, body, name):
        made = make(question, body, name)
        asked = (question.classes, question.heads_off, question.patches_off, question.blur)
        made._results = known.setdefault((id(question.model), repr(asked), body), made._results)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Question, "explanation", explanation)
        yield


@pytest.fixture(scope="module")
def home():
    """The explorer with the packaged model and two small fresh ones, of which one has larger patches."""
    coarse = replace(variant("vit_nano_patch4_32"), patch_size=8)
    models = {
        "packaged": load("packaged:cifar10"),
        "fresh": fresh(variant("vit_nano_patch4_32")),
        "coarse": fresh(coarse),
    }
    with RunningExplorer(models) as page:
        yield page.url


@pytest.fixture
def watched(chromium):
    watched = Watched(chromium)
    yield watched
    watched.context.close()


@pytest.fixture(scope="module")
def real(shared):
    """The explorer with the packaged model and a real ViT-Ti beside it: 8×8 patches and 14×14."""
    with RunningExplorer({"packaged": load("packaged:cifar10"), "ViT-Ti": load(shared / "weights" / TI)}) as page:
        yield page.url


def image():
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return {"name": "mine.png", "mimeType": "image/png", "buffer": file.getvalue()}


def test_it_opens_with_a_sample_and_asks_nobody_else(watched, home):
    page = watched.open(home)
    assert page.locator(".answer .name").first.inner_text() == "cat"
    assert watched.complaints == []
    assert watched.outside(home) == []


def test_an_image_of_ones_own_is_looked_at(watched, home):
    page = watched.open(f"{home}#view=attention-rows")
    page.set_input_files("#file", files=[image()])
    until(page, "globalThis.vitreous?.viewer.header.image.name === 'mine.png'")
    until(page, "document.documentElement.dataset.ready === '1'", 60)
    box = page.locator(".stage").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 10)
    settle(page)
    assert "row 0, column 0 attends most to" in page.locator(".said").inner_text()


def test_a_file_that_is_no_image_gets_a_line_and_the_page_goes_on(watched, home):
    page = watched.open(home)
    page.set_input_files("#file", files=[{"name": "x.png", "mimeType": "image/png", "buffer": b"hello"}])
    until(page, "document.getElementById('status').textContent.includes('x.png: not an image')")
    assert page.locator("#status").get_attribute("class") == "status wrong"
    page.get_by_role("button", name="chelsea").click()
    until(page, "globalThis.vitreous?.viewer.header.image.name === 'chelsea'")
    assert page.locator("#status").get_attribute("class") == "status"


def test_heads_switched_off_change_what_the_model_says(watched, home):
    page = watched.open(home)
    page.get_by_role("tab", name="Inside").click()
    page.get_by_role("button", name="Importance of heads").click()
    settle(page)
    before = page.locator(".answer .value").first.inner_text()
    for head in range(4):
        page.locator(f"button.cell[title^='block 7, head {head}:']").click()
        until(page, f"vitreous.viewer.off.size === {head + 1} && !vitreous.viewer.news.includes('Asking')", 60)
    settle(page)
    assert page.locator(".answer .value").first.inner_text() != before
    assert "Without 4 heads" in page.locator(".news").inner_text()
    page.get_by_role("button", name="All heads on").click()
    settle(page)
    assert page.locator(".answer .value").first.inner_text() == before


def test_two_models_move_in_step(watched, home):
    page = watched.open(f"{home}#view=attention-rows")
    page.select_option("#second", "fresh")
    until(page, "document.documentElement.dataset.ready === '2'", 60)
    box = page.locator(".stage").first.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.3 * box["height"])
    settle(page)
    said = [each.inner_text() for each in page.locator(".said").all()]
    assert len(said) == 2
    assert all("row 2, column 4 attends most to" in each for each in said)
    assert watched.complaints == []


def test_two_models_with_other_patches_mean_the_same_place(watched, home):
    page = watched.open(home)
    page.select_option("#second", "coarse")
    until(page, "document.documentElement.dataset.ready === '2'", 60)
    page.set_viewport_size({"width": 1300, "height": 1400})
    boxes = [stage.bounding_box() for stage in page.locator(".stage").all()]
    for across, down in ((0.6, 0.3), (0.01, 0.99), (0.99, 0.01)):
        for box in boxes:  # over the fine grid of 8×8, then over the coarse one of 4×4
            page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
            settle(page)
            fine, coarse = page.evaluate("vitreous.viewers.map((viewer) => viewer.drawn.query - 1)")
            assert (coarse // 4, coarse % 4) == (int(4 * down), int(4 * across))
            assert (fine // 8 // 2, fine % 8 // 2) == (int(4 * down), int(4 * across))
            if box is boxes[0]:
                assert (fine // 8, fine % 8) == (int(8 * down), int(8 * across))
    assert watched.complaints == []


@pytest.mark.parametrize("model", ["packaged", "ViT-Ti"])
def test_a_real_model_looks_at_an_upload_and_loses_heads(watched, real, model, shared):
    page = watched.open(real)
    page.select_option("#first", model)
    page.set_input_files("#file", shared / "data/santorini.png")
    until(page, "globalThis.vitreous?.viewer.header.image.name === 'santorini.png'", patience=60)
    until(page, f"document.documentElement.dataset.ready && vitreous.viewer.header.model.name === '{model}'", 60)
    if model == "ViT-Ti":
        assert page.locator(".answer .name").first.inner_text() == "dome"
    before = page.locator(".answer .value").first.inner_text()
    page.get_by_role("tab", name="Inside").click()
    page.get_by_role("button", name="Importance of heads").click()
    settle(page)
    for head in range(3):
        page.locator(f"button.cell[title^='block 5, head {head}:']").click()
        until(page, f"vitreous.viewer.off.size === {head + 1} && !vitreous.viewer.news.includes('Asking')", 60)
    settle(page)
    assert "Without 3 heads" in page.locator(".news").inner_text()
    assert page.locator(".answer .value").first.inner_text() != before
    assert watched.complaints == []
    assert watched.outside(real) == []


def test_two_real_models_stand_side_by_side(watched, real, shared):
    page = watched.open(f"{real}#view=attention-rows")
    page.set_viewport_size({"width": 1300, "height": 1400})
    page.set_input_files("#file", shared / "data/santorini.png")
    page.select_option("#second", "ViT-Ti")
    until(page, "document.documentElement.dataset.ready === '2'", 60)
    box = page.locator(".stage").last.bounding_box()
    page.mouse.move(box["x"] + 0.99 * box["width"], box["y"] + 0.99 * box["height"])
    settle(page)
    said = [each.inner_text() for each in page.locator(".said").all()]
    assert "row 7, column 7 attends most to" in said[0]
    assert "row 13, column 13 attends most to" in said[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1300
    assert watched.complaints == []


def test_a_slow_answer_says_what_is_being_worked_out_and_who_is_before(watched, home, monkeypatch):
    page = watched.open(home)
    go_on = threading.Event()

    fill = Explanation.fill

    def slowly(explanation, payload, progress):
        stages = fill(explanation, payload, progress)
        yield next(stages)
        progress("relevance")
        go_on.wait(20)
        yield from stages

    monkeypatch.setattr(Explanation, "fill", slowly)
    try:
        page.select_option("#second", "fresh")
        said = "document.getElementById('said').textContent"
        until(page, f"{said}.includes('packaged: relevance') || {said}.includes('fresh: relevance')")
        until(page, f"{said}.includes('waiting, 1 before')")
        assert page.locator("#said").get_attribute("role") == "status"
        assert page.locator("#seconds").get_attribute("aria-hidden") == "true"
        until(page, "document.getElementById('seconds').textContent.trim() === '1 s'")
    finally:
        go_on.set()
    until(page, "document.documentElement.dataset.ready === '2'", 60)
    assert page.evaluate(said) == ""
    assert watched.complaints == []
    assert watched.outside(home) == []


def test_the_api_page_lists_what_there_is(watched, home):
    page = watched.open(home + "api")
    assert page.get_by_text("POST /api/explain").is_visible()
    assert watched.outside(home) == []


def test_image_and_answers_are_there_before_the_maps_are(watched, home, monkeypatch):
    page = watched.open(home)
    before = page.locator(".answer-line").inner_text()
    answers, maps = threading.Event(), threading.Event()
    fill = Explanation.fill

    def slowly(explanation, payload, progress):
        stages = fill(explanation, payload, progress)
        answers.wait(20)
        yield next(stages)
        maps.wait(20)
        yield from stages

    monkeypatch.setattr(Explanation, "fill", slowly)
    try:
        page.get_by_role("button", name="chelsea").click()
        until(
            page, "document.querySelector('.stage .coming')?.naturalWidth === 451", 60
        )  # the image, before any answer
        assert page.locator(".slot.waiting .answer-line").inner_text() == before
        until(page, "getComputedStyle(document.querySelector('.slot.waiting .views')).opacity === '0.35'")  # it fades
        answers.set()
        until(page, "globalThis.vitreous.viewer.header.image.name === 'chelsea'", 60)
        assert page.locator(".slot.waiting").count() == 0
        assert page.locator(".answer-line").inner_text() != before
        assert page.get_by_text("Being worked out").is_visible()
        assert page.locator(".tabs button.pending").count() == 4
    finally:
        answers.set()
        maps.set()
    until(page, "document.documentElement.dataset.ready === '1'", 60)
    assert page.locator(".pending").count() == 0
    assert page.locator(".proof").inner_text()
    assert watched.complaints == []


def test_the_best_map_that_is_ready_is_shown_until_the_removal_map_is(watched, home, monkeypatch):
    page = watched.open(home)
    maps = threading.Event()
    fill = Explanation.fill

    def slowly(explanation, payload, progress):
        for header in fill(explanation, payload, progress):
            yield header
            if [view["name"] for view in header["views"]] == ["relevance"]:
                maps.wait(20)

    monkeypatch.setattr(Explanation, "fill", slowly)
    try:
        page.get_by_role("button", name="chelsea").click()
        until(
            page,
            "vitreous.viewer.header.image.name === 'chelsea' && vitreous.viewer.shown?.title?.startsWith('Relevance')",
            60,
        )
        assert page.evaluate("vitreous.viewer.view.name") == "removal"
        assert "Until then the image shows “Relevance for a class”" in page.locator(".sentences p.pending").inner_text()
        assert max(page.evaluate("[...vitreous.viewer.drawn.values]")) > 0
    finally:
        maps.set()
    until(page, "vitreous.viewer.shown.title.startsWith('Removal')", 60)
    assert watched.complaints == []


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def ready(page, models=1):
    until(page, f"document.documentElement.dataset.ready === '{models}' && !document.querySelector('.pending')", 60)


def test_patches_are_clicked_away_and_brought_back(watched, home):
    page = watched.open(home)
    before = page.locator(".answer .value").first.inner_text()
    page.get_by_role("button", name="Click patches away").click()
    box = page.locator(".stage").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.3 * box["height"], steps=12)
    page.mouse.up()
    assert page.evaluate("[...vitreous.viewer.edits.gone]") == [18, 19, 20, 21]
    until(page, "vitreous.viewer.news.includes('Without 4 patches')", 60)
    ready(page)
    assert page.locator(".answer .value small").count() == 5  # the difference to before
    now = "vitreous.viewer.header.predictions.find((each) => each.index === vitreous.viewer.header.classes[0].index)"
    asked = page.evaluate(f"[vitreous.viewer.header.classes[0].probability, ({now}).probability]")
    assert asked[0] == pytest.approx(asked[1])  # what the sentence under the image starts from
    attention = "[...vitreous.viewer.read(vitreous.viewer.attention, {...vitreous.state.values, hover: null}).values]"
    assert [value for i, value in enumerate(page.evaluate(attention)) if i in (18, 19, 20, 21)] == [0, 0, 0, 0]
    press(page, "blurred")
    until(page, "vitreous.viewer.news.includes('With 4 patches blurred')", 60)
    ready(page)
    assert all(page.evaluate(attention))
    press(page, "Undo")
    until(page, "vitreous.viewer.news.includes('Without 4 patches')", 60)
    press(page, "Everything back")
    until(page, "vitreous.viewer.news === ''", 60)
    settle(page)
    assert page.locator(".answer .value").first.inner_text() == before
    assert page.locator(".answer .value small").count() == 0
    assert watched.complaints == []


def test_heads_off_change_the_maps_too(watched, home):
    page = watched.open(f"{home}#view=importance")
    by_class = "vitreous.viewer.maps.find((each) => each.axes[0] === 'class')"
    heat = f"[...vitreous.viewer.read({by_class}, vitreous.state.values).values]"
    before = page.evaluate(heat)
    page.locator("button.cell[title^='block 3, head 1:']").click()
    until(page, "vitreous.viewer.news.includes('Without 1 head')", 60)
    ready(page)
    assert page.evaluate(heat) != before
    press(page, "Undo")
    until(page, "vitreous.viewer.news === ''", 60)
    assert page.evaluate(heat) == before


def test_the_difference_to_before_is_drawn_over_the_image(watched, home):
    page = watched.open(f"{home}#view=attention-rows&block=7")
    until(page, "document.documentElement.dataset.ready === '1'", 60)
    before = np.array(page.evaluate("Array.from(vitreous.viewer.drawn.values)"))
    page.evaluate("vitreous.viewer.toggle(2, 1)")
    until(page, "vitreous.viewer.off.size === 1 && vitreous.viewer.header.views.every((view) => !view.pending)", 60)
    settle(page)
    now = np.array(page.evaluate("Array.from(vitreous.viewer.drawn.values)"))
    page.get_by_role("button", name="Difference to before").click()
    settle(page)
    found = np.array(page.evaluate("Array.from(vitreous.viewer.drawn.values)"))
    assert np.allclose(found, now - before, atol=1e-6)
    assert np.abs(found).max() > 0
    assert page.evaluate("vitreous.viewer.drawn.kind") == "tints"
    assert "attention, change" in page.locator(".legend-line").inner_text()
    page.get_by_role("button", name="Undo").click()
    settle(page)
    assert not page.get_by_role("button", name="Difference to before").is_visible()
    assert np.allclose(page.evaluate("Array.from(vitreous.viewer.drawn.values)"), before)
    assert watched.complaints == []


def test_the_address_holds_image_model_class_and_view_and_back_works(watched, home):
    page = watched.open(home)
    page.get_by_role("button", name="chelsea").click()
    until(page, "vitreous.viewer.header.image.name === 'chelsea' && document.documentElement.dataset.ready", 60)
    page.select_option("#first", "fresh")
    until(page, "vitreous.viewer.header.model.name === 'fresh' && document.documentElement.dataset.ready", 60)
    page.get_by_role("tab", name="Where").click()
    until(page, "location.hash.includes('view=attention-rows')")
    assert page.evaluate("location.hash") == "#view=attention-rows&sample=chelsea&model=fresh"
    again = watched.context.new_page()  # the same address in another tab
    again.goto(page.evaluate("location.href"))
    until(
        again, "globalThis.vitreous?.viewer.header.model.name === 'fresh' && document.documentElement.dataset.ready", 60
    )
    assert again.evaluate("vitreous.viewer.header.image.name") == "chelsea"
    assert again.evaluate("vitreous.viewer.view.name") == "attention-rows"
    page.go_back()
    until(page, "vitreous.viewer.view.name === 'removal'")
    page.go_back()
    until(page, "vitreous.viewer.header.model.name === 'packaged'", 60)
    page.go_back()
    until(page, "vitreous.viewer.header.image.name === 'coffee'", 60)
    assert watched.complaints == []


def test_any_class_can_be_asked_for_and_every_map_follows(watched, home):
    page = watched.open(home)
    held = page.evaluate("vitreous.viewer.header.classes.map((each) => each.index)")
    asked = next(index for index in range(10) if index not in held)
    name = page.evaluate(f"vitreous.viewer.header.classNames[{asked}]")
    page.get_by_label("Find a class").fill(name)
    page.get_by_label("Find a class").press("Enter")
    until(page, f"vitreous.viewer.header.classes[0].index === {asked} && document.documentElement.dataset.ready", 60)
    until(page, f"location.hash.includes('class={asked}')")
    titles = page.evaluate("vitreous.viewer.maps.filter((each) => each.names.class).map((each) => each.names.class[0])")
    assert len(titles) >= 3
    assert set(titles) == {name}
    assert name in page.locator(".proof").inner_text()


def test_a_sentence_stands_in_the_place_of_a_class_and_is_text(watched, tmp_path):
    hostile = "the \"bell\" <script>document.title = 'x'</script> <b>tower</b> & 'co'"
    torch.manual_seed(0)
    write_open_clip(tmp_path)
    with vitreous.explore(tmp_path, device="cpu") as explorer:
        page = watched.open(explorer.url)
        title, box = page.title(), page.get_by_label("Ask for a sentence")
        box.fill(hostile)
        box.press("Enter")
        until(page, "vitreous.viewer.header.classNames && document.documentElement.dataset.ready", 60)
        assert page.locator(".answer-line strong").inner_text() == hostile
        assert hostile in page.locator(".proof").inner_text()
        assert page.evaluate("vitreous.viewer.view.name") == "removal"
        named = "vitreous.viewer.maps.map((each) => each.names?.class?.[0]).filter(Boolean)"
        assert set(page.evaluate(named)) == {hostile}
        assert page.locator("b", has_text="tower").count() == page.locator("main script").count() == 0
        assert page.title() == title
        page.get_by_label("Ask for a sentence").fill("x" * 5000)
        page.get_by_label("Ask for a sentence").press("Enter")
        until(page, "document.querySelector('.found').textContent")
        said = "A sentence has at most 1,000 characters, this one has 5,000."
        assert page.locator(".found").inner_text() == said
        assert page.locator(".answer-line strong").inner_text() == hostile
        page.go_back()
        until(page, "!vitreous.viewer.header.classNames && document.documentElement.dataset.ready", 60)
        page.go_forward()
        until(page, "vitreous.viewer.header.classNames && document.documentElement.dataset.ready", 60)
        assert page.locator(".answer-line strong").inner_text() == hostile
        assert page.get_by_label("Ask for a sentence").input_value() == hostile
    assert watched.complaints == []


def test_several_files_are_kept_at_hand(watched, home):
    page = watched.open(home)
    other = image() | {"name": "other.png"}
    text = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"}
    page.set_input_files("#file", files=[image(), text, other])
    until(page, "vitreous.viewer.header.image.name === 'mine.png'", 60)
    assert page.locator(".thumb").count() == 5
    page.get_by_role("button", name="other.png").click()
    until(page, "vitreous.viewer.header.image.name === 'other.png'", 60)
    until(page, "location.hash.includes('image=1')")
    page.go_back()
    until(page, "vitreous.viewer.header.image.name === 'mine.png'", 60)
    assert watched.complaints == []


def test_a_phone_has_nothing_beside_its_screen(chromium, home):
    phone = Watched(chromium, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = phone.open(home)
    page.get_by_role("button", name="Click patches away").tap()
    page.locator(".stage").tap()
    until(page, "vitreous.viewer.news.includes('Without 1 patch')", 60)
    for group in ("Why", "Where", "Inside", "Model"):
        page.get_by_role("tab", name=group).tap()
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390, group
    page.select_option("#second", "fresh")
    ready(page, 2)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert phone.complaints == []
    phone.context.close()


def test_an_address_dropped_from_another_tab_is_fetched_by_the_server(watched, home):
    page = watched.open(home)
    asked = []

    def answer(route):
        asked.append(route.request.url)
        route.fulfill(body=image()["buffer"], content_type="application/octet-stream")

    page.route("**/api/fetch?**", answer)
    page.evaluate(
        """() => {
            const dataTransfer = new DataTransfer();
            dataTransfer.setData("text/uri-list", "https://cats.example/a/tabby%20cat.png?size=3");
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
        }"""
    )
    until(page, "vitreous.viewer.header.image.name === 'tabby cat.png'", 60)
    assert [url.partition("?")[2] for url in asked] == [
        "url=https%3A%2F%2Fcats.example%2Fa%2Ftabby%2520cat.png%3Fsize%3D3"
    ]
    assert watched.complaints == []
    assert watched.outside(home) == []


def test_an_address_of_this_machine_is_not_fetched_and_the_page_says_so(watched, home):
    page = watched.open(home)
    page.evaluate(
        """(text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", text);
            document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }""",
        f"{home}api/samples/coffee",
    )
    until(page, "document.getElementById('said').textContent.includes('only public ones are fetched')", 60)
    assert page.locator("#status").get_attribute("class") == "status wrong"


def test_the_camera_gives_an_image_and_is_switched_off(watched, home):
    page = watched.page
    page.add_init_script(
        """navigator.mediaDevices.getUserMedia = async () => {
            const canvas = document.createElement("canvas");
            canvas.width = canvas.height = 64;
            const context = canvas.getContext("2d");
            setInterval(() => { context.fillStyle = "#c33"; context.fillRect(0, 0, 64, 64); }, 30);
            return (globalThis.stream = canvas.captureStream());
        };"""
    )
    watched.open(home)
    page.get_by_role("button", name="Take a photo").click()
    until(page, "document.querySelector('dialog video')?.videoWidth === 64", 60)
    press(page, "Take it")
    until(page, "vitreous.viewer.header.image.name === 'photo' && vitreous.viewer.header.image.size[0] === 64", 60)
    assert page.locator("dialog").count() == 0
    assert page.evaluate("stream.getTracks().map((track) => track.readyState)") == ["ended"]
    assert watched.complaints == []


def test_answers_stay_and_the_page_says_why_where_maps_cannot_be_had(watched, home, monkeypatch):
    page = watched.open(home)
    fill = Explanation.fill

    def breaks(explanation, payload, progress):
        yield next(fill(explanation, payload, progress))
        raise ValueError("too much is asked of this machine")

    monkeypatch.setattr(Explanation, "fill", breaks)
    page.get_by_role("button", name="chelsea").click()
    until(page, "document.getElementById('status').textContent.includes('chelsea: too much is asked')", 60)
    page.get_by_text("Not worked out: too much is asked of this machine").wait_for()  # drawn in the next frame
    assert page.get_by_text("Being worked out").count() == 0
    assert page.locator(".answer .name").count() == 5
    assert page.locator("[aria-busy]").count() == 0


def test_back_changes_address_and_values_at_once_so_that_no_pending_write_comes_between(watched, home):
    page = watched.open(home)
    page.evaluate("vitreous.state.set({ view: 'similarity' })")
    until(page, "location.hash.includes('view=similarity')")
    page.evaluate(
        """() => {
            addEventListener("popstate", () => { globalThis.found = vitreous.state.values.view; }, { once: true });
            vitreous.state.set({ query: 12, hover: null }); // is written 150 ms later
            history.back();
        }"""
    )
    until(page, "globalThis.found")
    assert page.evaluate("found") != "similarity"
    page.wait_for_timeout(300)
    assert page.evaluate("location.hash + vitreous.state.values.view").count("similarity") == 0
    assert watched.complaints == []


def test_two_images_stand_side_by_side_and_alike_patches_are_found_in_the_other(watched, home):
    page = watched.open(f"{home}#view=similarity&block=5")
    page.select_option("#second", "image:chelsea")
    ready(page, 2)
    names = page.locator(".slot:not([hidden]) h2.quiet").all_inner_texts()
    assert names == ["coffee", "chelsea"]
    until(page, "location.hash.includes('beside=image%3Achelsea')")
    assert page.evaluate("vitreous.viewers.map((viewer) => viewer.header.model.name)") == ["packaged", "packaged"]
    page.evaluate("vitreous.state.set({ query: 12, hover: null, from: vitreous.viewer })")
    settle(page)
    said = page.locator(".said").nth(1).inner_text()
    assert said.startswith("After block 5, the patch in row 1, column 3 of coffee is most similar to the patch in row")
    found = page.evaluate("vitreous.viewers.map((viewer) => [...viewer.drawn.values])")
    model, pictures = load("packaged:cifar10"), samples()
    tokens = [Inspection(model, pictures[name]).outputs[5, 1:].detach() for name in ("coffee", "chelsea")]
    for values, others in zip(found, tokens, strict=True):
        assert np.allclose(values, torch.cosine_similarity(tokens[0][11], others, dim=-1), atol=0.03)
    page.go_back()
    ready(page, 1)
    assert watched.complaints == []


def test_files_are_dropped_and_pasted(watched, home):
    page = watched.open(home)
    for kind, field, name in (("DragEvent", "dataTransfer", "drop"), ("ClipboardEvent", "clipboardData", "paste")):
        page.evaluate(
            """([kind, field, name, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], `${name}.png`, { type: "image/png" }));
                const event = new globalThis[kind](name, { [field]: data, bubbles: true, cancelable: true });
                document.body.dispatchEvent(event);
            }""",
            [kind, field, name, list(image()["buffer"])],
        )
        until(page, f"vitreous.viewer.header.image.name === '{name}.png'", 60)
    assert page.locator(".thumb").count() == 5
    assert watched.complaints == []


def test_two_tabs_keep_their_own_image_and_model(watched, home):
    first = watched.open(f"{home}#sample=chelsea")
    second = watched.context.new_page()
    second.goto(f"{home}#model=fresh")
    ready(second)
    ready(first)
    names = "[vitreous.viewer.header.model.name, vitreous.viewer.header.image.name]"
    shown = [page.evaluate(names) for page in (first, second)]
    assert shown == [["packaged", "chelsea"], ["fresh", "coffee"]]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])  # layout and colours are apart
def test_axe_has_no_complaint(chromium, home, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    watched = Watched(chromium, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = watched.open(home)
    page.get_by_role("button", name="Click patches away").click()
    page.locator(".stage").click()
    until(page, "vitreous.viewer.news.includes('Without 1 patch')", 60)
    ready(page)
    press(page, "Difference to before")
    for view in ("relevance", "importance", "similarity", "trust"):
        page.evaluate(f"vitreous.state.set({{ view: '{view}' }})")
        settle(page)
        problems = [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in axe.run(page).response["violations"]]
        assert problems == [], view
    page.select_option("#second", "image:chelsea")
    ready(page, 2)
    assert [each["id"] for each in axe.run(page).response["violations"]] == []
    watched.context.close()
