import json

import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.data.images import ImageError
from vitreous.models.vit import ViT, ViTConfig
from vitreous.predict.classify import classify, classify_each, rank
from vitreous.predict.embed import embed, embed_each, write_features
from vitreous.weights.load import load
from vitreous.weights.save import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small noisy model, saved."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save(noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=7))), path)
    return path


@pytest.fixture
def images(tmp_path):
    found = []
    for i in range(5):
        colours = torch.randint(256, (20 + i, 30, 3), dtype=torch.uint8)
        found.append(tmp_path / f"{i}.png")
        Image.fromarray(colours.numpy()).save(found[-1])
    return found


@torch.no_grad()
def test_probabilities_and_logits_are_the_models_own(folder, images):
    model = load(folder)
    answers = classify(images, model, top=3)
    assert [answer.image for answer in answers] == [str(path) for path in images]
    for path, answer in zip(images, answers, strict=True):
        logits = model(model.card.preprocess(Image.open(path))[None])[0]
        best = logits.argsort(descending=True)[:3]
        assert [p.index for p in answer.predictions] == best.tolist()
        for p in answer.predictions:
            assert p.logit == pytest.approx(logits[p.index].item(), abs=1e-4)
            assert p.probability == pytest.approx(logits.softmax(-1)[p.index].item(), abs=1e-5)
            assert p.label == f"class {p.index}"


def test_batches_of_any_size_give_the_same_answers(folder, images):
    model = load(folder)
    one, many = (classify(images, model, batch_size=size) for size in (1, 4))
    assert [a.best.index for a in one] == [a.best.index for a in many]
    assert [a.best.logit for a in one] == pytest.approx([a.best.logit for a in many], abs=1e-4)


def test_one_image_may_be_a_path_or_an_image(folder, images):
    by_path = classify(str(images[0]), str(folder))
    by_image = classify(Image.open(images[0]), str(folder))
    assert by_path[0].predictions == by_image[0].predictions


def test_bad_images_are_answered_by_their_error_in_order(folder, images, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    mixed = [images[0], tmp_path / "bad.png", images[1], tmp_path / "missing.png"]
    answers = list(classify_each(mixed, str(folder), batch_size=2))
    assert [isinstance(answer, ImageError) for answer in answers] == [False, True, False, True]
    assert answers[2] == classify(images[1], str(folder))[0]
    with pytest.raises(ImageError, match=r"bad\.png"):
        classify(mixed, str(folder))


def test_a_headless_model_points_to_embed(folder, images):
    with pytest.raises(ValueError, match="has no head.*vitreous embed"):
        classify(images, load(folder, classes=0))


def test_bf16_comes_close(folder, images):
    model = load(folder)
    exact = classify(images, model, top=7)
    rough = classify(images, model, top=7, precision="bf16")
    for a, b in zip(exact, rough, strict=True):
        largest = max(abs(p.logit) for p in a.predictions)
        logits = {p.index: p.logit for p in b.predictions}
        assert all(abs(logits[p.index] - p.logit) < 0.05 * largest for p in a.predictions)
        assert any(logits[p.index] != p.logit for p in a.predictions)


def test_equal_logits_are_ranked_by_class_number():
    assert [p.index for p in rank(torch.tensor([1.0, 3.0, 3.0, 0.0]), str, 3)] == [1, 2, 0]


def test_features_are_those_below_the_head(folder, images):
    model = load(folder)
    with torch.no_grad():
        expected = torch.cat([model.features(model.card.preprocess(Image.open(p))[None]) for p in images])
    torch.testing.assert_close(embed(images, model), expected, rtol=0, atol=1e-5)


def test_features_are_written_and_read_back(folder, images, tmp_path):
    import numpy as np
    import pyarrow.parquet

    named = list(embed_each(images, str(folder)))
    names, rows = [name for name, _ in named], torch.stack([row for _, row in named])
    table = pyarrow.parquet.read_table(write_features(tmp_path / "out" / "f.parquet", names, rows, "tiny"))
    assert table["image"].to_pylist() == names
    assert torch.equal(torch.tensor(table["features"].to_pylist()), rows)
    assert table.schema.metadata[b"vitreous.model"] == b"tiny"
    with np.load(write_features(tmp_path / "f.npz", names, rows, "tiny")) as arrays:
        assert arrays["image"].tolist() == names
        assert np.array_equal(arrays["features"], rows.numpy())
    with pytest.raises(ValueError, match=r"\.parquet or \.npz"):
        write_features(tmp_path / "f.csv", names, rows, "tiny")


def test_our_own_folder_comes_back_bit_by_bit(folder, tmp_path):
    model = load(folder)
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert again.card.preprocess == model.card.preprocess
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["vitreous"]["config"]["width"] == 48


def test_from_pretrained_and_save_pretrained(folder, tmp_path):
    model = ViT.from_pretrained(str(folder))
    model.save_pretrained(str(tmp_path / "again"))
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(ViT.from_pretrained(str(tmp_path / "again"))(x), model(x))


def test_nan_in_the_weights_is_reported(folder, tmp_path):
    model = load(folder)
    with torch.no_grad():
        model.norm.bias[3] = float("nan")
    save(model, tmp_path)
    assert load(tmp_path).card.report.nonfinite == {"norm.bias": 1}


def test_the_callers_model_stays_as_it_was(folder, images):
    model = load(folder).train()
    before = next(model.parameters()).dtype
    classify(images, model, precision="bf16")
    embed(images, model)
    assert model.training
    assert next(model.parameters()).dtype == before


def test_a_model_that_answers_nan_says_so(folder, images):
    model = load(folder)
    with torch.no_grad():
        model.norm.bias[0] = float("nan")
    with pytest.raises(ValueError, match="answers NaN"):
        classify(images, model)


def test_an_image_too_thin_to_crop_is_named(folder, tmp_path):
    from dataclasses import replace

    model = load(folder)
    model.card.preprocess = replace(model.card.preprocess, resize=32)
    Image.new("RGB", (1, 60_000)).resize((1, 60_000)).save(tmp_path / "thread.png")
    model.card.preprocess = replace(model.card.preprocess, resize=2000, size=(32, 32))
    with pytest.raises(ImageError, match=r"thread\.png: too long and thin"):
        classify(tmp_path / "thread.png", model)
