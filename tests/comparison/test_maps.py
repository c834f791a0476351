import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.cli.main import main
from vitreous.comparison.maps import compare_maps, find_masks, read_mask, read_parts
from vitreous.data.preprocess import Preprocess
from vitreous.data.samples import samples
from vitreous.inside.faithfulness import area
from vitreous.models.vit import ViT, ViTConfig
from vitreous.views import maps as views
from vitreous.views.inspection import Inspection
from vitreous.weights.card import Card
from vitreous.weights.save import save

HALF = (0.5, 0.5, 0.5)
METHODS = ("relevance", "rollout", "pruned gradients", "random")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(7)
    config = ViTConfig(image_size=16, patch_size=4, width=24, depth=2, heads=3, classes=2)
    model = ViT(config).eval()
    torch.nn.init.normal_(model.head.weight)
    model.card = Card("tiny", Preprocess(size=(16, 16), resize=16, mean=HALF, std=HALF), ("cat", "dog"))
    return model


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps") / "zoo"
    for number, (name, photo) in enumerate(samples().items()):
        for kind in ("cat", "dog"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            photo.resize((40 + 8 * number, 40)).save(folder / kind / f"{name}.png")
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for i, name in enumerate(("cat_1", "dog_1", "owl_1")):
        samples()["chelsea"].resize((32, 24)).save(folder / "images" / f"{name}.jpg")
        trimap = np.full((24, 32), 2, dtype=np.uint8)
        trimap[8:16, 8 + i : 20] = 1
        trimap[7] = 3
        Image.fromarray(trimap).save(folder / "masks" / f"{name}.png")
    return folder


def run(model, output, **options):
    return compare_maps(model=model, output=output, device="cpu", **{"methods": METHODS, "steps": 4, **options})


@pytest.mark.slow
def test_every_method_has_a_row_and_the_files_are_written(model, photos, masked, tmp_path):
    found = run(model, tmp_path, data=photos, masks=masked, greedy=2)
    faith, segmentation = found.table["faithfulness"], found.table["segmentation"]
    assert {row["name"] for row in faith["methods"]} == set(METHODS) == {row["name"] for row in segmentation["methods"]}
    assert faith["images"] == 6
    assert faith["operators"] == ["blur", "mean", "removed"]
    assert faith["greedy"]["images"] == 2
    assert segmentation["images"] == {"all": 3, "correct": 1, "wrong": 1}  # an owl is no class of the model
    text = (tmp_path / "maps.md").read_text()
    assert text.count("| pruned gradients |") == 3
    assert json.loads((tmp_path / "maps.json").read_text())["faithfulness"] == json.loads(json.dumps(faith))


@pytest.mark.slow
def test_differences_are_paired_by_image(model, photos, tmp_path):
    found = run(model, tmp_path, data=photos, greedy=0)
    columns = read_parts(tmp_path / "faithfulness")
    for row in found.table["faithfulness"]["methods"]:
        i, base = METHODS.index(row["name"]), METHODS.index("relevance")
        gain = {way: columns[f"insertion_{way}"] - columns[f"deletion_{way}"] for way in ("blur", "mean", "removed")}
        difference = np.mean([gain[way][:, i] - gain[way][:, base] for way in gain], axis=0)
        assert row["over"]["mean"] == pytest.approx(difference.mean(), abs=1e-6)
        if row["name"] != "relevance":
            half = 2.5706 * difference.std(ddof=1) / 6**0.5  # Student's t of five degrees of freedom
            assert row["over"]["half_width"] == pytest.approx(half, rel=1e-3)
    assert found.table["faithfulness"]["greedy"] is None


@pytest.mark.slow
def test_a_killed_run_is_resumed_and_another_one_is_refused(model, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.comparison.maps.PART", 2)
    first = run(model, tmp_path, data=photos, greedy=0)
    part, kept = tmp_path / "faithfulness/part-000001.parquet", tmp_path / "faithfulness/part-000000.parquet"
    part.unlink()
    before, seen = kept.stat().st_mtime_ns, []
    again = run(model, tmp_path, data=photos, greedy=0, progress=lambda what, done, total: seen.append(total))
    assert set(seen) == {2}
    assert kept.stat().st_mtime_ns == before
    for ours, theirs in zip(*(each.table["faithfulness"]["methods"] for each in (first, again)), strict=True):
        ours, theirs = ({**row, "seconds": 0} for row in (ours, theirs))
        assert ours == theirs
    with pytest.raises(ValueError, match="was begun with another number of steps"):
        run(model, tmp_path, data=photos, greedy=0, steps=5)


@pytest.mark.slow
def test_an_unreadable_image_is_left_out(model, photos, tmp_path):
    broken = shutil.copytree(photos, tmp_path / "zoo")
    (broken / "cat/broken.png").write_bytes(b"no image")
    found = run(model, tmp_path / "out", data=broken, greedy=0, methods=("relevance", "random"))
    assert found.table["faithfulness"]["images"] == 6


def test_trust_of_one_image_and_the_comparison_agree_to_the_last_digit(model, photos, tmp_path):
    one = tmp_path / "one/cat"
    one.mkdir(parents=True)
    shutil.copy(photos / "cat/chelsea.png", one)
    names = ("relevance", "rollout", "attention", "CAM")
    run(model, tmp_path / "out", data=one.parent, greedy=0, methods=names, steps=28)
    columns = read_parts(tmp_path / "out/faithfulness")
    inspection = Inspection(model, Image.open(one / "chelsea.png"))
    found = views.comparable(inspection)
    deletion, insertion = (dict(zip(found, area(line), strict=True)) for line in views.curves(found, inspection))
    for i, name in enumerate(names):
        assert columns["deletion_blur"][0, i] == deletion[name].item()
        assert columns["insertion_blur"][0, i] == insertion[name].item()


def test_masks_are_read_as_the_model_sees_them(masked):
    mask = read_mask(masked / "masks/cat_1.png", Preprocess(size=(24, 32), resize=(24, 32), mean=HALF, std=HALF))
    assert mask.shape == (24, 32)
    assert (mask == 1).sum() == 8 * 12
    assert (mask == -1).sum() == 32
    cropped = read_mask(masked / "masks/cat_1.png", Preprocess(size=(24, 40), resize=None, mean=HALF, std=HALF))
    assert (cropped[:, :4] == -1).all()  # beyond the image's edges


def test_a_folder_without_masks_is_refused(photos, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no images/ and masks/"):
        find_masks(photos)


def test_the_command_prints_the_table(model, photos, tmp_path, capsys):
    save(model, tmp_path / "model")
    words = ["compare", str(tmp_path / "model"), "--maps", "--data", str(photos), "--images", "2", "--greedy", "0"]
    main([*words, "--methods", "relevance", "random", "-o", str(tmp_path / "out"), "--device", "cpu"])
    out = capsys.readouterr().out
    assert "| relevance | 1 + 1 backward |" in out
    assert "on 2 images of zoo" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--maps"], "name the images to measure on"),
        (["a", "b", "--maps", "--data", "x"], "--maps compares the maps of one model, got 2"),
        (["a", "b", "--data", "x", "--masks", "y"], "are options of --maps"),
        (["--maps", "--data", "digits", "--methods", "magic"], "no method is called 'magic'"),
    ],
)
def test_wrong_words_are_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["compare", *words])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
