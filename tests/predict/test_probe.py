import pytest
import torch
from tiny_sets import colour_folder

from conftest import noise
from vitreous.data.datasets import open_dataset
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.probe import probe
from vitreous.weights.load import load
from vitreous.weights.save import save


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save(noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=7))), path)
    return load(path)


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
