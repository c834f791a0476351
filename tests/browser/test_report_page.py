"""The report in a real browser, from disk, with the network off."""

import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from chromium import Watched, settle, until
from scipy.stats import spearmanr

from conftest import CHELSEA, SMALL, noise
from vitreous.cli.main import main
from vitreous.data.preprocess import default_preprocess
from vitreous.data.sample_photos import samples
from vitreous.figures.kinds import Matrix
from vitreous.inside.artifacts import Artifacts
from vitreous.inside.capture import capture
from vitreous.inside.hiding import HiddenPatches
from vitreous.inside.occlusion import rise
from vitreous.inside.representations import patch_similarity, principal_colours
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.explanation import Explanation
from vitreous.views.inspection import Inspection
from vitreous.views.maps import heat_map
from vitreous.views.registry import VIEWS
from vitreous.views.view import View
from vitreous.weights.card import Card
from vitreous.weights.load import load

pytestmark = pytest.mark.slow

WORDLESS = {name: view for name, view in VIEWS.items() if not {"sentences", "task"} & view.needs}
"""The views of a model without a text tower."""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    views = ",".join(["all", *(name for name, view in VIEWS.items() if view.slow)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.inside.methods.rise", partial(rise, masks=64))  # 1,024 take over ten seconds
        main(["explain", CHELSEA, *SMALL, "-o", str(path), "--views", views, "--device", "cpu"])
    return path.as_uri()


@pytest.fixture(scope="module")
def attention():
    """The truth: [layers heads tokens tokens]."""
    inspection = Inspection(load("packaged:cifar10"), samples()["chelsea"])
    with torch.inference_mode(), capture(inspection.vit, "attention") as seen:
        inspection.vit(inspection.x)
    return seen.stack("attention")[:, 0].numpy()


def centre(page, row, column, rows=8, columns=8):
    box = page.locator(".stage").first.bounding_box()
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


def test_hovering_shows_what_that_patch_attends_to(watched, report, attention):
    page = watched.open(report + "#view=attention-rows")
    for row, column in ((0, 0), (3, 5), (7, 7)):
        page.mouse.move(*centre(page, row, column))
        settle(page)
        truth = attention[-1].mean(axis=0)[1 + row * 8 + column, 1:]
        assert np.abs(drawn(page) - truth).max() <= attention[-1].max() / 255
        assert f"patch in row {row}, column {column} attends most to" in page.locator(".said").inner_text()


def test_a_hover_is_answered_within_a_frame(watched, report):
    page = watched.open(report + "#view=attention-rows")
    times = []
    for step in range(30):
        page.mouse.move(*centre(page, step % 8, (3 * step) % 8))
        settle(page)
        times.append(page.evaluate("vitreous.viewer.took"))
    assert np.median(times) < 16


def test_sliders_and_tiles_choose_block_and_head(watched, report, attention):
    page = watched.open(report + "#view=attention-rows")
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
    page = watched.open(report + "#view=attention-rows")
    pixels = page.evaluate(
        "Array.from(document.querySelector('.tile canvas').getContext('2d').getImageData(0, 0, 8, 8).data)"
    )
    cover = np.array(pixels).reshape(8, 8, 4)[..., 3].flatten()
    truth = attention[-1, 0, 0, 1:]
    truth = np.minimum(truth, np.sort(truth)[int(0.97 * (len(truth) - 1))])  # where the scale ends
    assert spearmanr(cover, truth).statistic > 0.99


def test_the_keyboard_moves_from_patch_to_patch(watched, report):
    page = watched.open(report + "#view=attention-rows")
    page.locator(".stage").focus()
    page.keyboard.press("ArrowDown")  # from the class token to the middle
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.evaluate("vitreous.state.values.query") == 1 + 4 * 8 + 5
    page.keyboard.press("Home")
    settle(page)
    assert "class token attends most" in page.locator(".said").inner_text()
    page.get_by_role("tab", name="Where").focus()
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert page.get_by_role("tab", name="Why").get_attribute("aria-selected") == "true"


def test_a_click_on_a_class_shows_its_removal_map(watched, report):
    page = watched.open(report)
    page.locator("button.answer").nth(1).click()
    settle(page)
    second = page.evaluate("vitreous.viewer.header.predictions[1].class_name")
    assert page.evaluate("vitreous.viewer.view.name") == "removal"
    assert page.locator(".tile", has_text=second).first.get_attribute("aria-pressed") == "true"
    assert f"“{second}”" in page.locator(".proof").inner_text()


def test_the_best_map_is_shown_and_the_others_are_one_click_away(watched, report):
    page = watched.open(report)
    chips = page.get_by_role("group", name="Why: views").locator("button:visible")
    others = sum(view.group == "Why" and view.more for view in WORDLESS.values())
    assert chips.all_inner_texts() == ["Removal of patches", "Test of the map", "Predictions", f"{others} more"]
    assert chips.nth(1).get_attribute("title") == VIEWS["evidence"].read  # a name is explained where it is pointed at
    chips.last.click()
    assert {view.title for view in WORDLESS.values() if view.group == "Why"} < {*chips.all_inner_texts()}
    page.get_by_role("button", name="RISE", exact=True).click()
    settle(page)
    assert page.evaluate("vitreous.viewer.view.name") == "rise"
    page.locator("button.answer").nth(1).click()  # RISE was computed for the first answer alone
    settle(page)
    assert page.evaluate("vitreous.viewer.view.name") == "removal"


def test_the_first_screen_says_what_where_and_why(chromium, report):
    watched = Watched(chromium, viewport={"width": 1366, "height": 650})
    page = watched.open(report)
    assert page.locator("h2").inner_text() == "cat 87 %"
    assert re.fullmatch(
        r"Hide the \d+ strongest of 64 patches, and “cat” (falls|rises) from 87\s% to [\d.]+ %.",
        page.locator(".proof").inner_text(),
    )
    for part in (".stage", ".proof", ".remove", ".answers", ".tabs"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= 650, part
    watched.context.close()


def test_the_patches_that_the_sentence_tells_of_have_a_line_around_them(watched, report):
    page = watched.open(report)
    count = int(re.search(r"the (\d+) strongest", page.locator(".proof").inner_text())[1])
    strongest = f"[...vitreous.viewer.headline.order(0).subarray(0, {count})]"
    assert page.evaluate("[...vitreous.viewer.stage.shown.contour]") == page.evaluate(strongest)
    assert f"the {count} strongest" in page.locator(".legend-line").inner_text()


def test_evidence_against_the_class_is_hatched_where_it_is_asked_for(watched, report):
    page = watched.open(report)
    assert page.locator(".legend-line").inner_text().split("\n")[0].startswith("none")
    patch = page.evaluate("[...vitreous.viewer.drawn.values].indexOf(Math.min(...vitreous.viewer.drawn.values))")
    cell = f"""(() => {{
      const {{ canvas, columns, rows }} = vitreous.viewer.stage;
      const wide = canvas.width / columns, high = canvas.height / rows;
      const left = ({patch} % columns) * wide + 6, top = Math.floor({patch} / columns) * high + 6;
      return [...canvas.getContext("2d").getImageData(left, top, wide - 12, high - 12).data];
    }})()"""
    plain = page.evaluate(cell)
    page.evaluate("vitreous.state.set({ opacity: 0 })")
    settle(page)
    assert page.evaluate(cell) == plain  # the photograph as it is
    page.evaluate("vitreous.state.set({ opacity: 1 })")
    page.get_by_role("button", name="Evidence against").click()
    settle(page)
    hatched = np.array(page.evaluate(cell)).reshape(-1, 4) - np.array(plain).reshape(-1, 4)
    assert hatched.min() < 0 < hatched.max()  # dark lines and light ones
    assert page.locator(".legend-line").inner_text().startswith("against “cat”")


def test_artifacts_are_outlined_where_they_are_spoken_of(watched, tmp_path, monkeypatch):
    monkeypatch.setattr(Inspection, "artifacts", Artifacts((0, 7), 1, 9.0, 1.0))
    Explanation(Inspection(load("packaged:cifar10"), samples()["chelsea"]), "relevance").save(tmp_path / "one.html")
    page = watched.open((tmp_path / "one.html").as_uri())
    assert page.evaluate("vitreous.viewer.stage.shown.outliers") is None
    page.locator(".artifacts summary").click()
    until(page, "String([...vitreous.viewer.stage.shown.outliers ?? []]) === '0,7'")
    assert "Dashed lines on the image show where." in page.locator(".artifacts").inner_text()
    page.mouse.move(*centre(page, 0, 7))
    settle(page)
    assert (
        page.locator(".said").inner_text()
        == "Patch in row 0, column 7 is not coloured: the model stores other information in it."
    )


def test_the_slider_hides_the_strongest_patches_and_the_bars_follow(watched, report):
    page = watched.open(report)
    page.get_by_label("Patches, the strongest first").fill("4")
    settle(page)
    gone = page.evaluate("[...vitreous.viewer.stage.shown.removed.gone]")
    inspection = Inspection(load("packaged:cifar10"), samples()["chelsea"])
    heat = heat_map("removal", inspection).flatten()
    heat[list(inspection.artifacts.patches)] = -torch.inf
    assert gone == heat.argsort(descending=True, stable=True)[: len(gone)].tolist()
    kept = torch.ones(64, dtype=torch.bool)
    kept[gone] = False
    logits = HiddenPatches(inspection.model, inspection.x, (8, 8))(kept.view(1, 8, 8), "mean")
    truth = logits.softmax(dim=-1)[0, inspection.target].item()
    assert page.locator("button.answer .value").first.inner_text() == page.evaluate(
        f"import('vitreous/dom.js').then(({{ percent }}) => percent({truth}))"
    )
    page.get_by_role("button", name="Whole image").click()
    settle(page)
    assert page.locator("button.answer .value").first.inner_text() == "87 %"


def test_any_class_can_be_asked_for(watched, report):
    page = watched.open(report)
    box = page.get_by_label("Find a class")
    box.fill("horse")
    box.press("Enter")
    settle(page)
    said = page.locator(".found").inner_text()
    assert re.match(r"“horse” has [\d.]+ %, answer \d+ of 10\.", said)
    box.fill("unicorn")
    box.press("Enter")
    settle(page)
    assert page.locator(".found").inner_text() == "No class is called “unicorn”."


def test_pointing_at_a_patch_shows_its_similarity_with_every_patch(watched, report):
    page = watched.open(report + "#view=similarity&block=3")
    page.mouse.move(*centre(page, 2, 5))
    settle(page)
    inspection = Inspection(load("packaged:cifar10"), samples()["chelsea"])
    truth = patch_similarity(inspection.outputs[3], inspection.vit.layout)[2 * 8 + 5].numpy()
    assert np.abs(drawn(page) - truth).max() <= 0.0101
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(5, 5)
    settle(page)
    assert np.abs(drawn(page) - truth).max() <= 0.0101  # the click holds it


def test_a_link_leads_to_the_same_view(watched, report):
    page = watched.open(report + "#view=attention-rows&block=1&head=3&query=20&opacity=0.3")
    values = page.evaluate("vitreous.state.values")
    assert (values["block"], values["head"], values["query"], values["opacity"]) == (1, 3, 20, 0.3)
    page.get_by_role("button", name="head 2", exact=True).click()
    until(page, "location.hash.includes('head=2')")
    assert "block=1" in page.evaluate("location.hash")


@pytest.mark.parametrize(
    "text", ["#block=99", "#head=foo", "#query=-3", "#view=nothing", "#opacity=x", "#%%%", "#query=1e9"]
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


def test_a_saved_image_is_named_for_what_it_shows(watched, report):
    """The logit lens shows attention on the image: so does what is saved from it."""
    page = watched.open(report + "#view=lens")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    assert download.value.suggested_filename == "chelsea-attention-rows.png"


def test_the_story_computes_the_models_own_attention(watched, report, attention):
    page = watched.open(report + "#view=story&step=4")
    block = page.evaluate("vitreous.viewer.view.results[0].block")
    page.mouse.move(*centre(page, 3, 5))
    settle(page)
    truth = attention[block, 0, 1 + 3 * 8 + 5]
    assert np.abs(drawn(page) - truth[1:]).max() < 0.02 * truth.max()  # queries and keys are stored in bytes
    for step in range(8):
        page.get_by_role("button", name=re.compile(f"^Step {step}: ")).click()
        settle(page)
        assert page.locator(".story-head h3").inner_text().startswith(f"{step} ")
    assert watched.complaints == []


def test_a_printed_page_begins_with_the_answer_and_has_no_blank_one(watched, report):
    page = watched.open(report)
    printed = page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 1


def test_several_images_have_thumbnails_with_their_answers(watched, tmp_path):
    for name in ("chelsea", "coffee"):
        samples()[name].save(tmp_path / f"{name}.png")
    paths = [str(tmp_path / f"{name}.png") for name in ("chelsea", "coffee")]
    words = ["explain", *paths, *SMALL, "-o", str(tmp_path / "two.html"), "--views", "relevance,evidence"]
    main([*words, "--device", "cpu"])
    page = watched.open((tmp_path / "two.html").as_uri())
    assert page.locator(".thumb").count() == 2
    assert page.locator(".thumb img").evaluate_all("all => all.every((each) => each.naturalWidth > 0)")
    page.locator(".thumb").nth(1).click()
    until(page, "vitreous.viewer.header.image.name === 'coffee.png'")
    assert page.locator(".thumb").nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator("h2 strong").inner_text() in page.locator(".thumb").nth(1).inner_text()
    assert watched.complaints == []


def test_two_images_stand_side_by_side_and_a_patch_finds_its_like_in_the_other(watched, tmp_path):
    for name in ("chelsea", "coffee"):
        samples()[name].save(tmp_path / f"{name}.png")
    paths = [str(tmp_path / f"{name}.png") for name in ("chelsea", "coffee")]
    main(["explain", *paths, *SMALL, "-o", str(tmp_path / "two.html"), "--views", "similarity,token-colours"])
    page = watched.open((tmp_path / "two.html").as_uri() + "#view=similarity&block=5")
    page.get_by_label("Compare with").select_option("coffee.png")
    until(page, "globalThis.vitreous?.viewers.length === 2")
    assert page.locator(".stage").count() == 2
    page.mouse.move(*centre(page, 2, 3))
    settle(page)
    model = load("packaged:cifar10")
    first, second = (Inspection(model, samples()[name]).outputs for name in ("chelsea", "coffee"))
    patch, others = first[5, 1 + 2 * 8 + 3], second[5, 1:]
    expected = torch.nn.functional.cosine_similarity(patch[None], others).numpy()
    found = np.array(page.evaluate("Array.from(vitreous.viewers[1].drawn.values)"))
    assert np.abs(found - expected).max() < 0.1
    assert np.corrcoef(found, expected)[0, 1] > 0.99
    assert page.evaluate("vitreous.viewers[1].drawn.query") is None
    assert page.evaluate("vitreous.viewers[0].drawn.query") == 1 + 2 * 8 + 3
    assert "row 2, column 3 of chelsea.png is most similar to" in page.locator(".said").nth(1).inner_text()
    page.evaluate("vitreous.state.set({ view: 'token-colours' })")
    settle(page)
    colours = [np.array(page.evaluate(f"Array.from(vitreous.viewers[{i}].drawn.colours)")) for i in (0, 1)]
    with torch.inference_mode():
        tokens = model.norm(torch.stack([first[5], second[5]]))
    joint = principal_colours(tokens, model.layout).flatten(1).numpy()
    assert np.abs(np.stack(colours) / 255 - joint).max() < 0.01
    assert watched.complaints == []


def test_play_goes_through_the_blocks(watched, report):
    page = watched.open(report + "#view=attention-rows")
    page.get_by_role("button", name="Play").click()
    until(page, "vitreous.state.values.block === 2")
    page.get_by_role("button", name="Pause").click()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])  # layout and colours are apart
def test_nothing_is_wider_than_the_screen_and_axe_has_no_complaint(chromium, report, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    watched = Watched(chromium, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = watched.open(report)
    for name in VIEWS:
        page.evaluate(f"vitreous.state.set({{ view: '{name}' }})")
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        found = axe.run(page)
        problems = [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found.response["violations"]]
        assert problems == [], f"{name} {scheme} {width}"
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


def test_log_matrices_are_painted(watched, report):
    """Their values are negative."""
    page = watched.open(report + "#view=attention-matrix")
    shown = page.evaluate(
        """[...document.querySelectorAll("canvas.matrix")].map((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set([...Array(data.length / 4).keys()].map((i) => data.slice(4 * i, 4 * i + 3).join())).size;
        })"""
    )
    assert len(shown) == 3
    assert min(shown) > 20


def test_an_effect_on_log_odds_is_said_as_a_change_of_the_probability(watched, report):
    page = watched.open(report)
    model, image = load("packaged:cifar10"), samples()["chelsea"]
    probability = float(Inspection(model, image).logits.softmax(dim=-1).max())
    said = page.evaluate("[0, 2, -2, 2000].map((value) => vitreous.viewer.change(value, vitreous.state.values))")
    assert "leaves “cat” at" in said[0]
    for value, line in zip((2, -2, 2000), said[1:], strict=True):
        odds = probability / (1 - probability) * math.exp(-value)
        found = re.fullmatch(r"hiding it alone moves “cat” from ([\d.]+) % to about ([\d.]+) %", line)
        assert float(found[1]) == pytest.approx(100 * probability, abs=0.51), line
        assert float(found[2]) == pytest.approx(100 * odds / (1 + odds), abs=0.51), line


def test_an_effect_within_twice_its_error_is_said_to_be_perhaps_chance(watched, report):
    page = watched.open(report)
    removal = Inspection(load("packaged:cifar10"), samples()["chelsea"]).removal
    certain = (removal.map[0] / removal.error[0]).abs()
    for patch, doubted in ((int(certain.argmin()), True), (int(certain.argmax()), False)):
        page.mouse.move(*centre(page, patch // 8, patch % 8))
        settle(page)
        said = page.locator(".said").inner_text()
        assert said.startswith(f"Patch in row {patch // 8}, column {patch % 8}, number ")
        assert ("may be chance" in said) == doubted
    assert certain.max() > 2 > certain.min()


def test_every_view_has_its_words_on_the_page(watched, report):
    page = watched.open(report)
    for name, view in WORDLESS.items():
        page.evaluate(f"vitreous.state.set({{ view: '{name}' }})")
        settle(page)
        words = page.locator(".sentences").inner_text()
        assert words.splitlines()[0] == view.title, name
        assert view.read in words
        assert view.beware in words
    assert watched.complaints == []


def test_a_view_that_is_added_appears_everywhere(watched, tmp_path, monkeypatch, capsys):
    """As docs/extend/view.md adds one: nothing but a line in `VIEWS`."""

    def self_attention(inspection):
        shares = [one.diagonal(dim1=-2, dim2=-1).mean(dim=-1) for one in inspection.each_attention()]
        return Matrix(torch.stack(shares).numpy(), "Attention of tokens to themselves", "block", "head", label="share")

    words = (
        "Attention to oneself",
        "The share of attention that tokens give themselves.",
        "The residual is not counted.",
    )
    monkeypatch.setitem(VIEWS, "self-attention", View(*words, self_attention))
    main(["views"])
    assert "self-attention" in capsys.readouterr().out
    command = ["explain", CHELSEA, *SMALL, "--device", "cpu", "-o"]
    main([*command, str(tmp_path / "report.html"), "--figures", str(tmp_path / "figures")])
    assert (tmp_path / "figures/self-attention.png").read_bytes().startswith(b"\x89PNG")
    page = watched.open((tmp_path / "report.html").as_uri())
    page.get_by_role("tab", name="Inside").click()
    page.get_by_role("button", name="Attention to oneself").click()
    settle(page)
    assert "Attention of tokens to themselves" in page.locator(".panel").inner_text()
    assert page.locator("button.cell").count() == 8 * 4
    assert all(sentence in page.locator(".sentences").inner_text() for sentence in words)
    main([*command, str(tmp_path / "one.html"), "--views", "self-attention"])
    page = watched.open((tmp_path / "one.html").as_uri())
    assert page.locator("[role=tab] b").all_inner_texts() == ["Inside"]
    assert page.locator("h3").inner_text() == "Attention to oneself"
    assert watched.complaints == []


def test_a_resnet_and_a_model_without_an_image_have_pages(watched, tmp_path):
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(18, classes=5)).eval()
    model.card = Card(name="resnet", preprocess=default_preprocess(ViTConfig(image_size=64)), family="ResNet")
    Explanation(Inspection(model, samples()["chelsea"], name="chelsea")).save(tmp_path / "resnet.html")
    page = watched.open((tmp_path / "resnet.html").as_uri())
    assert page.locator("[role=tab] b").all_inner_texts() == ["Why", "Inside", "Model"]
    assert len(drawn(page)) == 4
    Explanation(Inspection(load("packaged:cifar10"))).save(tmp_path / "alone.html")
    page = watched.open((tmp_path / "alone.html").as_uri())
    assert page.locator("[role=tab] b").all_inner_texts() == ["Inside", "Model"]
    page.mouse.move(*centre(page, 2, 3))
    settle(page)
    assert drawn(page)[2 * 8 + 3] == pytest.approx(1, abs=0.01)  # a position is like itself
    assert watched.complaints == []


NOTEBOOK = """
import vitreous
from vitreous.data.sample_photos import samples
import numpy as np
vitreous.explain(np.asarray(samples()["chelsea"]), "packaged:cifar10")
"""


def test_the_page_lives_in_a_notebooks_output(watched, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    (output,) = book.cells[0].outputs
    assert output["data"]["text/plain"].startswith("Explanation of image: cat")
    shown = tmp_path / "output.html"
    shown.write_text(f"<!doctype html><title>x</title>{output['data']['text/html']}", encoding="utf-8")
    page = watched.context.new_page()
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.goto(shown.as_uri())
    frame = page.frame_locator("iframe")
    frame.get_by_role("tab", name="Inside").click()
    frame.get_by_role("button", name="Importance of heads").click()
    frame.get_by_text("How much the logit of cat depends on each head (rows").wait_for()
    frame.get_by_role("tab", name="Where").click()
    frame.get_by_label("Block", exact=True).fill("2")
    frame.get_by_text("Attention of the class token, block 2").wait_for()
    page.wait_for_timeout(400)  # the address is written a moment later
    assert watched.complaints == []


@pytest.mark.parametrize("place", [(5, 5), (0, 0), (13, 13)])
def test_a_single_hot_cell_is_drawn_at_its_own_value_inside_and_in_a_corner(watched, report, place):
    page = watched.open(report)
    expected, drawn = page.evaluate(
        """async ([row, column]) => {
          const { paint } = await import("vitreous/colours.js");
          const { overlay } = await import("vitreous/stage.js");
          const values = new Float32Array(14 * 14);
          values[row * 14 + column] = 0.5;
          const context = new OffscreenCanvas(140, 140).getContext("2d");
          const options = { values, columns: 14, kind: "heat", peak: 1, opacity: 1 };
          overlay(context, { x: 0, y: 0, width: 140, height: 140 }, null, new OffscreenCanvas(14, 14), options);
          const alone = paint(new Float32Array([0, 0.5]), 2, { peak: 1 }).data;
          return [[...alone], [...context.getImageData(0, 0, 140, 140).data]];
        }""",
        list(place),
    )
    cells = np.array(drawn).reshape(14, 10, 14, 10, 4).swapaxes(1, 2)
    assert (cells[place] == expected[4:]).all()
    cells[place] = expected[:4]
    assert (cells == expected[:4]).all()


@pytest.fixture(scope="module")
def partial_page(tmp_path_factory):
    """A live page of a model whose 2 × 3 patches of 16 px leave nearly half of its 46 × 63 px to none."""
    config = ViTConfig(image_size=(46, 63), patch_size=16, partial_patches=True, width=16, depth=2, heads=2, classes=3)
    model = noise(ViT(config))
    model.card = Card("partial", default_preprocess(config), tuple("abc"))
    explanation = Explanation(Inspection(model, samples()["chelsea"], name="chelsea"), "all")
    return explanation.save(tmp_path_factory.mktemp("partial") / "page.html", live=True).as_uri()


def test_cells_lie_on_the_pixels_that_patches_read_where_some_fill_none(watched, partial_page):
    page = watched.open(partial_page + "#view=attention-rows")
    page.evaluate("""async () => {
      const { viewer } = vitreous, pen = new OffscreenCanvas(1, 1).getContext("2d");
      pen.fillStyle = "#888";
      pen.fillRect(0, 0, 1, 1);
      viewer.stage.image = await createImageBitmap(pen.canvas);
      vitreous.state.set({ opacity: 1 });
    }""")
    settle(page)
    height, width, drawn = page.evaluate("""(() => {
      const { canvas } = vitreous.viewer.stage, { width, height } = canvas;
      return [height, width, [...canvas.getContext("2d").getImageData(0, 0, width, height).data]];
    })()""")
    cells = np.array(drawn).reshape(height, width, 4)
    rows, columns = (cells[..., 0] != cells[..., 2]).nonzero()  # the image is grey
    assert [rows.min() / height, (rows.max() + 1) / height] == pytest.approx([0, 32 / 46], abs=0.005)
    assert [columns.min() / width, (columns.max() + 1) / width] == pytest.approx([0, 48 / 63], abs=0.005)
    box = page.locator(".stage canvas").first.bounding_box()

    def hover(row, column):
        page.mouse.move(box["x"] + (column + 0.5) / 63 * box["width"], box["y"] + (row + 0.5) / 46 * box["height"])
        settle(page)
        return page.evaluate("vitreous.state.values.hover")

    assert [hover(0, 0), hover(15, 15), hover(0, 16), hover(31, 47)] == [1, 1, 2, 6]
    assert [hover(32, 0), hover(0, 48), hover(45, 62)] == [None] * 3


PATCHES_SIZE = """(async () => {
  const { payload } = vitreous.viewer;
  const [result] = payload.header.views.find((view) => view.name === "patches").results;
  const { width, height } = await createImageBitmap(payload.file(result.file));
  return [height, width];
})()"""


def test_the_view_of_patches_shows_what_they_read_also_of_an_image_that_was_dropped_in(watched, partial_page, tmp_path):
    page = watched.open(partial_page)
    assert page.evaluate(PATCHES_SIZE) == [32, 48]
    samples()["coffee"].save(tmp_path / "coffee.png")
    page.set_input_files("#file", str(tmp_path / "coffee.png"))
    until(page, "vitreous.viewer.header.image.name === 'coffee.png'", 60)
    until(page, "document.documentElement.dataset.ready !== undefined", 60)
    assert page.evaluate(PATCHES_SIZE) == [32, 48]
