"""Mask files: values, palettes and colours become class indices; the file of names; the view of a model."""

import json

import numpy as np
import pytest
from PIL import Image

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.data.masks import IGNORE, MaskValues, name_values, read_classes, read_values, read_with_mask, view_mask
from vitreous.data.preprocess import Preprocess

TRIMAP = MaskValues(("animal", "background"), {1: 0, 2: 1, 3: IGNORE, 255: IGNORE})
VALUES = np.array([[1, 2, 3], [255, 2, 1]], np.uint8)
PALETTE = [0, 0, 0, 255, 0, 0, 0, 255, 0, 9, 9, 9]


def classes(tmp_path, value):
    path = tmp_path / "classes.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def as_mode(mode):
    if mode == "P":
        image = Image.fromarray(VALUES, "P")
        image.putpalette([*PALETTE, *[7] * (768 - len(PALETTE))])
        return image
    if mode in ("I;16", "I"):
        return Image.fromarray(VALUES.astype(np.uint16 if mode == "I;16" else np.int32))
    return Image.fromarray(VALUES).convert(mode)


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "I", "RGB", "LA", "RGBA"])
def test_values_are_read_as_they_are_stored(tmp_path, mode):
    path = tmp_path / ("mask.tif" if mode == "I" else "mask.png")
    as_mode(mode).save(path)
    assert read_values(path).tolist() == VALUES.tolist()
    mask = TRIMAP.read(path)
    assert mask.mode == "L"
    assert np.asarray(mask).tolist() == [[0, 1, IGNORE], [IGNORE, 1, 0]]


def test_a_mask_of_one_bit_has_the_values_0_and_1(tmp_path):
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "mask.png")
    assert read_values(tmp_path / "mask.png").tolist() == [[1, 0]]


def test_colours_are_named_in_the_file(tmp_path):
    values = read_classes(
        classes(tmp_path, {"#FF0000": "cat", "#00ff00": "dog", "#ffffff": "cat", "ignore": "#000000"})
    )
    assert (values.class_names, values.colours) == (("dog", "cat"), True)  # in the order of the colours
    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 0], [255, 255, 255]]], np.uint8)
    Image.fromarray(colours).save(tmp_path / "mask.png")
    assert np.asarray(values.read(tmp_path / "mask.png")).tolist() == [[1, 0], [IGNORE, 1]]
    palette = Image.fromarray(np.array([[1, 2], [0, 1]], np.uint8), "P")
    palette.putpalette(PALETTE)
    palette.save(tmp_path / "mask.png")
    assert np.asarray(values.read(tmp_path / "mask.png")).tolist() == [[1, 0], [IGNORE, 1]]


@pytest.mark.parametrize(
    ("written", "names", "index"),
    [
        ({"1": "animal", "2": "background", "ignore": 3}, ("animal", "background"), {1: 0, 2: 1, 3: 255, 255: 255}),
        ({"2": "b", "10": "a", "ignore": [0, "7"]}, ("b", "a"), {2: 0, 10: 1, 0: 255, 7: 255, 255: 255}),
        (["background", "cat", "dog"], ("background", "cat", "dog"), {0: 0, 1: 1, 2: 2, 255: 255}),
        ({"1": "animal", "2": "background", "3": "animal"}, ("animal", "background"), {1: 0, 2: 1, 3: 0, 255: 255}),
        ({"0": "background", "255": "object"}, ("background", "object"), {0: 0, 255: 1}),
    ],
)
def test_a_file_names_values_and_those_to_ignore(tmp_path, written, names, index):
    values = read_classes(classes(tmp_path, written))
    assert (values.class_names, values.index, values.file) == (names, index, "classes.json")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"1": "a", "1": "b"}', "'1' stands there twice"),
        ("7", "holds no names of mask values: expected"),
        ({"animal": 1, "background": 2}, "has 1 for the name of a class: expected"),
        ({"animal": "1", "background": "2"}, "names 'animal', and expected is a mask value such as 1, or a colour"),
        ({"1": "a", "#ff0000": "b"}, "names '1', and expected is a colour such as #ff0000"),
        ({"1": "a", "70000": "b"}, "names '70000', and expected"),
        ({"1": "a", "2": " "}, "has ' ' for the name of a class"),
        ({"1": "a", "2": "b", "ignore": 2}, "both names and ignores 2"),
        ({"1": "a"}, "names 1 classes: a segmentation has 2 to 254"),
        ([str(i) for i in range(255)], "names 255 classes: a segmentation has 2 to 254"),
    ],
)
def test_what_is_wrong_with_the_file_is_one_line(tmp_path, written, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_classes(classes(tmp_path, written))
    assert "classes.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            Image.new("L", (2, 2), 4),
            "mask.tif: the value 4 has no class: classes.json has 1 animal, 2 background, 3 ign",
        ),
        (Image.new("RGB", (2, 2), "red"), "holds colours rather than class values: name the colours in classes.json"),
        (Image.new("F", (2, 2), 0.5), r"holds fractions \(F\) rather than class values"),
        (Image.new("I", (2, 2), 70000), "holds values from 70000 to 70000: expected 0 to 65535"),
    ],
)
def test_a_mask_of_other_values_is_named_with_what_is_wrong(tmp_path, image, message):
    image.save(tmp_path / "mask.tif")
    with pytest.raises(ImageError, match=message):
        TRIMAP.read(tmp_path / "mask.tif")


def test_classes_without_a_file_are_named_by_their_values():
    assert name_values([7, 0, 255], "zoo").index == {0: 0, 7: 1, 255: IGNORE}
    with pytest.raises(
        ValueError, match=r'hold nothing but 0 and 255, and 255 is ignored: name both .* "255": "object"'
    ):
        name_values([0, 255], "zoo")
    with pytest.raises(ValueError, match="hold nothing but 0: a segmentation has at least two classes"):
        name_values([0], "zoo")
    with pytest.raises(ValueError, match="hold 300 different values, too many for classes"):
        name_values(list(range(301)), "zoo")


def test_a_mask_of_another_size_than_its_image_is_refused():
    def dataset(size):
        mask = Image.new("L", size)
        return ImageDataset(
            "zoo", ("a", "b"), (0,), lambda i: Image.new("RGB", (4, 3)), task="segment", mask=lambda i: mask
        )

    assert read_with_mask(dataset((4, 3)), 0)[1].size == (4, 3)
    with pytest.raises(ImageError, match=r"zoo #0: its mask is 5×3 pixels, the image 4×3: each pixel needs a class"):
        read_with_mask(dataset((5, 3)), 0)
    with pytest.raises(ImageError, match="may be turned by its EXIF orientation"):
        read_with_mask(dataset((3, 4)), 0)


@pytest.mark.parametrize(
    "fit", [{"resize": 12}, {"resize": (9, 14)}, {"resize": (8, 8), "pad": True}, {"resize": None}]
)
@pytest.mark.parametrize("size", [(8, 8), (20, 6)])
def test_a_mask_is_resized_and_cropped_with_its_image(fit, size):
    """Block sizes are such that a nearest pixel and an interpolated colour agree inside the blocks."""
    y, x = np.mgrid[:48, :36]
    values = ((y // 12) * 3 + x // 12).astype(np.uint8)  # 12 blocks
    colours = np.stack([20 + 15 * values] * 3, -1).astype(np.uint8)
    preprocess = Preprocess(size=size, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="box", **fit)
    image = np.asarray(preprocess.view(Image.fromarray(colours)))[:, :, 0].astype(int)
    mask = np.asarray(view_mask(Image.fromarray(values), preprocess)).astype(int)
    assert mask.shape == image.shape == size
    outside = image == 0
    assert (mask[outside] == IGNORE).all()
    pure = ~outside & ((image - 20) % 15 == 0)  # not a mixture of two blocks
    assert pure.sum() > 0.3 * (~outside).sum()
    assert (mask[pure] == (image[pure] - 20) // 15).all()
