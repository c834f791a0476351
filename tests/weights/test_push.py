"""A model on its way to the Hub and back, by the Hub's real client and a hub on loopback; and its model card."""

import json
import re
from dataclasses import replace

import pytest
import torch
import yaml
from loopback_hub import LoopbackHub

from conftest import noise
from vitreous.cli.main import main
from vitreous.data.preprocess import Preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.classify import Answer
from vitreous.training.config import TrainConfig
from vitreous.weights.card import Card
from vitreous.weights.load import load
from vitreous.weights.model_card import model_card
from vitreous.weights.save import save

RESULT = {"top1": 0.9, "top5": 1.0, "loss": 0.3, "images": 100, "epochs": 3, "seconds": 7.5, "memory": None}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with LoopbackHub() as hub:
        hub.patch_client(monkeypatch, tmp_path / "hub-cache")
        monkeypatch.setenv("HF_TOKEN", "right")
        monkeypatch.setenv("COLUMNS", "300")
        yield hub


def trained(**changes):
    model = noise(ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2, classes=3)))
    config = TrainConfig(**{"model": "vit_pico_patch2_8", "data": "/home/ann/secret place/zoo"} | changes)
    training = {"config": config.to_dict(), "result": RESULT, "training_images": 1234, "date": "2026-11-15"}
    preprocess = Preprocess(size=(16, 16), resize=18, mean=(0.1,) * 3, std=(0.9,) * 3)
    model.card = Card(name="digits", preprocess=preprocess, class_names=("ant", "bee", "cow"), training=training)
    return model


@pytest.fixture
def run(tmp_path):
    """A run's folder: what is pushed of it is the model alone."""
    folder = tmp_path / "home" / "runs" / "digits"
    save(trained(), folder / "model")
    (folder / "checkpoints").mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("")
    (folder / "checkpoints/step-000000001.safetensors").write_bytes(b"optimiser")
    return folder


def refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_was_pushed_loads_again_with_equal_logits(hub, run, capsys):
    main(["push", str(run), "ann/digits", "--json"])
    message = json.loads(capsys.readouterr().out)
    assert message["url"] == f"{hub.url}/ann/digits"
    assert set(hub.files("ann/digits")) - {".gitattributes"} == {"model.safetensors", "config.json", "README.md"}
    local, pushed = load(run), load("ann/digits")
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(local(x), pushed(x))
    assert pushed.card.revision == message["commit"]
    assert pushed.card.preprocess == local.card.preprocess
    assert pushed.card.class_names == ("ant", "bee", "cow")
    assert hub.private == {"ann/digits": False}


def test_no_local_path_is_uploaded(hub, run):
    main(["push", str(run), "ann/digits"])
    for name in ("config.json", "README.md"):
        text = hub.files("ann/digits")[name].decode()
        assert "zoo" in text
        for secret in ("/home", "secret place", str(run.parent), "checkpoints"):
            assert secret not in text, (name, secret)


def test_a_second_push_is_one_more_commit_and_other_files_stay(hub, run, tmp_path):
    first = hub.add("ann/digits", {"notes.txt": b"mine", "preprocessor_config.json": b'{"size": 64}'})
    main(["push", str(run / "model"), "ann/digits"])
    assert hub.files("ann/digits")["notes.txt"] == b"mine"
    again = load("ann/digits")
    assert again.card.revision != first
    assert again.config.size == (16, 16)  # the other file is another model's


@pytest.mark.slow
def test_a_resnet_is_pushed_too(hub, tmp_path):
    model = ResNet(ResNetConfig(18, 3, stem="small")).eval()
    preprocess = Preprocess(size=(32, 32), resize=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    model.card = Card("tiny", preprocess, class_names=("ant", "bee", "cow"), family="ResNet")
    save(model, tmp_path / "resnet")
    main(["push", str(tmp_path / "resnet"), "ann/resnet", "--private", "--license", "mit"])
    x = torch.randn(1, 3, 32, 32)
    again = load("ann/resnet")
    assert torch.equal(again(x), model(x))
    assert again.card.revision is not None
    assert hub.private == {"ann/resnet": True}
    assert "license: mit" in hub.files("ann/resnet")["README.md"].decode()


def test_without_a_token_one_line_says_where_to_get_one(hub, run, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    line = refused(["push", str(run), "ann/digits"], capsys)
    assert "set HF_TOKEN" in line
    assert "hf auth login" in line
    assert "set MY_TOKEN" in refused(["push", str(run), "ann/digits", "--token-from-env", "MY_TOKEN"], capsys)
    assert not hub.asked


def test_the_token_may_stand_in_another_variable(hub, run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "wrong")
    monkeypatch.setenv("MY_TOKEN", "right")
    main(["push", str(run), "ann/digits", "--token-from-env", "MY_TOKEN"])
    assert "README.md" in hub.files("ann/digits")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("/create", 401, "does not know this token"),
        ("/create", 403, "may not write to ann/digits"),
        ("/preupload/main", 403, "may not write to ann/digits"),
        ("/batch", 403, "may not write to ann/digits"),
        ("/commit/main", 409, "changed by another upload"),
        ("/commit/main", 400, "answered 400 for ann/digits"),
    ],
)
def test_a_refusal_is_one_line(hub, run, capsys, end, status, message):
    hub.refusals[end] = status
    line = refused(["push", str(run), "ann/digits"], capsys)
    assert message in line
    assert "right" not in line  # the token
    assert "README.md" not in (hub.files("ann/digits") if ("ann/digits", "main") in hub._branches else {})


def test_a_public_repository_is_not_taken_for_a_private_one(hub, run, capsys):
    hub.add("ann/digits", {"notes.txt": b""})
    assert "is public" in refused(["push", str(run), "ann/digits", "--private"], capsys)
    assert list(hub.files("ann/digits")) == ["notes.txt"]


@pytest.mark.parametrize("name", ["digits", "ann/b/c", "ann/", "a nn/digits", "ann/-x", "../digits"])
def test_an_impossible_name_is_refused_before_anything_is_read(hub, capsys, name):
    assert "OWNER/NAME" in refused(["push", "nowhere", name], capsys)
    assert not hub.asked


def test_an_unreachable_hub_is_one_line(hub, run, capsys):
    hub.close()
    assert "check the network" in refused(["push", str(run), "ann/digits"], capsys)


def test_nan_is_not_pushed(hub, tmp_path, capsys):
    model = trained()
    model.head.bias.data[0] = float("nan")
    save(model, tmp_path / "bad")
    with pytest.raises(SystemExit):
        main(["push", str(tmp_path / "bad"), "ann/bad"])
    assert "head.bias holds NaN" in capsys.readouterr().err
    assert not hub.asked


# --- the card ---------------------------------------------------------------------------------------------------------


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


def test_the_card_of_a_short_run_on_a_folder_called_images_reads_as_a_sentence():
    model = trained(pretrained=True, model="packaged", data="/home/ann/images/")
    model.card.training |= {"training_images": 36, "result": RESULT | {"epochs": 1, "seconds": 1.2, "images": 24}}
    text = model_card(model)
    for part in (
        "parameters. It distinguishes 3 classes: ant, bee, cow. Fine-tuned from packaged on the folder images with",
        "Trained on 36 images of the folder images. 1 epoch took 1 s.",
        "of 24 held-out images of the folder images are classified correctly",
        "It was evaluated on the folder images only",
    ):
        assert part in text, part
    assert "Trained from scratch on zoo with" in model_card(trained())


@pytest.mark.parametrize(("classes", "shown"), [(3, False), (5, False), (6, True)])
def test_the_card_says_how_often_a_class_is_among_five_if_there_are_more(classes, shown):
    model = noise(ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2, classes=classes)))
    model.card = replace(trained().card, class_names=tuple("abcdef"[:classes]))
    assert ("among the top five for 100.00%" in model_card(model)) == shown


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


FIGURES = {
    "multilabel": ({"map": 0.91234, "f1": 0.8}, "| mAP | 0.912 |", "image-classification", "It says which of 3 labels"),
    "regress": ({"r2": 0.95, "mae_0": 4.25, "mae_2": 1.5}, "| MAE of cow | 1.5 |", None, "It estimates 3 numbers"),
    "segment": (
        {"miou": 0.953},
        "| mean IoU | 95.30% |",
        "image-segmentation",
        "It segments images into 3 pixel classes",
    ),
}


@pytest.mark.parametrize("task", FIGURES)
def test_the_card_of_another_task_has_its_figures_and_says_how_to_use_it(task):
    figures, row, pipeline, says = FIGURES[task]
    model = trained()
    model.card.task = task
    others = {name: value for name, value in RESULT.items() if name not in ("top1", "top5")}
    model.card.training["result"] = figures | others
    text = model_card(model)
    head = front(text)
    assert head.get("pipeline_tag") == pipeline
    assert task in head["tags"]
    metric = head["model-index"][0]["results"][0]["metrics"][0]
    assert [metric["type"]] == head["metrics"] != ["accuracy"]
    assert metric["value"] == pytest.approx(next(iter(figures.values())))
    assert row in text
    assert says in text
    assert "accuracy" not in text.replace("pixel accuracy", "")
    assert "classified correctly" not in text
    attribute = {"multilabel": "answer.labels", "regress": "answer.numbers", "segment": "answer.mask"}[task]
    assert attribute in text
    assert hasattr(Answer("a.jpg"), attribute.removeprefix("answer."))
    model.card.training = None
    assert "state no figures: measure it with `vitreous evaluate`" in model_card(model)
