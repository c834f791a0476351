"""Every view on every family, square or not; and `explain` as a user runs it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from two_towers import write_open_clip, write_siglip

from conftest import CHELSEA, VIT_TI, noise
from vitreous.api import explain as api
from vitreous.cli.main import main
from vitreous.data import images
from vitreous.data.preprocess import default_preprocess
from vitreous.figures.draw_by_kind import draw
from vitreous.figures.style import encode
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.explanation import Explanation
from vitreous.predict.words import with_target
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.registry import VIEWS, choose_views, missing_views
from vitreous.weights.card import Card
from vitreous.weights.load import load
from vitreous.weights.save import save

SMALL = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 3, "classes": 7}
FAMILIES = {
    "torchvision": {},
    "torchvision_tall": {"image_size": (48, 24)},
    "deit_distilled": {"distillation_token": True, "distillation_head": True},
    "deit_distilled_wide": {"distillation_token": True, "distillation_head": True, "image_size": (24, 48)},
    "dinov2_registers": {"registers": 4, "prefix_positions": False, "layer_scale": 0.1, "swiglu": True, "classes": 0},
    "dinov2_registers_wide": {"registers": 4, "prefix_positions": False, "pool": "token+mean", "image_size": (24, 48)},
    "clip": {"embedding_norm": True, "patch_bias": False, "activation": "quick_gelu", "classes": 0},
    "mean_pooled": {"class_token": False, "pool": "mean", "position": "none"},
    "grey": {"channels": 1, "position": "sine-2d"},
    "pixels_left_over": {"image_size": (31, 46), "partial_patches": True},
}


def build(family):
    model = noise(ViT(ViTConfig(**SMALL | FAMILIES[family])))
    head = "classifier" if model.config.classes else "none"
    model.card = Card(name=family, preprocess=default_preprocess(model.config), head=head)
    return model


@pytest.fixture(scope="module")
def photo():
    pixels = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "deit_distilled"])  # the wide one is
def test_every_view_draws_every_family(family, photo):
    inspection = Inspection(build(family), photo)
    available = {name: view for name, view in VIEWS.items() if view.missing(inspection) is None}
    lacking = set(VIEWS) - set(available)
    if inspection.model.config.classes:
        assert lacking == {"outputs", "text-similarity"} | ({"positions"} if family == "mean_pooled" else set())
    else:
        assert "relevance" in lacking
        assert "rollout" in available
    for name, view in available.items():
        results = view.results(inspection)
        assert results, name
        for result in results.values():
            figure = draw(result, inspection.backdrop)
            assert encode(figure, dpi=40).startswith(b"\x89PNG"), name  # small: what is drawn is the same


def test_a_resnet_has_its_own_few(photo):
    model = ResNet(ResNetConfig(18, classes=5)).eval()
    model.card = Card(name="resnet", preprocess=default_preprocess(ViTConfig(image_size=64)), family="ResNet")
    explanation = Explanation(Inspection(model, photo))
    assert list(explanation.compute()) == [
        "removal",
        "evidence",
        "predictions",
        "cam",
        "grad-cam-plus-plus",
        "gradient-input",
        "filters",
        "input",
        "card",
    ]
    assert explanation.map("cam").shape == (2, 2)
    assert "trust" in choose_views("trust", Inspection(model, photo))


def test_a_checkpoint_without_an_image_shows_what_it_can():
    explanation = Explanation(Inspection(build("torchvision")))
    assert list(explanation.compute()) == ["positions", "filters", "architecture", "shapes", "card"]
    assert explanation.summary == ""
    assert explanation.answer is None


def test_what_cannot_be_had_is_said(photo):
    inspection = Inspection(build("dinov2_registers"), photo)
    with pytest.raises(ValueError, match="'relevance' cannot be computed: the model has no classifier"):
        choose_views("relevance", inspection)
    with pytest.raises(ValueError, match="no view is called 'rolout': did you mean rollout?"):
        choose_views("rolout", inspection)
    with pytest.raises(ValueError, match="no view is called 'zzz': the views are removal, "):
        choose_views("zzz", inspection)
    with pytest.raises(ValueError, match="block 2 does not exist: this model has 0 to 1"):
        Inspection(inspection.model, photo, Choice(block=2))
    with pytest.raises(ValueError, match="it needs an image"):
        choose_views("rollout", Inspection(inspection.model))
    assert "lens" in missing_views(inspection)["the model has no classifier"]


def test_patches_are_compared_with_sentences_where_the_projection_allows_it(photo, tmp_path):
    for write in (write_open_clip, write_siglip):
        (tmp_path / write.__name__).mkdir()
        write(tmp_path / write.__name__)
    clip, siglip = (
        Inspection(with_target(load(tmp_path / write.__name__), "a cat"), photo, Choice(target=0))
        for write in (write_open_clip, write_siglip)
    )
    found = VIEWS["text-similarity"].results(clip)[""]
    assert (found.values.shape, found.names["class"]) == ((2, 16), ["a cat", "a photo"])
    assert draw(found, clip.backdrop)
    assert missing_views(clip) == {}
    ((reason, names),) = missing_views(siglip).items()
    assert names == ["text-similarity"]
    assert "attention pool reads all patches at once" in reason
    assert missing_views(Inspection(build("torchvision"), photo)) == {}  # no words, none missed


def test_the_query_is_a_row_of_the_attention_matrix(photo):
    model = build("deit_distilled")
    layout = model.layout
    inspection = Inspection(model, photo, Choice(query=7, block=1))
    whole = torch.stack(list(inspection.each_attention()))  # [blocks heads t t]
    found = VIEWS["attention-rows"].results(inspection)[""].shown(("head",))
    torch.testing.assert_close(torch.from_numpy(found), layout.to_grid(whole[1, :, 7]), rtol=1e-4, atol=1e-5)
    assert inspection.query_patch == layout.patch(7) == (1, 1)
    assert inspection.query_name == "patch (1, 1)"
    assert Inspection(model, photo).query_name == "class token"


def test_a_model_without_class_token_looks_as_its_average_patch(photo):
    inspection = Inspection(build("mean_pooled"), photo)
    found = VIEWS["attention-maps"].results(inspection)[""].shown(("block",))[0]
    whole = next(iter(inspection.each_attention()))  # [heads t t]
    wanted = inspection.vit.layout.to_grid(whole.mean(dim=(0, 1)))
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-5)
    assert inspection.query_name == "average patch"


def test_every_view_says_how_to_read_it_and_what_it_does_not_show():
    for name, view in VIEWS.items():
        assert view.read.endswith("."), name
        assert view.beware.endswith("."), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save(build("torchvision"), path)
    return str(path)


@pytest.mark.slow
def test_explain_writes_a_report_and_figures(folder, photo, tmp_path, capsys):
    photo.save(tmp_path / "photo.png")
    words = ["explain", str(tmp_path / "photo.png"), "--model", folder, "-o", str(tmp_path / "out.html")]
    main([*words, "--figures", str(tmp_path / "figures"), "--views", "rollout,attention-rows", "--heads", "0-1"])
    out = capsys.readouterr().out
    assert "photo.png: class " in out
    assert "wrote 2 figures" in out
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["attention-rows.png", "rollout.png"]
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
@pytest.mark.parametrize("format", ["svg", "pdf"])
def test_figures_come_as_svg_and_pdf_too(format, folder, photo, tmp_path):
    photo.save(tmp_path / "photo.png")
    words = ["explain", str(tmp_path / "photo.png"), "--model", folder, "-o", str(tmp_path / "out.html")]
    main([*words, "--figures", str(tmp_path / "f"), "--views", "relevance", "--format", format, "--target", "3"])
    content = (tmp_path / "f" / f"relevance.{format}").read_bytes()
    assert content.startswith(b"%PDF") if format == "pdf" else b"<svg" in content


def test_images_of_one_name_get_folders_of_their_own(folder, photo, tmp_path):
    for folder_name in ("a", "b"):
        (tmp_path / folder_name).mkdir()
        photo.save(tmp_path / folder_name / "x.png")
    words = [str(tmp_path / "a/x.png"), str(tmp_path / "b/x.png"), "--model", folder, "-o", str(tmp_path / "out.html")]
    main(["explain", *words, "--figures", str(tmp_path / "f"), "--views", "patches"])
    assert sorted(str(p.relative_to(tmp_path / "f")) for p in (tmp_path / "f").rglob("*.png")) == [
        "x-2/patches.png",
        "x/patches.png",
    ]


def test_an_image_is_opened_when_its_turn_comes(folder, photo, tmp_path, monkeypatch):
    for name in ("1.png", "2.png"):
        photo.save(tmp_path / name)
    seen = []
    read, page = images.read_image, Explanation.page
    monkeypatch.setattr(api, "read_image", lambda path: (seen.append(Path(path).name), read(path))[1])
    monkeypatch.setattr(Explanation, "page", lambda self, progress: (seen.append("computed"), page(self))[1])
    words = ["explain", str(tmp_path), "--model", folder, "-o", str(tmp_path / "out.html"), "--views", "patches"]
    main(words)
    assert seen == ["1.png", "computed", "2.png", "computed"]


def test_trust_of_a_class_that_the_model_does_not_see_is_an_error_and_writes_no_page(tmp_path, capsys):
    words = ["explain", CHELSEA, "--views", "predictions", "--trust", "--target", "tench"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "-o", str(tmp_path / "out.html")])
    assert stop.value.code == 2
    assert "such as Egyptian cat" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_slow_views_say_how_far_they_have_come(photo):
    steps = []
    inspection = Inspection(build("torchvision"), photo)
    inspection.progress = lambda done, total: steps.append((done, total))
    VIEWS["ablation"].results(inspection)
    depth = inspection.vit.config.depth
    assert steps == [(layer + 1, depth) for layer in range(depth)]
    steps.clear()
    VIEWS["trust"].results(inspection)
    done, total = steps[-1]
    assert done == total > 100


@pytest.mark.slow
def test_trust_and_ablation_are_drawn_when_asked_for(folder, photo, tmp_path):
    photo.save(tmp_path / "photo.png")
    words = ["explain", str(tmp_path / "photo.png"), "--model", folder, "-o", str(tmp_path / "out.html")]
    main([*words, "--figures", str(tmp_path / "f"), "--views", "cam", "--trust", "--ablate", "heads"])
    names = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert names == ["ablation-heads.png", "ablation.png", "cam.png", "trust-blur.png", "trust-sanity.png", "trust.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--views", "nonsense"], "no view is called 'nonsense'"),
        (["--block", "9"], "block 9 does not exist"),
        (["--query", "17"], "query 17 does not exist: this model has 0 to 16"),
        (["--target", "unicorn"], "the model has no class 'unicorn'"),
        (["--target", "99"], "target 99 does not exist"),
        (["--heads", "a-b"], "heads are numbers such as 0-7"),
        (["--heads", "2-0"], "which is none"),
        (["--views", ","], "no view was named"),
        (["-o", "."], "is a folder: name a file with -o"),
    ],
)
def test_a_wrong_choice_is_one_line_and_nothing_is_written(words, message, folder, photo, tmp_path, capsys):
    photo.save(tmp_path / "photo.png")
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(tmp_path / "photo.png"), "--model", folder, "-o", str(tmp_path / "out.html"), *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


@pytest.mark.slow
def test_explain_of_the_packaged_model_needs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["explain", "--views", "predictions,relevance"])
    assert "wrote report.html" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text().count('data-name="coffee"') == 1


def test_views_are_listed(capsys):
    main(["views"])
    out = capsys.readouterr().out
    assert all(name in out for name in VIEWS)


@pytest.mark.skipif(not VIT_TI.exists(), reason="the real ViT-Ti is not on this machine")
def test_relevance_for_dome_lies_on_the_dome(shared):
    from vitreous.data.images import read_image
    from vitreous.views.maps import MAPS

    model = load(VIT_TI)
    inspection = Inspection(model, read_image(shared / "data/santorini.png"))
    assert inspection.target_label == "dome"
    heat = MAPS["relevance"](inspection)
    inside = heat[5:10, :8].mean()  # the blue dome
    outside = heat[:5, 4:].mean()  # the sea
    assert inside > 3 * outside
