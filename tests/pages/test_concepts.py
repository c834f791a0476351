"""The page of concepts shows where each is strongest, what it does, and how far to trust it; bad input is one line."""

import base64
import io
from dataclasses import replace

import pytest
from PIL import Image

import vitreous
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.data.sample_photos import samples
from vitreous.models.resnet import ResNet, resnet_config
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card

pytestmark = pytest.mark.slow


def photos(count=12):
    """Parts of the sample photographs."""
    cut = [photo.crop((x, x, x + 100, x + 100)) for photo in samples().values() for x in (0, 40, 80, 120)]
    return cut[:count]


@pytest.fixture(scope="module")
def concepts():
    return vitreous.find_concepts(photos(), "packaged:cifar10", 5, concepts=64, steps=30, measured=8)


def test_the_page_shows_places_classes_and_figures(concepts, tmp_path):
    page = concepts.save(tmp_path / "concepts.html").read_text(encoding="utf-8")
    assert "What block 5 of packaged:cifar10 tells apart" in page
    assert page.count('<section id="concept-') == len(concepts.found) > 0
    for name, change in concepts.describe(concepts.found[0]):
        assert f"{name} <small>{change:+.2f}".replace("-", "−") in page
    assert f"{concepts.stronger} of {len(concepts.found)}" in page
    assert page.count("data:image/jpeg;base64,") == sum(min(6, len(each.places)) for each in concepts.found)


def test_the_page_is_never_written_over_a_file_of_another_kind(concepts, tmp_path):
    with pytest.raises(ValueError, match=r"the page is an .html file, got .*cat.png: name .*cat.html$"):
        concepts.save(tmp_path / "cat.png")
    assert not list(tmp_path.iterdir())


def test_the_outlined_patch_is_the_concepts(concepts):
    plain = concepts.images[0].convert("RGB").resize((144, 144), Image.Resampling.LANCZOS)
    address = concepts._tile(0, 9)  # of 8 × 8 patches: the second row, the second column
    drawn = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert sum(drawn.getpixel((18, 27))) != sum(plain.getpixel((18, 27)))
    assert max(abs(a - b) for a, b in zip(drawn.getpixel((100, 100)), plain.getpixel((100, 100)), strict=True)) < 40


def test_the_outline_is_around_the_pixels_that_a_patch_reads(concepts):
    config = ViTConfig(image_size=(38, 45), patch_size=(6, 16), partial_patches=True)
    other = replace(concepts, images=[Image.new("RGB", (45, 38))], layout=config.layout)
    for patch, box in {0: (0, 0, 16, 6), 3: (16, 6, 32, 12), 11: (16, 30, 32, 36)}.items():
        drawn = Image.open(io.BytesIO(base64.b64decode(other._tile(0, patch).partition(",")[2])))
        found = drawn.convert("L").point(lambda value: 255 * (value > 40)).getbbox()
        expected = [edge * 144 / (45, 38)[i % 2] for i, edge in enumerate(box)]
        assert found == pytest.approx(expected, abs=3)


def test_what_cannot_be_done_is_said_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="too few images to learn concepts from: 3, and 10 are the least"):
        vitreous.find_concepts(photos(3), "packaged:cifar10")
    with pytest.raises(ValueError, match="there is no block 40: this model has 0 to 7"):
        vitreous.find_concepts(photos(), "packaged:cifar10", 40)
    other = ResNet(resnet_config("resnet18_small", classes=3)).eval()
    other.card = Card("other", Preprocess(size=(32, 32), resize=32, mean=HALF, std=HALF), family="ResNet")
    with pytest.raises(ValueError, match="concepts are found in a ViT that answers with classes"):
        vitreous.find_concepts(photos(), other)


@pytest.mark.parametrize("choice", [{"concepts": 0}, {"active": 0}, {"steps": -1}, {"measured": -1}, {"steps": 2.5}])
def test_a_number_below_one_is_refused_in_one_line(choice):
    ((name, number),) = choice.items()
    with pytest.raises(ValueError, match=f"^{name} must be a whole number of at least 1, got {number}$"):
        vitreous.find_concepts(photos(), "packaged:cifar10", 5, **choice)


def test_a_model_in_training_mode_is_measured_without_dropout_and_left_in_it():
    found = []
    for training in (False, True):
        model = vitreous.load("packaged:cifar10").train(training)
        model.blocks[0].eval()
        modes = [module.training for module in model.modules()]
        for block in model.blocks:
            block.attn.dropout = 0.9
        found.append(vitreous.find_concepts(photos(), model, 5, concepts=32, steps=2, measured=4, device="cpu"))
        assert [module.training for module in model.modules()] == modes
    assert found[0].found == found[1].found


def test_a_broken_image_is_left_out_and_named(tmp_path):
    for i, photo in enumerate(photos()):
        photo.save(tmp_path / f"{i:02}.png")
    (tmp_path / "03.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"left out: .*03\.png"):
        found = vitreous.find_concepts(tmp_path, "packaged:cifar10", concepts=32, steps=5, measured=2)
    assert found.names == [f"{i:02}.png" for i in range(12) if i != 3]
    assert vitreous.find_concepts(photos(), "packaged:cifar10", -2, concepts=16, steps=1, measured=1).block == 6
    assert "Concepts of block 5 of packaged:cifar10: 32," in repr(found)
