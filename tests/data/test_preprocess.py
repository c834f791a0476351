"""What each library does to an image before its model sees it, done by `Preprocess`: to the last bit."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import timm.data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import models
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification, ObjectDetection
from torchvision.transforms.v2 import functional as F
from transformers.models.bit.image_processing_bit import BitImageProcessor
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_deit import DeiTImageProcessor
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.models.vit.image_processing_vit import ViTImageProcessor

from vitreous.data.images import ImageError
from vitreous.data.preprocess import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    INTERPOLATIONS,
    Preprocess,
)
from vitreous.data.preprocess_configs import from_huggingface, from_timm, from_torchvision

# (height, width): portrait, landscape, square, tiny, one pixel, a strip, and sides that leave odd rests
SHAPES = [(301, 200), (180, 270), (128, 128), (7, 5), (1, 1), (12, 150), (67, 100), (99, 64)]


def image(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """A wave with some noise: smooth as photographs are, and different everywhere."""
    rows, columns = np.mgrid[:height, :width] / 17
    waves = np.stack([np.sin(rows + columns), np.cos(rows * 2 - columns), np.sin(columns * 3)], axis=-1)
    noise = np.random.default_rng(height * 1000 + width).normal(0, 12, waves.shape)
    return Image.fromarray((waves * 100 + 128 + noise).clip(0, 255).astype(np.uint8)).convert(mode)


def plain(**options: object) -> Preprocess:
    return Preprocess(**({"size": (32, 32), "resize": 36, "mean": HALF, "std": HALF} | options))


def test_constants_are_those_of_timm_and_transformers():
    assert (IMAGENET_MEAN, IMAGENET_STD) == (timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD)
    assert HALF == timm.data.IMAGENET_INCEPTION_MEAN == timm.data.IMAGENET_INCEPTION_STD
    assert (CLIP_MEAN, CLIP_STD) == (timm.data.OPENAI_CLIP_MEAN, timm.data.OPENAI_CLIP_STD)


# --- against timm -------------------------------------------------------------------------------------------


def timm_transform(config: dict, **options: object) -> object:
    return timm.data.create_transform(**timm.data.resolve_data_config(options, pretrained_cfg=config))


@pytest.mark.slow
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("input_size", [(3, 32, 32), (3, 33, 33), (3, 48, 32), (3, 30, 64)])
@pytest.mark.parametrize(
    "config",
    [
        {"crop_pct": 0.9, "mean": HALF, "std": HALF, "interpolation": "bicubic"},
        {"crop_pct": 1.0, "mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bilinear"},
        {"crop_pct": 0.7, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "lanczos"},
        {},
    ],
)
def test_against_timm_to_the_last_bit(config, input_size, crop_mode):
    config = config | {"input_size": input_size, "crop_mode": crop_mode}
    ours, theirs = from_timm(config), timm_transform(config)
    for shape in SHAPES:
        assert torch.equal(ours(image(*shape)), theirs(image(*shape))), shape


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 120), st.integers(1, 120)),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    crop_pct=st.sampled_from([0.5, 0.875, 0.9, 0.95, 1.0]),
    crop_mode=st.sampled_from(["center", "squash"]),
)
def test_against_timm_at_any_size(shape, size, crop_pct, crop_mode):
    config = {"input_size": (3, *size), "crop_pct": crop_pct, "crop_mode": crop_mode}
    expected = timm_transform(config)(image(*shape))
    assert torch.equal(from_timm(config)(image(*shape)), expected)


def test_against_timm_with_its_defaults_at_full_size():
    ours = from_timm({})
    assert (ours.size, ours.resize) == ((224, 224), 256)
    assert torch.equal(ours(image(333, 250)), timm_transform({"url": ""})(image(333, 250)))


def test_fields_of_a_timm_config_that_say_none_take_the_defaults():
    names = ("input_size", "crop_pct", "crop_mode", "interpolation", "mean", "std", "test_input_size")
    assert from_timm(dict.fromkeys(names)) == from_timm({})


@pytest.mark.parametrize("size", [64, (64, 64), (40, 64)])
def test_timm_at_another_image_size_keeps_the_share_that_is_cropped(size):
    config = {"input_size": (3, 32, 32), "crop_pct": 0.9}
    height, width = (size, size) if isinstance(size, int) else size
    theirs = timm_transform(config, input_size=(3, height, width))
    ours = from_timm(config, image_size=size)
    assert torch.equal(ours(image(90, 120)), theirs(image(90, 120)))


def test_timm_at_its_test_size_takes_the_share_for_tests():
    config = {
        "input_size": (3, 32, 32), "crop_pct": 0.9, "test_input_size": [3, 48, 48], "test_crop_pct": 1.0,
    }  # fmt: skip
    theirs = timm.data.create_transform(**timm.data.resolve_data_config({}, pretrained_cfg=config, use_test_size=True))
    assert torch.equal(from_timm(config, image_size=48)(image(60, 99)), theirs(image(60, 99)))
    assert from_timm(config, image_size=48).resize == 48
    assert from_timm(config).resize == 35
    assert from_timm(config, image_size=64).resize == 71


def test_grey_timm_models_get_one_channel():
    config = {"input_size": (1, 28, 28), "crop_pct": 1.0, "mean": (0.1307,), "std": (0.3081,)}
    ours, theirs = from_timm(config), timm_transform(config)
    assert torch.equal(ours(image(40, 30, "L")), theirs(image(40, 30, "L")))
    assert ours(image(40, 30)).shape == (1, 28, 28)
    assert from_timm(config | {"mean": HALF, "std": HALF}).mean == (0.5,)
    assert from_timm({"mean": (0.5,), "std": (0.5,)}).mean == HALF
    with pytest.raises(ValueError, match="mean has 3 values, the model 1 channels"):
        from_timm(config | {"mean": IMAGENET_MEAN})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"crop_mode": "border"}, "crop_mode border .* use center or squash"),
        ({"crop_mode": "corner"}, "crop_mode has to be one of center, squash, got 'corner'"),
        ({"interpolation": "random"}, "interpolation has to be one of .*got 'random'"),
        ({"input_size": (3, 224)}, "input_size has to be height and width"),
        ({"mean": (0.5, 0.5)}, "mean has to be 3 numbers"),
    ],
)
def test_timm_configs_that_cannot_be_followed_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        from_timm(config)


# --- against torchvision ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [
        models.ViT_B_16_Weights.IMAGENET1K_V1,
        models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1,
        models.ResNet50_Weights.IMAGENET1K_V2,
        models.Swin_T_Weights.IMAGENET1K_V1,
    ],
    ids=str,
)
def test_against_torchvision_to_the_last_bit(weights):
    ours = from_torchvision(weights.transforms())
    for shape in [(301, 200), (180, 270), (384, 384), (9, 7)]:
        assert torch.equal(ours(image(*shape)), weights.transforms()(image(*shape))), shape


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    crop=st.integers(1, 60),
    resize=st.integers(1, 60),  # often smaller than the crop: black edges
    interpolation=st.sampled_from([mode for mode in InterpolationMode if mode.value != "nearest-exact"]),
)
def test_against_torchvision_at_any_size(shape, crop, resize, interpolation):
    theirs = ImageClassification(crop_size=crop, resize_size=resize, interpolation=interpolation)
    ours = from_torchvision(theirs)
    assert torch.equal(ours(image(*shape)), theirs(image(*shape)))


def test_every_interpolation_is_the_one_torchvision_calls_so():
    for name in INTERPOLATIONS:
        expected = F.resize(image(40, 60), [24, 24], InterpolationMode(name))
        ours = plain(size=(24, 24), resize=(24, 24), interpolation=name).view(image(40, 60))
        assert ours.tobytes() == expected.tobytes()


def test_torchvision_pairs_and_exact_nearest_are_understood():
    theirs = ImageClassification(crop_size=8, interpolation=InterpolationMode.NEAREST_EXACT)
    theirs.crop_size, theirs.resize_size = [8, 12], [16, 20]
    assert from_torchvision(theirs) == Preprocess(
        size=(8, 12), resize=(16, 20), mean=IMAGENET_MEAN, std=IMAGENET_STD, interpolation="nearest"
    )


def test_other_torchvision_transforms_are_refused():
    with pytest.raises(ValueError, match=r"weights.transforms\(\).*got ObjectDetection"):
        from_torchvision(ObjectDetection())


# --- against Hugging Face -----------------------------------------------------------------------------------

# what the files on the Hub hold, old and new, shortened to sizes that are quick
IMAGENET = {"image_mean": list(IMAGENET_MEAN), "image_std": list(IMAGENET_STD)}
DINOV2 = {"size": {"shortest_edge": 48}, "crop_size": {"height": 42, "width": 42}, **IMAGENET}
PROCESSORS = [
    (ViTImageProcessorPil, {}),
    (ViTImageProcessorPil, {"size": 40, "do_resize": True}),
    (ViTImageProcessorPil, {"size": {"height": 30, "width": 50}, "resample": 3, **IMAGENET}),
    (ViTImageProcessorPil, {"size": 40, "do_normalize": False}),
    (DeiTImageProcessorPil, {}),
    (DeiTImageProcessorPil, {"size": 50, "crop_size": 43, **IMAGENET}),
    (BitImageProcessorPil, {}),
    (BitImageProcessorPil, DINOV2),
    (CLIPImageProcessorPil, {}),
    (CLIPImageProcessorPil, {"size": 45, "crop_size": 45, "resample": 3}),
    (SiglipImageProcessorPil, {}),
    (SiglipImageProcessorPil, {"size": {"height": 30, "width": 30}, "resample": 1}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "config"), PROCESSORS)
def test_against_hugging_faces_pillow_processors_to_the_last_bit(processor, config):
    theirs = processor(**config)
    named = {**config, "image_processor_type": processor.__name__}
    for ours in (from_huggingface(named), from_huggingface(theirs.to_dict())):
        for shape in SHAPES:
            expected = torch.as_tensor(np.asarray(theirs(image(*shape))["pixel_values"][0]))
            assert torch.equal(ours(image(*shape)), expected), shape


@pytest.mark.parametrize("processor", [ViTImageProcessor, DeiTImageProcessor, BitImageProcessor, CLIPImageProcessor])
def test_near_hugging_faces_tensor_processors(processor):
    """Tensors are rounded otherwise than Pillow's images: by 0 or 1 of 255 grey levels, rarely up to 4."""
    theirs = processor()
    ours = from_huggingface(theirs.to_dict())
    for shape in [(301, 200), (180, 271), (300, 300)]:
        expected = theirs(image(*shape), return_tensors="pt")["pixel_values"][0]
        levels = (ours(image(*shape)) - expected).abs() * torch.tensor(ours.std).view(3, 1, 1) * 255
        assert levels.max() < 4.01
        assert (levels > 1.01).float().mean() < 0.001


@pytest.mark.parametrize(
    "options",
    [
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5},
        {"do_rescale": False, "do_normalize": False},
        {"do_normalize": False, "rescale_factor": 0.01},
    ],
)
def test_other_rescale_factors_are_folded_into_mean_and_std(options):
    theirs = ViTImageProcessorPil(size=40, **options)
    expected = torch.as_tensor(np.asarray(theirs(image(60, 70))["pixel_values"][0], dtype=np.float32))
    ours = from_huggingface(theirs.to_dict())(image(60, 70))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_one_crop_in_four_begins_elsewhere_at_hugging_face():
    odd = image(32, 35)  # three columns to cut off: one or two of them on the left
    down, even = (plain(resize=None, crop_rounding=rounding).view(odd) for rounding in ("down", "even"))
    assert down.tobytes() == odd.crop((1, 0, 33, 32)).tobytes()
    assert even.tobytes() == odd.crop((2, 0, 34, 32)).tobytes()


def test_old_configs_name_a_feature_extractor_or_nothing():
    vit = from_huggingface({"size": 40, "image_mean": list(HALF), "image_std": list(HALF)})
    assert vit.describe() == "squash to 40×40 (bilinear), mean 0.5 0.5 0.5, std 0.5 0.5 0.5"
    clip = from_huggingface({"size": 40, "feature_extractor_type": "CLIPFeatureExtractor"})
    assert (clip.resize, clip.size, clip.mean) == (40, (224, 224), CLIP_MEAN)
    fast = from_huggingface({"image_processor_type": "DeiTImageProcessorFast", "size": 40})
    assert (fast.resize, fast.size) == ((40, 40), (224, 224))
    assert from_huggingface({"image_processor": {"size": 40}}) == vit
    assert from_huggingface({"size": [30, 40], "image_mean": 0.5}).size == (30, 40)


def test_hugging_face_at_another_image_size_keeps_the_recipe():
    dinov2 = DINOV2 | {"image_processor_type": "BitImageProcessor"}
    assert from_huggingface(dinov2, image_size=84).resize == 96
    assert from_huggingface({"size": 224}, image_size=384).resize == (384, 384)
    assert from_huggingface({"size": 224}, image_size=224).size == (224, 224)


def test_a_config_without_a_fixed_size_needs_the_models():
    for config in ({"size": {"shortest_edge": 40}}, {"do_resize": False}):
        with pytest.raises(ValueError, match="pass image_size"):
            from_huggingface(config)
        assert from_huggingface(config, image_size=32).size == (32, 32)
    assert from_huggingface({"do_resize": False}, image_size=32).resize is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"image_processor_type": "DPTImageProcessor", "size": 9}, "lacks resample, image_mean, image_std"),
        ({"do_pad": True}, "asks for do_pad"),
        ({"size": {"longest_edge": 9}}, "size has to be height and width, or shortest_edge"),
        ({"size": {"shortest_edge": -1}}, "size has to be height and width"),
        ({"size": {"height": 9}}, "size has to be height and width"),
        ({"size": "large"}, "size has to be height and width"),
        ({"resample": 9}, "resample has to be one of Pillow's numbers"),
        ({"image_mean": [0.5, "x", 0.5]}, "image_mean has to be 3 numbers"),
    ],
)
def test_hugging_face_configs_that_cannot_be_followed_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        from_huggingface(config)


def test_an_unknown_processor_whose_config_says_everything_is_followed():
    config = {"image_processor_type": "NewImageProcessor", "size": 40, "resample": 3, **IMAGENET}
    assert from_huggingface(config).describe().startswith("squash to 40×40 (bicubic), mean 0.485")


# --- doing it -----------------------------------------------------------------------------------------------


def test_the_tensor_is_float_and_has_the_models_size():
    tensor = plain(size=(20, 30), resize=(22, 40), cover=True)(image(70, 50))
    assert tensor.shape == (3, 20, 30)
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1", "I;16"])
@pytest.mark.parametrize(("mean", "std"), [(HALF, HALF), ((0.1307,), (0.3081,)), (CLIP_MEAN, CLIP_STD)])
def test_to_pixels_gives_back_exactly_what_the_model_saw(mode, mean, std):
    preprocess = plain(mean=mean, std=std)
    source = image(50, 70, "L").convert(mode) if mode == "I;16" else image(50, 70, mode)
    seen = np.asarray(preprocess.view(source)).reshape(32, 32, len(mean))
    shown = preprocess.to_pixels(preprocess(source))
    assert shown.dtype == torch.uint8
    assert np.array_equal(shown.numpy(), seen)
    batch = preprocess.to_pixels(preprocess(source).expand(2, 5, -1, -1, -1))
    assert batch.shape == (2, 5, 32, 32, len(mean))
    assert np.array_equal(batch[1, 4].numpy(), seen)


def test_to_pixels_stays_between_black_and_white_in_any_precision():
    wild = torch.tensor([-9.0, 0.0, 9.0], dtype=torch.bfloat16, requires_grad=True).view(3, 1, 1)
    assert plain().to_pixels(wild).tolist() == [[[0, 128, 255]]]


def test_to_pixels_says_which_shape_it_expects():
    for shape in ((3, 4), (1, 4, 4), (4, 4, 3)):
        with pytest.raises(ValueError, match=r"expected a tensor \[\.\.\. 3 h w\]"):
            plain().to_pixels(torch.zeros(shape))


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


# --- saying it ----------------------------------------------------------------------------------------------

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
        ({"mean": [0.5, 0.5]}, "mean has to be 3 numbers"),
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
