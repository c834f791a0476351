"""What each library does to an image before its model sees it, done by `Preprocess`: to the last bit."""

import numpy as np
import pytest
import timm.data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.models.vit.image_processing_vit import ViTImageProcessor
from waves import image, plain

from vitreous.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD, INTERPOLATIONS, Preprocess
from vitreous.data.preprocess_configs import from_huggingface, from_timm, from_torchvision

# (height, width): portrait, landscape, square, tiny, one pixel, a strip, and sides that leave odd rests
SHAPES = [(301, 200), (180, 270), (128, 128), (7, 5), (1, 1), (12, 150), (67, 100), (99, 64)]


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
        ({"mean": (0.5, 0.5)}, "mean has 2 values, the model 3 channels"),
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
    (DPTImageProcessorPil, {"size": {"height": 32, "width": 32}, "ensure_multiple_of": 4}),
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
    config = {"size": {"shortest_edge": 40}}
    with pytest.raises(ValueError, match="pass image_size"):
        from_huggingface(config)
    assert from_huggingface(config, image_size=32).size == (32, 32)
    with pytest.raises(ValueError, match="neither resizes nor crops"):
        from_huggingface({"do_resize": False}, image_size=32)
    assert from_huggingface({"do_resize": False, "do_center_crop": True, "crop_size": 32}).resize is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"image_processor_type": "NewImageProcessor", "size": 9}, "lacks resample, image_mean, image_std"),
        (
            {"image_processor_type": "DPTImageProcessor", "size": 9, "ensure_multiple_of": 2},
            "ensure_multiple_of has to",
        ),
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


def test_a_crop_size_of_transformers_is_checked_even_if_it_is_not_used():
    config = {"image_processor_type": "BeitImageProcessor", "crop_size": {"width": 32}, "do_center_crop": False}
    with pytest.raises(ValueError, match="size has to be height and width, or shortest_edge"):
        from_huggingface(config)
