"""The explorer in a real browser with models that give labels, numbers and masks: each follows its own task."""

import re

import pytest
import torch
from chromium import Watched, settle, until
from task_sets import task_model

from vitreous.data.sample_photos import samples
from vitreous.inside.intervene import intervene
from vitreous.models.dense_head import at_pixel
from vitreous.runtime.wording import format_number
from vitreous.server.serve import RunningExplorer
from vitreous.views.inspection import Inspection

pytestmark = pytest.mark.slow
LABELS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")
READY = "document.documentElement.dataset.ready === '{}'"
CHANGE = """() => {
  const { edits } = vitreous.viewer;
  edits.change(() => { edits.gone.add(5); edits.off.add("1.0"); });
}"""
SETTLED = "vitreous.viewer.header.views.every((view) => !view.pending) && !vitreous.viewer.news.includes('Asking')"


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(1)
    found = {
        "labels": task_model("multilabel", LABELS),
        "numbers": task_model("regress"),
        "masks": task_model("segment"),
    }
    found["numbers"].card.training = {"standard": [[3.0, 2.0], [-1.0, 0.5]]}
    ground, box = outputs(found["masks"])
    with torch.no_grad():
        found["masks"].head.bias[1] += (ground - box).median()  # both classes have pixels
    return found


@pytest.fixture(scope="module")
def home(models):
    with RunningExplorer(models) as page:
        yield page.url


@pytest.fixture
def watched(chromium):
    watched = Watched(chromium, viewport={"width": 1366, "height": 650})
    yield watched
    assert watched.complaints == []
    watched.context.close()


def outputs(model):
    """What the model gives for the sample that the page opens with."""
    with torch.no_grad():
        return model(Inspection(model, next(iter(samples().values()))).x)[0]


def percent(value):
    digits = 0 if value >= 0.0995 or value == 0 else 1 if value >= 0.00995 else 2
    return f"{100 * value:.{digits}f} %"


def headline(page, at=0):
    return page.locator("h2.answer-line").nth(at).inner_text().replace("\n", " ")


def written(value):
    return format_number(value).replace("-", "−")


def test_a_label_is_found_by_its_name_and_every_map_follows(watched, home, models):
    page, found = watched.open(f"{home}#model=labels"), outputs(models["labels"]).sigmoid()
    best, least = int(found.argmax()), int(found.argmin())
    assert headline(page) == f"{LABELS[best]} {percent(found[best].item())}"
    shown = [each.inner_text() for each in page.locator(".answer .value").all()]
    assert shown == [percent(value) for value in found.sort(descending=True).values[:5].tolist()]
    box = page.get_by_placeholder("Find any of 7 labels")
    box.fill(LABELS[least])
    box.press("Enter")
    until(page, f"vitreous.viewer.header.start.class === {least} && {READY.format(1)}")
    assert headline(page) == f"{LABELS[least]} {percent(found[least].item())}"
    for view in ("removal", "relevance", "cam"):
        page.evaluate(f"vitreous.state.set({{ view: '{view}' }})")
        settle(page)
        assert f"“{LABELS[least]}”" in page.locator(".legend-line").inner_text()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert headline(page).startswith(LABELS[least])  # the address holds what was chosen


def test_the_number_is_the_headline_and_follows_heads_and_patches(watched, home, models):
    page, found = watched.open(f"{home}#model=numbers"), outputs(models["numbers"]).tolist()
    assert headline(page) == f"light {written(found[0])}"
    page.get_by_role("button", name="height").click()
    until(page, f"vitreous.viewer.header.start.class === 1 && {READY.format(1)}")
    assert headline(page) == f"height {written(found[1])}"
    settle(page)
    assert f"“height” falls from {written(found[1])} to " in page.locator(".proof").inner_text()
    page.locator(".remove input").fill("10")  # all patches are hidden
    settle(page)
    evidence = "vitreous.viewer.header.views.find((view) => view.name === 'evidence').results[0].number.hidden"
    hidden = page.evaluate(evidence)
    assert page.locator(".answer .value").nth(1).inner_text() == written(hidden[-1])
    assert page.locator(".answer .value").nth(0).inner_text() == ""  # the other number was not followed
    page.evaluate("vitreous.state.set({ count: null })")
    page.evaluate(CHANGE)
    until(page, f"vitreous.viewer.before && {SETTLED}")
    with intervene(models["numbers"], heads_off=[(1, 0)], patches_off=[5]):
        changed = outputs(models["numbers"]).tolist()
    assert headline(page) == f"height {written(changed[1])}"
    said = f"Without 1 head and 1 patch height is {written(changed[1])} instead of {written(found[1])}."
    assert page.evaluate("vitreous.viewer.news") == said


def test_a_mask_lies_over_the_image_with_its_legend_and_a_pixel_can_be_asked_about(watched, home, models):
    page, logits = watched.open(home), outputs(models["masks"])
    page.select_option("#first", "masks")
    until(page, f"vitreous.viewer.header.model.task === 'segment' && {READY.format(1)}")
    mask = logits.argmax(dim=0)
    shares = {name: (mask == i).float().mean().item() for i, name in enumerate(("ground", "box"))}
    keys = [each.inner_text() for each in page.locator(".left .class-key").all()]
    assert sorted(keys) == sorted(f"{name} {percent(share)}" for name, share in shares.items())
    until(page, "Boolean(vitreous.viewer.stage.shown.layer)")
    layer = """() => {
      const { layer } = vitreous.viewer.stage.shown, { width, height } = layer;
      const pen = new OffscreenCanvas(width, height).getContext("2d");
      pen.drawImage(layer, 0, 0);
      return [...pen.getImageData(0, 0, width, height).data].filter((_, i) => i % 4 === 0);
    }"""
    assert page.evaluate(layer) == [(230, 86)[i] for i in mask.flatten().tolist()]  # the red of both colours
    page.get_by_role("button", name="Ask about one pixel").click()
    stage = page.locator(".stage canvas").bounding_box()
    page.mouse.click(stage["x"] + stage["width"] * 30.5 / 32, stage["y"] + stage["height"] * 3.5 / 32)
    until(page, f"vitreous.viewer.header.start.pixel && {READY.format(1)}")
    assert page.evaluate("vitreous.viewer.header.start.pixel") == [3, 30]
    assert "at row 3, column 30 of the image" in page.locator(".head .sub").inner_text()
    x = Inspection(models["masks"], next(iter(samples().values()))).x
    with torch.no_grad():
        probability = at_pixel(models["masks"], 3, 30)(x).softmax(dim=-1).max().item()
    page.evaluate("vitreous.state.set({ view: 'removal' })")
    settle(page)
    said = page.locator(".proof").inner_text().replace("\xa0", " ")
    assert re.search(f"there (falls|rises|goes) from {percent(probability)} to", said)


def test_two_models_of_different_tasks_stand_side_by_side_and_are_asked_apart(watched, home, models):
    page, found = watched.open(f"{home}#model=labels&beside=numbers"), outputs(models["labels"]).sigmoid()
    numbers = outputs(models["numbers"]).tolist()
    until(page, READY.format(2))
    best = int(found.argmax())
    assert headline(page).startswith(LABELS[best])
    assert headline(page, 1) == f"light {written(numbers[0])}"
    page.locator(".slot").nth(1).get_by_role("button", name="height").click()
    until(page, f"vitreous.viewers[1].header.start.class === 1 && {READY.format(2)}")
    assert headline(page, 1) == f"height {written(numbers[1])}"
    assert headline(page).startswith(LABELS[best])  # the first is asked for what it was
    other = int(found.argsort(descending=True)[1])
    page.locator(".slot").nth(0).get_by_role("button", name=LABELS[other]).click()
    until(page, f"vitreous.viewers[0].header.start.class === {other} && {READY.format(2)}")
    assert headline(page).startswith(LABELS[other])
    assert headline(page, 1) == f"height {written(numbers[1])}"


LATE = """() => {
  const { fetch } = window;
  window.fetch = async (address, ...more) => {
    if (String(address).includes("model=labels")) await new Promise((done) => setTimeout(done, 700));
    return fetch(address, ...more);
  };
}"""


def test_the_first_model_keeps_its_own_answer_where_the_second_comes_earlier(watched, home, models):
    best = int(outputs(models["labels"]).argmax())
    assert best != 0  # what the second begins with
    watched.page.add_init_script(f"({LATE})()")
    page = watched.open(f"{home}#model=labels&beside=numbers")
    until(page, READY.format(2))
    assert headline(page).startswith(LABELS[best])


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1366, "light")])
def test_axe_has_no_complaint_and_a_phone_nothing_beside_its_screen(chromium, home, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    watched = Watched(chromium, viewport={"width": width, "height": 844}, color_scheme=scheme)
    for model in ("labels", "numbers", "masks"):
        watched.page.goto("about:blank")
        page = watched.open(f"{home}#model={model}")
        for view in ("outputs", "removal"):
            page.evaluate(f"vitreous.state.set({{ view: '{view}' }})")
            settle(page)
            found = [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in axe.run(page).response["violations"]]
            assert found == [], (model, view)
            assert page.evaluate("document.documentElement.scrollWidth") == width
    assert watched.complaints == []
    watched.context.close()
