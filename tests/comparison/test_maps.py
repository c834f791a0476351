import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr

from conftest import noise
from vitreous.cli.main import main
from vitreous.comparison.map_table import signed
from vitreous.comparison.maps import _is_correct, compare_maps, find_masks, object_values, read_mask, read_parts
from vitreous.data.images import ImageError
from vitreous.data.preprocess import Preprocess
from vitreous.data.sample_photos import samples
from vitreous.inside.methods import METHODS as METHODS_OF_MAPS
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.views import trust as views
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
def test_a_run_that_is_ended_early_has_the_tables_of_its_finished_parts(model, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.comparison.maps.PART", 2)
    whole = run(model, tmp_path / "whole", data=photos, greedy=0)

    def interrupt(what, done, total):
        if done == 4:
            raise KeyboardInterrupt

    found = run(model, tmp_path / "out", data=photos, greedy=0, progress=interrupt)
    assert found.ended
    assert not whole.ended
    assert 2 <= found.table["faithfulness"]["images"] <= 4
    assert found.page.exists()
    again = run(model, tmp_path / "out", data=photos, greedy=0)
    assert again.table["faithfulness"]["images"] == 6


def test_a_run_that_is_ended_before_its_first_part_is_interrupted(model, photos, tmp_path):
    def at_once(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, data=photos, greedy=0, progress=at_once)


@pytest.mark.slow
def test_the_page_has_the_tables_and_images_where_maps_agree_and_disagree(model, photos, masked, tmp_path):
    found = run(model, tmp_path / "maps.html", data=photos, masks=masked, greedy=2, methods=(*METHODS, "removal-64"))
    assert found.page == tmp_path / "maps.html"
    assert found.folder == tmp_path / "maps"
    text = found.page.read_text().replace("\N{NO-BREAK SPACE}", " ")
    for heading in ("Is it faithful?", "Does it lie on the object?", "Where the maps agree", "Where the maps disagree"):
        assert heading in text
    removal = next(row for row in found.table["faithfulness"]["methods"] if row["name"] == "removal-64")
    assert removal["fitted"] == ["blur"]
    assert f"<td>{signed(removal['blur']['score'])} *</td>" in text  # marked
    assert f"<td>{signed(removal['mean']['score'])}</td>" in text
    half = removal["over"]["half_width"]
    assert f"<td>{signed(removal['over']['mean'])} ± {half:.3f}</td>" in text
    assert text.count("<figure>") == 2 * 3 * (1 + 4)  # images × (the image, and four methods that depend on the model)
    alike = [float(value) for value in re.findall(r"between the maps (-?[\d.]+)\.</p>", text)]
    assert min(alike[:3]) >= max(alike[3:])


@pytest.mark.slow
def test_the_pages_images_are_what_patches_read(photos, tmp_path, monkeypatch):
    config = ViTConfig(image_size=(19, 22), patch_size=4, partial_patches=True, width=24, depth=2, heads=3, classes=2)
    model, shown = noise(ViT(config)), []
    model.card = Card("partial", Preprocess(size=(19, 22), resize=(19, 22), mean=HALF, std=HALF), ("cat", "dog"))
    monkeypatch.setattr("vitreous.comparison.maps.write_maps_page", lambda path, tables, **page: shown.append(page))
    run(model, tmp_path / "maps.html", data=photos, methods=("relevance", "rollout"))
    assert shown[-1]["agree"]
    for example in shown[-1]["agree"]:
        assert example.pixels.shape == (16, 20, 3)
        assert {each.shape for each in example.maps.values()} == {(4, 5)}


@pytest.mark.slow
def test_the_floor_of_sanity_is_between_maps_of_different_images(model, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.comparison.maps.SANITY_EVERY", 1)
    found = run(model, tmp_path, data=photos, greedy=0)
    columns = read_parts(tmp_path / "faithfulness")
    for row in found.table["faithfulness"]["methods"]:
        if row["name"] == "random":
            assert row["sanity"] is row["sanity_floor"] is None
            continue
        i = METHODS.index(row["name"])
        own, fresh = (columns[name].reshape(6, len(METHODS), 16)[:, i] for name in ("maps", "fresh_maps"))
        same, other = (
            np.mean([abs(spearmanr(own[k], fresh[(k + shift) % 6]).statistic) for k in range(6)]) for shift in (0, -1)
        )
        assert row["sanity"] == pytest.approx(same, abs=1e-5)
        assert row["sanity_floor"] == pytest.approx(other, abs=1e-5)


@pytest.mark.slow
def test_an_unreadable_image_is_left_out(model, photos, tmp_path):
    broken = shutil.copytree(photos, tmp_path / "zoo")
    (broken / "cat/broken.png").write_bytes(b"no image")
    found = run(model, tmp_path / "out", data=broken, greedy=0, methods=("relevance", "random"))
    assert found.table["faithfulness"]["images"] == 6


def test_an_image_without_a_score_of_masks_is_left_out(model, masked, tmp_path):
    folder = shutil.copytree(masked, tmp_path / "pets")
    Image.new("L", (32, 24), 3).save(folder / "masks/dog_1.png")
    found = run(model, tmp_path / "out", masks=folder, methods=("relevance", "random"))
    assert found.table["segmentation"]["images"]["all"] == 2
    for path in (folder / "masks").glob("*.png"):
        Image.new("L", (32, 24), 3).save(path)
    with pytest.raises(ValueError, match="none of 3 images has a score of segmentation: cat_1: all pixels of its mask"):
        run(model, tmp_path / "none", masks=folder, methods=("relevance", "random"))


def test_an_image_whose_maps_are_not_finite_is_left_out(model, photos, masked, tmp_path, monkeypatch):
    seen = []

    def broken(model, x, target):
        seen.append(target)
        return torch.full((1, 4, 4), float("nan") if len(seen) == 1 else 1.0)

    monkeypatch.setitem(METHODS_OF_MAPS, "relevance", replace(METHODS_OF_MAPS["relevance"], compute=broken))
    found = run(model, tmp_path / "faith", data=photos, images=2, greedy=0, methods=("random", "relevance"))
    assert found.table["faithfulness"]["images"] == 1
    errors = pyarrow.parquet.read_table(tmp_path / "faith/faithfulness/part-000000.parquet")["error"].to_pylist()
    assert errors == ["NaN or infinite values in the map of relevance", None]
    seen.clear()
    found = run(model, tmp_path / "masks", masks=masked, methods=("random", "relevance"))
    assert found.table["segmentation"]["images"]["all"] == 2


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("train_0001", None),
        ("mask_0001", None),
        ("car_1", None),
        ("class_3", None),
        ("0001", None),
        ("sports_car_12", 1),
        ("test/Sports-Car", 1),
        ("Siamese_7", 3),
        ("siamese_cat_7", 3),
        ("cat_7", None),
        ("pug", 4),
        ("pug_face", None),
    ],
)
def test_a_file_is_of_a_class_if_its_words_are_a_whole_name(name, named):
    labels = ("bullet train", "sports car", "oxygen mask", "Siamese cat, Siamese", "pug", "0001")
    card = Card("tiny", Preprocess(size=(16, 16), resize=16, mean=HALF, std=HALF), labels)
    model = SimpleNamespace(config=SimpleNamespace(classes=len(labels)), card=card)
    expected = [None] * 5 if named is None else [i == named for i in range(5)]
    assert [_is_correct(name, target, model) for target in range(5)] == expected


def test_trust_of_one_image_and_the_comparison_agree_to_the_last_digit(model, photos, tmp_path):
    one = tmp_path / "one/cat"
    one.mkdir(parents=True)
    shutil.copy(photos / "cat/chelsea.png", one)
    names = ("removal-64", "pruned gradients", "relevance", "rollout", "attention", "CAM", "integrated gradients")
    run(model, tmp_path / "out", data=one.parent, greedy=0, methods=names, steps=28)
    columns = read_parts(tmp_path / "out/faithfulness")
    inspection = Inspection(model, Image.open(one / "chelsea.png"))
    found = views.trust(inspection)
    similarity = dict(zip(found["sanity"].names, found["sanity"].values.tolist(), strict=True))
    for i, name in enumerate(names):
        plain = name.removesuffix("-64")
        assert columns["sanity"][0, i] == similarity[plain]
        for operator, part, end in (("mean", "", ""), ("blur", "blur", " *" * (plain == "removal"))):
            for way, panel in zip(("deletion", "insertion"), found[part].panels, strict=True):
                assert columns[f"{way}_{operator}"][0, i] == panel.areas[plain + end], (name, way, operator)


def test_masks_are_read_as_the_model_sees_them(masked):
    mask = read_mask(masked / "masks/cat_1.png", Preprocess(size=(24, 32), resize=(24, 32), mean=HALF, std=HALF))
    assert mask.shape == (24, 32)
    assert (mask == 1).sum() == 8 * 12
    assert (mask == -1).sum() == 32
    cropped = read_mask(masked / "masks/cat_1.png", Preprocess(size=(24, 40), resize=None, mean=HALF, std=HALF))
    assert (cropped[:, :4] == -1).all()  # beyond the image's edges


def test_masks_are_read_by_the_names_of_their_classes(masked, tmp_path):
    folder = tmp_path / "masked"
    shutil.copytree(masked, folder)
    view = Preprocess(size=(24, 32), resize=(24, 32), mean=HALF, std=HALF)
    path = folder / "masks/cat_1.png"
    assert object_values(folder) is None
    names = {"1": "cat", "2": "background", "ignore": 3}
    (folder / "classes.json").write_text(json.dumps(names))
    assert torch.equal(read_mask(path, view, object_values(folder)), read_mask(path, view))
    (folder / "classes.json").write_text(json.dumps(names | {"1": "background", "2": "cat", "ignore": []}))
    with pytest.raises(ImageError, match="the value 3 has no class: classes.json has 1 background, 2 object"):
        read_mask(path, view, object_values(folder))
    (folder / "classes.json").write_text(json.dumps({"1": "background", "2": "cat", "3": "ear"}))
    turned = read_mask(path, view, object_values(folder))
    assert torch.equal(turned == 0, read_mask(path, view) == 1)
    assert (turned == 1).sum() == 24 * 32 - 8 * 12
    (folder / "classes.json").write_text(json.dumps({"1": "cat", "2": "dog", "3": "ear"}))
    with pytest.raises(ValueError, match="call one of them background, the others are the object"):
        object_values(folder)


def test_a_palette_image_is_read_by_its_indices(masked, tmp_path):
    mask = Image.open(masked / "masks/cat_1.png").convert("P")
    mask.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0, 7, 7, 7])
    mask.putdata(np.asarray(Image.open(masked / "masks/cat_1.png")).ravel().tolist())
    mask.save(tmp_path / "mask.png")
    view = Preprocess(size=(24, 32), resize=(24, 32), mean=HALF, std=HALF)
    assert torch.equal(read_mask(tmp_path / "mask.png", view), read_mask(masked / "masks/cat_1.png", view))


def test_images_of_splits_keep_their_names_apart(masked, tmp_path):
    for part in ("train", "test"):
        shutil.copytree(masked, tmp_path / "pets" / part)
    found = find_masks(tmp_path / "pets")
    assert list(found) == [f"{part}/{name}" for part in ("train", "test") for name in ("cat_1", "dog_1", "owl_1")]
    assert list(find_masks(tmp_path / "pets", 2)) == ["train/cat_1", "test/cat_1"]
    (tmp_path / "pets/test/masks/cat_1.png").unlink()
    with pytest.raises(ValueError, match="1 of 3 images of .* has no mask"):
        find_masks(tmp_path / "pets")


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
