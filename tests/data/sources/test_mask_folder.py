"""Folders of images and masks: how they are found, matched and checked."""

import json
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from vitreous.data.datasets import find_source, open_dataset
from vitreous.data.images import ImageError
from vitreous.data.masks import IGNORE
from vitreous.data.sources import mask_folder
from vitreous.data.splits import open_split

SIZE = (6, 4)
TRIMAP = {"1": "animal", "2": "background", "ignore": 3}


def put(images, masks, names, value=None):
    """Images and masks of 6×4 pixels; a mask holds 1, 2 and 3."""
    for folder in (images, masks):
        folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        (masks / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", SIZE, (number, 9, 9)).save(images / f"{name}.jpg")
        values = np.full(SIZE[::-1], 1 + number % 2 if value is None else value, np.uint8)
        values[0, 0] = 3
        Image.fromarray(values).save(masks / f"{name}.png")


@pytest.fixture
def pets(tmp_path):
    folder = tmp_path / "pets"
    put(folder / "images", folder / "masks", [f"pet {i}" for i in range(10)])
    (folder / "classes.json").write_text(json.dumps(TRIMAP))
    return folder


def test_images_and_masks_are_matched_by_their_stems(pets):
    data = open_dataset(pets)
    assert (data.task, data.class_names, data.labels) == ("segment", ("animal", "background"), (0,) * 10)
    assert data.image(3) == pets / "images/pet 3.jpg"
    for i in range(10):
        mask = np.asarray(data.mask(i))
        assert mask[0, 0] == IGNORE
        assert set(mask.flatten()[1:]) == {i % 2}
    assert np.array_equal(pickle.loads(pickle.dumps(data)).mask(3), data.mask(3))


def test_without_names_the_classes_are_the_values_that_occur(pets):
    (pets / "classes.json").unlink()
    Image.new("L", SIZE, 255).save(pets / "masks/pet 4.png")
    data = open_dataset(pets)
    assert data.class_names == ("class 1", "class 2", "class 3")
    assert np.asarray(data.mask(0))[0, :2].tolist() == [2, 0]
    assert (np.asarray(data.mask(4)) == IGNORE).all()


def test_a_folder_without_splits_is_divided_by_its_names(pets, tmp_path):
    train, test = open_split(pets)
    assert len(train) + len(test) == 10
    assert len(test) >= 1
    shutil.copytree(pets, tmp_path / "other" / "pets")
    again = open_split(tmp_path / "other" / "pets")
    names = [[str(data.image(i))[-9:] for i in range(len(data))] for data in (train, test, *again)]
    assert names[:2] == names[2:]


@pytest.mark.parametrize("above", [True, False])
def test_splits_are_folders_above_or_below(tmp_path, above):
    for part, value in (("train", 1), ("val", 2)):
        folders = [tmp_path / (f"{part}/{kind}" if above else f"{kind}/{part}") for kind in ("images", "masks")]
        put(*folders, ["a", f"deeper/{part}"], value)
    unlabelled = tmp_path / ("test/images" if above else "images/test")  # a split without masks is none
    put(unlabelled, tmp_path / "elsewhere", ["a"])
    train, test = open_split(tmp_path)
    assert train.class_names == test.class_names == ("class 1", "class 2", "class 3")  # the values of both
    assert {data.describe(i).split(".")[0][-4:] for data in (train, test) for i in range(2)} > {"rain", "/val"}
    assert [np.asarray(data.mask(1))[1, 1].item() for data in (train, test)] == [0, 1]
    joined = open_dataset(tmp_path, "train+validation")
    assert [np.asarray(joined.mask(i))[1, 1].item() for i in range(4)] == [0, 0, 1, 1]


def test_a_table_or_the_named_task_comes_first(pets):
    assert open_dataset(pets, task="classify").class_names == ("images", "masks")
    rows = [f"images/pet {i}.jpg,{'cat' if i % 2 else 'dog'}" for i in range(10)]
    (pets / "labels.csv").write_text("\n".join(["image,label", *rows]))
    assert open_dataset(pets).class_names == ("cat", "dog")
    assert open_dataset(pets, task="segment").class_names == ("animal", "background")
    with pytest.raises(ValueError, match="has classes, and --task segment needs a folder with images/ and masks/"):
        find_source(pets / "images", task="segment")
    (pets / "labels.csv").unlink()
    with pytest.raises(ValueError, match="has pixel classes, and --task regress needs a table with columns of numbers"):
        find_source(pets, task="regress")


def damage_size(pets):
    Image.new("L", (5, 4), 1).save(pets / "masks/pet 7.png")


def damage_missing(pets):
    (pets / "masks/pet 7.png").unlink()


def damage_lonely(pets):
    (pets / "images/pet 7.jpg").unlink()


def damage_value(pets):
    Image.new("L", SIZE, 4).save(pets / "masks/pet 7.png")


def damage_stem(pets):
    shutil.copy(pets / "images/pet 7.jpg", pets / "images/pet 7.jpeg")


def damage_lossy(pets):
    (pets / "masks/pet 7.png").rename(pets / "masks/pet 7.jpg")


def damage_bytes(pets):
    (pets / "masks/pet 7.png").write_bytes(b"")


def damage_names(pets):
    (pets / "names.json").write_text(json.dumps(TRIMAP))


def damage_empty(pets):
    shutil.rmtree(pets / "masks")
    (pets / "masks").mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_size, r"pet 7.jpg: its mask is 5×4 pixels, the image 6×4: each pixel needs a class; save the mask"),
        (damage_missing, r"1 of 10 images of .*pets has no mask, such as .*pet 7.jpg: expected .*masks.pet 7.png"),
        (damage_lonely, r"1 of 10 masks of .*pets has no image, such as .*masks.pet 7.png: add it to .*, or remove"),
        (damage_value, r"pet 7.png: the value 4 has no class: classes.json has 1 animal, 2 background, 3 ignored"),
        (damage_stem, r"pet 7.jpeg and .*pet 7.jpg have the same stem|pet 7.jpg and .*pet 7.jpeg have the same stem"),
        (damage_lossy, r"pet 7.jpg may hold inexact values: save masks as PNG"),
        (damage_bytes, r"pet 7.png: empty file"),
        (damage_names, r"has classes.json and names.json: keep one of them"),
        (damage_empty, r"masks: no images in this folder"),
    ],
)
def test_what_is_wrong_with_masks_is_one_line_before_training(pets, damage, message):
    damage(pets)
    with pytest.raises(ValueError, match=message) as caught:
        open_split(pets)
    assert "\n" not in str(caught.value)


def test_sizes_are_checked_without_a_file_of_names_too(pets):
    (pets / "classes.json").unlink()
    damage_size(pets)
    with pytest.raises(ImageError, match="its mask is 5×4 pixels"):
        open_split(pets)


def test_an_image_beside_the_folders_of_splits_is_an_error(tmp_path):
    put(tmp_path / "images/train", tmp_path / "masks/train", ["a", "b"])
    Image.new("RGB", SIZE).save(tmp_path / "images/c.png")
    with pytest.raises(ValueError, match=r"c.png belongs to no split"):
        open_dataset(tmp_path, "train")


def test_an_unreadable_image_is_left_to_decoding(pets):
    (pets / "images/pet 7.jpg").write_bytes(b"")
    assert len(open_dataset(pets)) == 10


def test_an_image_that_is_turned_by_its_exif_data_has_a_mask_of_the_turned_size(pets):
    turned = Image.new("RGB", SIZE[::-1])
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(pets / "images/pet 7.jpg", exif=exif)
    assert len(open_dataset(pets)) == 10


def test_the_fingerprint_follows_images_masks_and_names(pets):
    prints = [open_dataset(pets).fingerprint]
    assert open_dataset(pets).fingerprint == prints[0]
    damage_value(pets)
    (pets / "classes.json").write_text(json.dumps(TRIMAP | {"4": "background"}))
    prints.append(open_dataset(pets).fingerprint)
    (pets / "classes.json").write_text(json.dumps(TRIMAP | {"4": "animal"}))
    prints.append(open_dataset(pets).fingerprint)
    Image.new("RGB", SIZE, "red").save(pets / "images/pet 0.jpg", quality=100)
    prints.append(open_dataset(pets).fingerprint)
    assert len(set(prints)) == 4


def test_masks_that_were_checked_are_not_read_again_until_one_changes(pets, monkeypatch):
    monkeypatch.setattr(mask_folder, "CACHED", 10)
    (pets / "classes.json").unlink()
    names = open_dataset(pets).class_names
    monkeypatch.setattr(mask_folder, "read_values", lambda path: pytest.fail("read again"))
    assert open_dataset(pets).class_names == names
    monkeypatch.undo()
    monkeypatch.setattr(mask_folder, "CACHED", 10)
    damage_value(pets)
    assert open_dataset(pets).class_names == (*names, "class 4")


def test_real_trimaps_are_read_with_a_file_of_names(shared, tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).symlink_to(shared / "data/pets-masks-500" / kind)
    (tmp_path / "classes.json").write_text(json.dumps(TRIMAP))
    train, test = open_split(tmp_path)
    assert (len(train) + len(test), train.class_names) == (500, ("animal", "background"))
    counts = np.array(train.mask(0).histogram())
    assert counts[[0, 1, IGNORE]].min() > 0
    assert counts.sum() == counts[[0, 1, IGNORE]].sum()
