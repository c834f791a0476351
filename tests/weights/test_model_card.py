"""The model card: what it says of a trained model, and what it does not claim."""

import re

import yaml

from conftest import noise
from vitreous.data.preprocess import Preprocess
from vitreous.models.vit import ViT, ViTConfig
from vitreous.training.config import TrainConfig
from vitreous.weights.card import Card
from vitreous.weights.model_card import model_card

RESULT = {"top1": 0.9, "top5": 1.0, "loss": 0.3, "images": 100, "epochs": 3, "seconds": 7.5, "memory": None}


def trained(**changes):
    model = noise(ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2, classes=3)))
    config = TrainConfig(**{"model": "vit_pico_patch2_8", "data": "/home/ann/secret place/zoo"} | changes)
    training = {"config": config.to_dict(), "result": RESULT, "training_images": 1234, "date": "2026-11-15"}
    preprocess = Preprocess(size=(16, 16), resize=18, mean=(0.1,) * 3, std=(0.9,) * 3)
    model.card = Card(name="digits", preprocess=preprocess, class_names=("ant", "bee", "cow"), training=training)
    return model


def front(text):
    return yaml.safe_load(text.split("---")[1])


def test_the_card_states_what_the_run_recorded_and_no_licence():
    text = model_card(trained(optimizer="muon"))
    head = front(text)
    assert head["library_name"] == "vitreous"
    assert "license" not in head
    assert "base_model" not in head
    (result,) = head["model-index"][0]["results"]
    assert (result["dataset"]["name"], result["metrics"][0]["value"]) == ("zoo", 0.9)
    for part in (
        "**90.00%** of 100 held-out images of zoo are classified correctly, measured on 2026-11-15",
        "82.56% to 94.48%",
        "Trained on 1,234 images of zoo. 3 epochs took 8 s.",
        "| optimizer | muon |",
        "It distinguishes 3 classes: ant, bee, cow.",
        "Shorter side to 18 (bicubic), centre crop 16×16, mean 0.1 0.1 0.1, std 0.9 0.9 0.9.",
        "vitreous classify photo.jpg --model FOLDER",
        'vitreous.load("FOLDER")',
    ):
        assert part in text, part
    assert "| device" not in text


def test_the_card_names_the_checkpoint_that_a_run_began_with():
    text = model_card(trained(pretrained=True, model="vit_tiny_patch16_224.augreg_in21k_ft_in1k"))
    assert front(text)["base_model"] == "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert "base_model" not in front(model_card(trained(pretrained=True, model="/home/ann/vit.pth")))


def test_the_card_of_a_model_without_a_run_claims_no_accuracy():
    model = trained()
    model.card.training = None
    text = model_card(model)
    assert "metrics" not in front(text)
    assert not re.search(r"\d%", text)
    assert "measure it with `vitreous evaluate`" in text
