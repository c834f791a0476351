"""Masks at the image's own size, their colours and their files."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vitreous.data.masks import draw_mask, mask_colours, palette_image, read_classes, read_values
from vitreous.data.preprocess import Preprocess
from vitreous.predict.segmentation import begin_masks, class_shares, full_mask, mask_path, write_mask

HALF = (0.5, 0.5, 0.5)


def squash(height, width):
    return Preprocess(size=(height, width), resize=(height, width), mean=HALF, std=HALF)


@pytest.mark.parametrize(("width", "height"), [(37, 23), (8, 8), (300, 5), (1, 1)])
def test_a_squashed_view_is_resized_bilinearly_to_the_image(width, height):
    logits = torch.randn(5, 8, 12)
    expected = F.interpolate(logits[None], (height, width), mode="bilinear", align_corners=False)[0].argmax(dim=0)
    assert full_mask(logits, squash(8, 12), width, height).tolist() == expected.tolist()


def test_large_masks_are_computed_in_strips_with_the_same_classes(monkeypatch):
    logits = torch.randn(3, 6, 6)
    whole = full_mask(logits, squash(6, 6), 40, 30)
    monkeypatch.setattr("vitreous.predict.segmentation.STRIP", 1)
    assert np.array_equal(full_mask(logits, squash(6, 6), 40, 30), whole)


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize(("width", "height"), [(24, 12), (13, 30), (16, 16)])
def test_a_mask_lies_where_its_image_does(fit, width, height):
    """A model that sees brightness: what is bright in the image is the second class of the mask."""
    preprocess = Preprocess(size=(12, 12), resize=14, mean=HALF, std=HALF, interpolation="nearest").with_fit(fit)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[height // 2 :, width // 3 :] = 255
    seen = preprocess(Image.fromarray(pixels))[0]
    mask = full_mask(torch.stack([-seen, seen]), preprocess, width, height)
    left, top, right, bottom = preprocess.crop_box(width, height)
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    inside = ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
    assert np.array_equal(mask != 255, inside)
    assert inside.all() == (fit != "crop")
    wrong = (mask != (pixels[..., 0] == 255)) & inside
    edge = np.abs(np.gradient(pixels[..., 0].astype(float))[0]) + np.abs(np.gradient(pixels[..., 0].astype(float))[1])
    assert not (wrong & (edge == 0)).any()  # but for a pixel beside the edge, which resizing moves


def test_a_view_with_black_edges_says_nothing_about_them():
    """The model calls its black edges the second class; no pixel of the image is one of them."""
    preprocess = Preprocess(size=(8, 8), resize=(8, 8), pad=True, mean=HALF, std=HALF)
    logits = torch.zeros(2, 8, 8)
    logits[1, :2], logits[1, 6:] = 5, 5
    logits[0, 2:6] = 5
    assert preprocess.view_box(20, 10) == (0, 2, 8, 6)
    assert not full_mask(logits, preprocess, 20, 10).any()


def test_shares_are_of_all_pixels():
    assert class_shares(np.array([[2, 2, 2, 0, 255, 255]], np.uint8), 4) == {2: 0.5, 0: pytest.approx(1 / 6)}


def test_a_mask_holds_no_more_classes_than_values():
    with pytest.raises(ValueError, match="up to 254 classes, and this model has 255"):
        full_mask(torch.zeros(255, 2, 2), squash(2, 2), 2, 2)


def test_a_mask_file_has_values_colours_and_names(tmp_path):
    mask = np.array([[0, 1], [2, 255]], np.uint8)
    begin_masks(tmp_path / "masks", ["photos/cat.jpg"], ["sky", "sea", "sand"])
    path = write_mask(tmp_path / "masks", "photos/cat.jpg", mask, 3)
    assert path == tmp_path / "masks/cat.png" == mask_path(tmp_path / "masks", "cat.webp")
    image = Image.open(path)
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image), mask)
    known = json.loads((tmp_path / "masks/classes.json").read_text())
    assert known == {"0": "sky", "1": "sea", "2": "sand", "ignore": 255, "colours": mask_colours(3)[:3]}
    shown = image.convert("RGB")
    colours = ["#{:02x}{:02x}{:02x}".format(*shown.getpixel(at)) for at in ((0, 0), (1, 0), (0, 1), (1, 1))]
    assert colours == [*known["colours"], "#000000"]


def test_masks_that_were_written_can_be_learned_from(tmp_path):
    mask = np.array([[0, 1, 255]], np.uint8)
    begin_masks(tmp_path, ["cat.jpg"], ["sky", "sea"])
    values = read_classes(tmp_path / "classes.json")
    assert values.class_names == ("sky", "sea")
    assert np.asarray(values.read(write_mask(tmp_path, "cat.jpg", mask, 2))).tolist() == mask.tolist()
    assert read_values(tmp_path / "cat.png").tolist() == mask.tolist()


def test_masks_of_the_same_classes_are_written_again(tmp_path):
    for _ in range(2):
        begin_masks(tmp_path, ["a/cat.jpg"], ["sky", "sea"])
        write_mask(tmp_path, "a/cat.jpg", np.zeros((1, 1), np.uint8), 2)
    with pytest.raises(ValueError, match=r"classes\.json is there already, and no mask of these classes"):
        begin_masks(tmp_path, ["a/cat.jpg"], ["sky", "sand"])


def test_nothing_else_is_replaced_by_a_mask(tmp_path):
    image = tmp_path / "images/cat.png"
    image.parent.mkdir()
    Image.new("RGB", (2, 2)).save(image)
    with pytest.raises(ValueError, match=r"cat\.png is there already, and no mask of these classes"):
        begin_masks(image.parent, [str(image)], ["sky", "sea"])
    begin_masks(tmp_path / "masks", [str(image)], ["sky", "sea"])
    (image.parent / "classes.json").write_text((tmp_path / "masks/classes.json").read_text())
    with pytest.raises(ValueError, match=r"cat\.png is one of the images, and its mask would replace it"):
        begin_masks(image.parent, [str(image)], ["sky", "sea"])
    assert Image.open(image).mode == "RGB"


def test_two_images_of_one_stem_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a/1\.jpg and b/1\.png have the same stem"):
        begin_masks(tmp_path / "masks", ["a/1.jpg", "b/1.png"], ["sky", "sea"])
    assert not (tmp_path / "masks").exists()


def test_a_mask_is_drawn_in_its_colours_and_nothing_where_there_is_no_class():
    white = Image.new("RGB", (2, 1), "white")
    drawn = draw_mask(white, np.array([[0, 255]], np.uint8), 1, opacity=1.0)
    colour = tuple(bytes.fromhex(mask_colours(1)[0][1:]))
    assert (drawn.getpixel((0, 0)), drawn.getpixel((1, 0))) == (colour, (255, 255, 255))
    assert palette_image(np.zeros((3, 4), np.uint8), 1).size == (4, 3)
