"""Preprocessing and class names from the files next to the weights."""

import torch
import transformers
from originals import SMALL_CLASSIFIER

from conftest import assert_same, noise
from vitreous.weights.load import load


def test_class_names_and_preprocessing_are_read(tmp_path):
    config = transformers.ViTConfig(**SMALL_CLASSIFIER | {"num_labels": 3}, id2label={0: "cat", 1: "dog", 2: "owl"})
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(tmp_path)
    card = load(tmp_path).card
    assert card.class_names == ("cat", "dog", "owl")
    assert card.preprocess.mean == (0.1, 0.2, 0.3)
    assert "preprocessing" not in card.report.assumed


def test_placeholder_labels_are_not_class_names(tmp_path):
    transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL_CLASSIFIER)).save_pretrained(tmp_path)
    assert load(tmp_path).card.class_names is None


@torch.no_grad()
def test_a_dinov2_runs_at_the_size_that_its_processor_prepares(tmp_path):
    theirs = noise(transformers.Dinov2Model(transformers.Dinov2Config(**SMALL_CLASSIFIER | {"image_size": 56})))
    theirs.save_pretrained(tmp_path)
    transformers.BitImageProcessor(size={"shortest_edge": 40}, crop_size=32).save_pretrained(tmp_path)
    ours = load(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x).pooler_output)
    assert ours.card.report.resized == ["pos_embed from 7×7 to 4×4 (huggingface's convention)"]
    assert (ours.card.preprocess.size, ours.card.preprocess.resize) == ((32, 32), 40)
    assert load(tmp_path, image_size=56).card.preprocess.resize == 70
