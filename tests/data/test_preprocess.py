"""What each library does to an image before its model sees it, done by `Preprocess`: to the last bit."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import timm.data
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from waves import image, plain

from vitreous.data.images import ImageError
from vitreous.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess


def test_constants_are_those_of_timm_and_transformers():
    assert (IMAGENET_MEAN, IMAGENET_STD) == (timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD)
    assert HALF == timm.data.IMAGENET_INCEPTION_MEAN == timm.data.IMAGENET_INCEPTION_STD
    assert (CLIP_MEAN, CLIP_STD) == (timm.data.OPENAI_CLIP_MEAN, timm.data.OPENAI_CLIP_STD)


# --- images → tensors ---------------------------------------------------------------------------------------


def test_the_tensor_is_float_and_has_the_models_size():
    tensor = plain(size=(20, 30), resize=(22, 40), cover=True)(image(70, 50))
    assert tensor.shape == (3, 20, 30)
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()


def test_an_image_that_is_too_small_gets_black_edges():
    view = plain(size=(5, 6), resize=None).view(Image.new("RGB", (3, 9), "white"))
    assert np.asarray(view)[..., 0].tolist() == [[0, 255, 255, 255, 0, 0]] * 5


def test_grey_images_stay_as_they_are_for_grey_models():
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    grey = plain(size=(16, 16), resize=None, mean=(0.0,), std=(1.0,))
    assert grey.view(ramp).tobytes() == grey.view(ramp.convert("RGB")).tobytes() == ramp.tobytes()


def test_images_are_seen_upright_and_on_white():
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = image(20, 30)
    lying.info["exif"] = exif.tobytes()
    upright = plain(size=(30, 20), resize=None).view(lying)
    assert upright.tobytes() == image(20, 30).transpose(Image.Transpose.ROTATE_270).tobytes()
    clear = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
    assert plain().view(clear).getpixel((0, 0)) == (255, 255, 255)


def test_the_image_handed_in_is_not_changed():
    before = image(50, 70)
    plain(resize=None, size=(50, 70))(before)
    assert before.tobytes() == image(50, 70).tobytes()


def test_a_thread_of_an_image_is_refused_before_it_grows_huge():
    with pytest.raises(ImageError, match="1×3000 would grow to 224×672000 before the crop"):
        plain(size=(224, 224), resize=224)(Image.new("RGB", (1, 3000)))


# --- in words and in JSON -----------------------------------------------------------------------------------

RECIPES = [
    (plain(size=(224, 224), resize=248), "shorter side to 248 (bicubic), centre crop 224×224"),
    (plain(resize=(40, 44), interpolation="box"), "squash to 40×44 (box), centre crop 32×32"),
    (plain(resize=(32, 32)), "squash to 32×32 (bicubic)"),
    (plain(size=(32, 24), resize=(32, 24), cover=True), "cover 32×24 (bicubic), centre crop 32×24"),
    (plain(resize=None), "centre crop 32×32"),
]


@pytest.mark.parametrize(("recipe", "line"), RECIPES)
def test_one_line_describes_it_all(recipe, line):
    assert recipe.describe() == f"{line}, mean 0.5 0.5 0.5, std 0.5 0.5 0.5"


def test_grey_is_described_as_grey():
    assert plain(mean=[0.1307], std=[0.3081]).describe().endswith("32×32, grey, mean 0.1307, std 0.3081")


@pytest.mark.parametrize("recipe", [recipe for recipe, _ in RECIPES] + [plain(crop_rounding="down", mean=CLIP_MEAN)])
def test_json_there_and_back_changes_nothing(recipe):
    written = json.loads(json.dumps(recipe.to_dict()))
    assert written == recipe.to_dict()
    back = Preprocess.from_dict(written)
    assert back == recipe
    assert hash(back) == hash(recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1, "taste": 2}, "no field colour, taste: it has size, resize, mean, std, interpolation"),
        ({"size": 224}, "size has to be height and width in whole pixels above 0, got 224"),
        ({"size": [224, 0]}, "size has to be height and width"),
        ({"size": [224.0, 224.0]}, "size has to be height and width"),
        ({"size": [1, 2, 3]}, "size has to be height and width"),
        ({"size": "224"}, "size has to be height and width"),
        ({"resize": 0}, r"resize has to be .*\(or one length for the shorter side, or null\), got 0"),
        ({"resize": True}, "resize has to be"),
        ({"resize": 24.5}, "resize has to be"),
        ({"resize": "large"}, "resize has to be"),
        ({"mean": 0.5}, "mean has to be 3 numbers"),
        ({"mean": [0.5, 0.5]}, "mean has 2 values and std has 3"),
        ({"mean": [0.5, 0.5, "a"]}, "mean has to be 3 numbers"),
        ({"mean": [0.5, 0.5, float("nan")]}, "mean has to be 3 numbers"),
        ({"mean": [0.5, 0.5, True]}, "mean has to be 3 numbers"),
        ({"mean": [0.5]}, "mean has 1 values and std has 3"),
        ({"std": [0.5, 0.5, 0.0]}, "above 0"),
        ({"interpolation": "cubic"}, "interpolation has to be one of nearest, box, .* got 'cubic'"),
        ({"interpolation": ["bicubic"]}, "interpolation has to be one of"),
        ({"crop_rounding": "up"}, "crop_rounding has to be one of even, down"),
        ({"cover": 1}, "cover has to be true or false"),
        ({"cover": True}, "cover needs height and width in resize, got 36"),
    ],
)
def test_wrong_fields_are_refused_with_what_to_change(change, message):
    with pytest.raises(ValueError, match=message):
        Preprocess.from_dict(plain().to_dict() | change)


@pytest.mark.parametrize("name", ["size", "resize", "mean", "std"])
def test_what_a_checkpoint_must_say_may_not_be_missing(name):
    values = plain().to_dict()
    del values[name]
    with pytest.raises(ValueError, match=f"lacks {name}"):
        Preprocess.from_dict(values)


def test_only_a_table_is_read():
    with pytest.raises(ValueError, match="got list"):
        Preprocess.from_dict([("size", (1, 1))])


def test_a_recipe_cannot_be_changed_by_accident():
    with pytest.raises(FrozenInstanceError):
        plain().resize = 3


def test_numbers_of_numpy_become_plain_ones():
    recipe = plain(size=(np.int64(8), np.int64(9)), resize=np.int64(10), mean=list(np.float32([0.5] * 3)))
    assert json.loads(json.dumps(recipe.to_dict()))["resize"] == 10
    assert recipe(image(20, 20)).shape == (3, 8, 9)


# --- another size -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "size", "resize", "cover"),
    [
        (plain(size=(224, 224), resize=256), 448, 512, False),
        (plain(size=(224, 224), resize=248), (112, 112), 124, False),
        (plain(size=(224, 224), resize=(256, 256)), (224, 448), (256, 512), False),
        (plain(size=(224, 224), resize=256), (224, 448), (256, 512), True),
        (plain(size=(32, 24), resize=(32, 24), cover=True), (64, 48), (64, 48), True),
        (plain(size=(32, 32), resize=None), 16, None, False),
        (plain(size=(300, 300), resize=1), 10, 1, False),
    ],
)
def test_with_size_scales_the_resize_along(old, size, resize, cover):
    new = old.with_size(size)
    assert new.size == ((size, size) if isinstance(size, int) else size)
    assert (new.resize, new.cover) == (resize, cover)
    assert (new.mean, new.interpolation) == (old.mean, old.interpolation)
    assert new(image(33, 44)).shape == (3, *new.size)


def test_with_the_same_size_nothing_changes():
    for recipe, _ in RECIPES:
        assert recipe.with_size(recipe.size) == recipe


def test_with_size_says_what_a_size_is():
    with pytest.raises(ValueError, match="size has to be height and width in whole pixels above 0, got 0"):
        plain().with_size(0)


# --- images of other sides than the model's -------------------------------------------------------------------------


def test_crop_squash_and_pad_show_what_they_say():
    wide = Image.new("RGB", (80, 40), "red")
    wide.paste("white", (20, 0, 60, 40))  # the centre square
    steps = plain(size=(20, 20), resize=20, interpolation="nearest")
    seen = {fit: np.asarray(steps.with_fit(fit).view(wide)) for fit in ("crop", "squash", "pad")}
    assert (seen["crop"] == 255).all()
    assert (seen["squash"][:, 5:15] == 255).all()
    assert (seen["squash"][:, :5] == (255, 0, 0)).all()
    assert (seen["pad"][5:15, 5:15] == 255).all()
    assert (seen["pad"][5:15, :5] == (255, 0, 0)).all()
    assert (seen["pad"][:5] == 0).all()
    assert (seen["pad"][15:] == 0).all()


def test_without_a_fit_and_with_the_usual_one_nothing_changes():
    for steps in (plain(size=(20, 20), resize=25), plain(size=(20, 20), resize=(25, 25), cover=True)):
        assert steps.with_fit(None) is steps
        assert steps.with_fit("crop") == steps
    squashed = plain(size=(20, 20), resize=(20, 20))
    assert squashed.with_fit("squash") == squashed
    assert squashed.with_fit("crop").cover
    assert plain(size=(20, 20), resize=None).with_fit("crop").resize == (20, 20)
    with pytest.raises(ValueError, match="fit has to be one of crop, squash, pad, got 'stretch'"):
        squashed.with_fit("stretch")


def test_a_padded_preprocessing_is_described_saved_and_scaled():
    padded = plain(size=(20, 20), resize=25).with_fit("pad")
    assert padded.describe().startswith("fit inside 20×20 (bicubic), black edges, mean")
    assert Preprocess.from_dict(padded.to_dict()) == padded
    assert "pad" not in plain().to_dict()
    assert padded.with_size(40).pad
    assert padded.with_size(40).resize == (40, 40)
    with pytest.raises(ValueError, match="pad needs height and width in resize"):
        plain(size=(20, 20), resize=20, pad=True)
    with pytest.raises(ValueError, match="set cover or pad to false"):
        plain(size=(20, 20), resize=(20, 20), pad=True, cover=True)


@given(st.integers(8, 90), st.integers(8, 90), st.sampled_from(["crop", "squash", "pad", None]), st.integers(8, 30))
def test_the_crop_box_holds_what_is_seen_and_nothing_else(width, height, fit, resize):
    steps = plain(size=(16, 12), resize=resize, interpolation="nearest").with_fit(fit)
    left, top, right, bottom = steps.crop_box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    rows, columns = np.mgrid[0:height, 0:width].astype(np.uint8) + 1  # 0 is the black edge
    seen = np.asarray(steps.view(Image.fromarray(np.stack([rows, columns, rows], axis=2))))
    inside = seen[seen[:, :, 0] > 0]
    for values, first, last in ((inside[:, 0], top, bottom), (inside[:, 1], left, right)):
        one = (last - first) / len(set(values.tolist())) + 1  # a pixel of what is seen, and one of the image
        assert abs(values.min() - 1 - first) <= one
        assert abs(values.max() - last) <= one
