import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.data.images import ImageError
from vitreous.data.preprocess import default_preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.embed import embed, embed_each
from vitreous.predict.pipeline import patch_shape
from vitreous.predict.tables import write_features
from vitreous.weights.card import Card
from vitreous.weights.load import load


@pytest.mark.slow
def test_features_are_those_below_the_head(small_folder, images):
    model = load(small_folder)
    with torch.no_grad():
        expected = torch.cat([model.features(model.card.preprocess(Image.open(p))[None]) for p in images])
    torch.testing.assert_close(embed(images, model), expected, rtol=0, atol=1e-5)


def test_features_are_written_and_read_back(small_folder, images, tmp_path):
    import numpy as np
    import pyarrow.parquet

    named = list(embed_each(images, str(small_folder)))
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


def test_one_image_gives_a_vector_and_several_a_matrix(small_folder, images):
    model = load(small_folder)
    several = embed(images, model)
    assert several.shape == (5, 48)
    for source in (images[1], images[1].read_bytes(), Image.open(images[1])):
        torch.testing.assert_close(embed(source, model), several[1], rtol=0, atol=1e-5)
    assert embed([images[1]], model).shape == (1, 48)
    assert embed(images[0].parent, model).shape == (5, 48)
    assert embed([], model).shape == (0, 0)


# --- patches ----------------------------------------------------------------------------------------------------------

FAMILIES = {
    "class token": {},
    "registers": {"registers": 3},
    "two tokens, oblong": {"distillation_token": True, "image_size": (24, 40)},
    "no token": {"class_token": False, "pool": "mean"},
    "no final norm": {"final_norm": False, "fc_norm": True, "pool": "mean"},
    "pixels left over": {"image_size": (30, 34), "partial_patches": True},
}


def tiny(**fields):
    model = noise(ViT(ViTConfig(**{"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 4} | fields)))
    model.card = Card("tiny", default_preprocess(model.config))
    return model


@pytest.mark.parametrize("fields", FAMILIES.values(), ids=FAMILIES.keys())
def test_tokens_are_the_patches_of_forward_features_on_their_grid(fields, images):
    model = tiny(**fields)
    rows, columns = model.config.grid
    with torch.inference_mode():
        x = torch.stack([model.card.preprocess(Image.open(path)) for path in images])
        expected = model.forward_features(x)  # [b t d]
        found = embed(images, model, tokens=True, device="cpu", batch_size=5)
    assert found.shape == (5, *patch_shape(model)) == (5, rows, columns, 48)
    assert torch.equal(found.flatten(1, 2), expected[:, model.layout.prefix :])
    for row in range(rows):
        for column in range(columns):
            assert torch.equal(found[:, row, column], expected[:, model.layout.index(row, column)])


def test_the_grid_lies_as_the_image_does():
    model = tiny(position="none", image_size=(16, 32))
    with torch.no_grad():
        for block in model.blocks:  # what is left sees its own patch alone
            for layer in (block.attn.proj, block.mlp.fc2):
                layer.weight.zero_()
                layer.bias.zero_()
    plain = Image.new("RGB", (32, 16), "teal")
    marked = plain.copy()
    marked.paste("tomato", (24, 8, 32, 16))  # the last patch
    marked.paste("gold", (8, 0, 16, 8))
    before, after = embed([plain, marked], model, tokens=True, device="cpu")
    changed = (before != after).any(dim=-1)
    assert changed.tolist() == [[False, True, False, False], [False, False, False, True]]


def test_images_keep_their_order_and_an_unreadable_one_is_its_error(images, tmp_path):
    model = tiny()
    (tmp_path / "bad.png").write_bytes(b"no image")
    mixed = [*images[3:], tmp_path / "bad.png", *images[:3]]
    (*first, (name, error), _, _, last) = embed_each(mixed, model, tokens=True, batch_size=2, device="cpu")
    assert [each for each, _ in first] == [str(path) for path in images[3:]]
    assert name == str(tmp_path / "bad.png")
    assert isinstance(error, ImageError)
    assert last[1].shape == (4, 4, 48)
    torch.testing.assert_close(last[1], embed(images[2], model, tokens=True, device="cpu"), rtol=0, atol=1e-5)
    with pytest.raises(ImageError, match=r"bad\.png"):
        embed(mixed, model, tokens=True, device="cpu")


def test_tokens_of_one_of_several_and_of_no_images(images):
    model = tiny()
    several = embed(images, model, tokens=True, device="cpu")
    assert embed(images[1], model, tokens=True, device="cpu").shape == (4, 4, 48)
    assert embed([images[1]], model, tokens=True, device="cpu").shape == (1, 4, 4, 48)
    assert embed([], model, tokens=True, device="cpu").shape == (0, 4, 4, 48)
    half = embed(images, model, tokens=True, precision="bf16", device="cpu")
    assert half.dtype == torch.float32
    assert not torch.equal(half, several)
    torch.testing.assert_close(half, several, rtol=0.1, atol=0.1)
    for options in ({"fast": True}, {"precision": "int8"}):
        with pytest.raises(ValueError, match="patch features are the plain model's, in fp32, bf16 or fp16"):
            embed(images, model, tokens=True, device="cpu", **options)


@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_tokens_of_a_resnet_are_its_last_feature_map(stem, images):
    model = ResNet(ResNetConfig(depth=18, classes=3, image_size=(33, 64), stem=stem)).eval()
    model.card = Card("tiny", default_preprocess(ViTConfig(image_size=(33, 64), patch_size=(33, 64))))
    found = embed(images[:2], model, tokens=True, device="cpu")
    assert found.shape == (2, *patch_shape(model)) == (2, *((2, 2) if stem == "imagenet" else (5, 8)), 512)
    torch.testing.assert_close(found.mean(dim=(1, 2)), embed(images[:2], model, device="cpu"), rtol=0, atol=1e-5)
    with torch.inference_mode():
        x = torch.stack([model.card.preprocess(Image.open(path)) for path in images[:2]])
        torch.testing.assert_close(found[:, 0, 1], model.feature_map(x)[:, :, 0, 1], rtol=0, atol=1e-5)
