import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.embed import embed, embed_each
from vitreous.predict.tables import write_features
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


@pytest.mark.slow
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


def test_one_image_gives_a_vector_and_several_a_matrix(folder, images):
    model = load(folder)
    several = embed(images, model)
    assert several.shape == (5, 48)
    for source in (images[1], images[1].read_bytes(), Image.open(images[1])):
        torch.testing.assert_close(embed(source, model), several[1], rtol=0, atol=1e-5)
    assert embed([images[1]], model).shape == (1, 48)
    assert embed(images[0].parent, model).shape == (5, 48)
    assert embed([], model).shape == (0, 0)
