import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import jaccard_score
from tiny_sets import colour_folder

from conftest import noise
from vitreous.cli.main import main
from vitreous.data.datasets import open_dataset
from vitreous.data.image_dataset import ImageDataset
from vitreous.data.preprocess import default_preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.pipeline import patch_features
from vitreous.predict.probe import _fit_linear, _logistic_regression, patch_labels, probe, upsample
from vitreous.weights.card import Card
from vitreous.weights.load import load
from vitreous.weights.save import save


@pytest.fixture(scope="module")
def model(small_folder):
    return load(small_folder)


@pytest.mark.slow
def test_probes_tell_colours_apart_with_any_model(model, tmp_path):
    for split in ("train", "val"):
        colour_folder(tmp_path / split, ["red", "green", "blue"])
    train, test = open_dataset(tmp_path, "train"), open_dataset(tmp_path, "test")
    for kind in ("knn", "linear"):
        result = probe(train, test, model, kind, device="cpu")
        assert result["top1"] > 0.9
        assert (result["images"], result["train_images"]) == (18, 18)
    with pytest.raises(ValueError, match="knn or linear"):
        probe(train, test, model, "svm", device="cpu")


# --- patches ----------------------------------------------------------------------------------------------------------


def scenes(count, first=0, size=32, classes=("soil", "sky", "sun"), **changes):
    """Images of three noisy colours in rectangles, and their masks; a row of pixels between them is ignored."""
    images, masks = [], []
    for i in range(first, first + count):
        draw = np.random.default_rng(i)
        mask = np.zeros((size, size), np.uint8)
        edge = int(draw.integers(size // 4, 3 * size // 4))
        mask[:edge] = 1
        left = int(draw.integers(0, size // 2))
        mask[: edge // 2 + 4, left : left + size // 2] = 2
        pixels = draw.integers(0, 60, (size, size, 3))
        pixels[np.arange(size)[:, None], np.arange(size), mask] += 180
        images.append(Image.fromarray(pixels.astype(np.uint8)))
        mask[edge] = 255
        masks.append(Image.fromarray(mask))
    fields = {"image": images.__getitem__, "mask": masks.__getitem__} | changes
    return ImageDataset("scenes", classes, (0,) * count, task="segment", **fields)


def test_a_patch_has_the_class_of_most_of_its_pixels():
    mask = torch.tensor([
        [0, 0, 2, 2, 255, 255],
        [1, 1, 2, 1, 255, 255],
        [0, 1, 2, 255, 255, 0],
        [1, 1, 255, 255, 0, 0],
    ], dtype=torch.uint8)  # fmt: skip
    wanted = [[0, 2, -1], [1, 2, 0]]  # of two equal counts the lower class; none of ignored pixels alone
    assert patch_labels(mask, (2, 3), 3, (2, 2)).tolist() == wanted
    assert patch_labels(mask, (2, 3), 3).tolist() == wanted
    left_over = F.pad(mask, (0, 1, 0, 1), value=1)  # pixels that fill no patch count for none
    assert patch_labels(left_over, (2, 3), 3, (2, 2)).tolist() == wanted
    assert patch_labels(mask[:3, :4], (1, 2), 3, (2, 2)).tolist() == [[0, 2]]


def test_scores_are_upsampled_to_pixels_and_continued_where_no_patch_is():
    scores = torch.randn(2, 3, 4, 5)
    whole = upsample(scores, (32, 40), (8, 8))
    assert torch.equal(whole, F.interpolate(scores, (32, 40), mode="bilinear"))
    assert torch.equal(upsample(scores, (32, 40)), whole)
    more = upsample(scores, (35, 41), (8, 8))
    assert torch.equal(more[:, :, :32, :40], whole)
    assert torch.equal(more[:, :, 32:, :40], whole[:, :, -1:].expand(-1, -1, 3, -1))
    assert torch.equal(more[:, :, :32, 40], whole[..., -1])


@pytest.mark.parametrize("labels", [(0, 2), (1, 2, 4)])
def test_the_linear_layer_is_the_fitted_regression(labels):
    draw = np.random.default_rng(0)
    y = draw.choice(labels, 200)
    x = (draw.normal(size=(200, 6)) * [1, 10, 0.1, 3, 1, 1] + 5 + y[:, None] * 0.3).astype(np.float32)
    weight, bias, known = _fit_linear(x, y)
    fitted = _logistic_regression().fit(x, y)
    found = F.linear(torch.from_numpy(x), weight, bias)
    assert known.tolist() == list(labels)
    assert known[found.argmax(dim=1)].tolist() == fitted.predict(x).tolist()
    torch.testing.assert_close(found.softmax(dim=1), torch.tensor(fitted.predict_proba(x)).float(), rtol=0, atol=1e-4)


def test_a_probe_of_patches_separates_colours_of_held_out_images(model):
    result = probe(scenes(12), scenes(6, first=100), model, "linear", tokens=True, device="cpu")
    assert set(result["iou"]) == {"soil", "sky", "sun"}
    assert result["miou"] == pytest.approx(sum(result["iou"].values()) / 3, abs=1e-5)
    assert result["miou"] > 0.7  # patches of 8 pixels, edges anywhere
    assert result["pixel_accuracy"] > 0.85
    assert (result["images"], result["train_images"], result["train_patches"]) == (6, 12, 12 * 16)
    assert "drawn_from" not in result
    turned = scenes(12, mask=lambda i: scenes(12).mask(i).transpose(Image.Transpose.FLIP_TOP_BOTTOM))
    assert probe(turned, scenes(6, first=100), model, "linear", tokens=True, device="cpu")["miou"] < 0.4


def test_figures_are_those_of_the_upsampled_scores(model, monkeypatch):
    weight, bias, test = torch.randn(3, 48), torch.randn(3), scenes(6, first=100)
    monkeypatch.setattr("vitreous.predict.probe._fit_linear", lambda x, y: (weight, bias, torch.tensor([2, 0, 1])))
    result = probe(scenes(2), test, model, "linear", tokens=True, batch_size=4, device="cpu")
    with torch.inference_mode():
        x = torch.stack([model.card.preprocess(test.image(i)) for i in range(6)])
        logits = model.forward_features(x)[:, 1:] @ weight.T + bias
    scores = F.interpolate(logits.transpose(1, 2).reshape(6, 3, 4, 4), (32, 32), mode="bilinear")
    predicted = torch.tensor([2, 0, 1])[scores.argmax(dim=1)].numpy().ravel()
    wanted = np.stack([np.asarray(test.mask(i)) for i in range(6)]).ravel()
    predicted, wanted = predicted[wanted != 255], wanted[wanted != 255]
    assert result["miou"] == pytest.approx(jaccard_score(wanted, predicted, average="macro"), abs=1e-6)
    assert list(result["iou"].values()) == pytest.approx(jaccard_score(wanted, predicted, average=None), abs=1e-6)
    assert result["pixel_accuracy"] == pytest.approx((wanted == predicted).mean(), abs=1e-6)


def test_a_class_without_a_patch_is_never_predicted(model):
    names = ("soil", "sky", "sun", "moon", "none")
    moon = [Image.fromarray(np.full((32, 32), 3, np.uint8))] * 6
    result = probe(scenes(12, classes=names), scenes(6, 100, classes=names), model, "linear", tokens=True, device="cpu")
    assert list(result["iou"]) == ["soil", "sky", "sun"]
    unseen = scenes(6, 100, classes=names, mask=moon.__getitem__)
    result = probe(scenes(12, classes=names), unseen, model, "linear", tokens=True, device="cpu")
    assert (result["iou"]["moon"], result["pixel_accuracy"]) == (0, 0)


def test_drawn_patches_depend_on_the_seed_alone(model):
    given = (scenes(12), scenes(3, first=100), model, "linear")
    few = {"tokens": True, "patches": 100, "device": "cpu"}
    first = probe(*given, **few)
    assert first["drawn_from"] == 12 * 16
    assert 70 < first["train_patches"] < 130
    assert probe(*given, **few, batch_size=5)["train_patches"] == first["train_patches"]
    other = probe(*given, **few, seed=1)
    assert (other["train_patches"], other["miou"]) != (first["train_patches"], first["miou"])


def test_blocks_stand_side_by_side(model):
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        last, both = patch_features(model, x), patch_features(model, x, (0, 1))
        first, second = model.get_intermediate_layers(x, [0, 1], norm=True)
    assert torch.equal(both, torch.cat([first, second], dim=-1)[:, 1:].view(2, 4, 4, 96))
    assert torch.equal(both[..., 48:], last)
    result = probe(scenes(12), scenes(3, first=100), model, "linear", tokens=True, blocks=(0, 1), device="cpu")
    assert result["blocks"] == [0, 1]
    assert result["miou"] > 0.7


def test_an_unreadable_image_is_counted_and_left_out(model):
    images = [scenes(12).image(i) for i in range(12)]
    images[3] = b"no image"
    result = probe(
        scenes(12, image=images.__getitem__), scenes(3, 100), model, "linear", tokens=True, batch_size=2, device="cpu"
    )
    assert (result["train_images"], result["train_patches"], result["unreadable"]) == (11, 11 * 16, 1)


@pytest.mark.slow
def test_a_resnet_has_a_probe_of_its_last_feature_map():
    model = noise(ResNet(ResNetConfig(depth=18, classes=3, image_size=32, stem="small")))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_var.fill_(1.0)
    model.card = Card("resnet", default_preprocess(ViTConfig(image_size=32, patch_size=8)))
    result = probe(scenes(12), scenes(3, first=100), model, "linear", tokens=True, device="cpu")
    assert result["train_patches"] == 12 * 16
    with pytest.raises(ValueError, match="only a Vision Transformer has blocks"):
        probe(scenes(2), scenes(2), model, "linear", tokens=True, blocks=(1,), device="cpu")


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"mask": None}, {}, "scenes has a class for each image: name a folder with images/ and masks/"),
        ({"mask": lambda i: Image.new("L", (32, 31))}, {}, "its mask is 32×31 pixels, the image 32×32"),
        ({"mask": lambda i: Image.new("L", (32, 32), 3)}, {}, "has the value 3: expected 3 classes and 255 for none"),
        ({"mask": lambda i: Image.new("L", (32, 32), 255)}, {}, "the 0 patches of scenes.*fewer than two classes"),
        ({}, {"blocks": (0, 2)}, r"this model has blocks 0 to 1, got \[0, 2\]"),
        ({}, {"kind": "knn"}, "features of patches have a linear probe, got 'knn'"),
        ({}, {"tokens": False, "blocks": (1,)}, "set tokens too"),
        ({}, {"patches": 0}, "at least one patch, got patches=0"),
    ],
)
def test_what_cannot_be_probed_is_refused(model, changed, options, message):
    given = {"kind": "linear", "tokens": True, "device": "cpu"} | options
    with pytest.raises(ValueError, match=message):
        probe(scenes(2, **changed), scenes(2, first=9), model, **given)


def test_evaluate_probes_the_patches_of_images_with_masks(model, tmp_path, capsys):
    data = scenes(24)
    for kind, get in (("images", data.image), ("masks", data.mask)):
        (tmp_path / "scenes" / kind).mkdir(parents=True)
        for i in range(24):
            get(i).save(tmp_path / f"scenes/{kind}/{i}.png")
    (tmp_path / "scenes/classes.json").write_text(json.dumps(data.class_names))
    save(model, tmp_path / "model")
    words = ["evaluate", "--model", str(tmp_path / "model"), "--probe", "linear", "--tokens", "--data"]
    main([*words, str(tmp_path / "scenes"), "--blocks", "0", "1", "--limit", "3", "-o", str(tmp_path / "out")])
    said = capsys.readouterr().out.splitlines()
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert said[1] == f"mean IoU           {result['miou']:.2%}"
    assert any(line.lower().startswith("iou                s") for line in said)
    assert "blocks             0 1" in said
    assert result["images"] == 3
    assert result["miou"] > 0.6
    with pytest.raises(SystemExit):
        main([*words, "digits"])
    assert "images/ and masks/" in capsys.readouterr().err
