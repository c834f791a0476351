"""A sentence in the place of a class, as the explorer's server takes it: answers, limits, and models without words."""

import io
import json

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from two_towers import write_open_clip, write_siglip

from vitreous.inside.intervene import intervene
from vitreous.predict.words import LONGEST, two_towers, with_target, with_words
from vitreous.server.app import create_app
from vitreous.server.jobs import JobQueue
from vitreous.weights.load import load

HOSTILE = "the \"bell\" <script>alert('x')</script> </title> tower & 'co'"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A CLIP without classes, one with two, a SigLIP, and a model without text tower; with their text towers."""
    torch.manual_seed(0)
    folders = {name: tmp_path_factory.mktemp(name) for name in ("clip", "siglip")}
    write_open_clip(folders["clip"])
    write_siglip(folders["siglip"])
    clip, siglip = load(folders["clip"]), load(folders["siglip"])
    named = {"clip": clip, "zoo": with_words(clip, ["a cat", "a dog"]), "siglip": siglip}
    texts = {"clip": two_towers(clip), "zoo": two_towers(clip, ["a cat", "a dog"]), "siglip": two_towers(siglip)}
    return named | {"cifar": load("packaged:cifar10")}, texts


@pytest.fixture(scope="module")
def client(models):
    with TestClient(create_app(models[0], JobQueue(), texts=models[1])) as client:
        yield client


def header(body):
    return json.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])


def ask(client, image, model, sentence, **more):
    """The first part of a page: image and answers."""
    params = {"model": model, "sentence": sentence, "stages": True} | more
    answer = client.post("/api/explain", params=params, content=image)
    return header(answer.content[4:]) if answer.status_code == 200 else (answer.status_code, answer.json()["detail"])


def test_the_page_knows_which_models_take_sentences(client):
    found = {each["name"]: each["sentences"] for each in client.get("/api/models").json()}
    assert found == {"clip": LONGEST, "zoo": LONGEST, "siglip": LONGEST, "cifar": 0}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("clip", [HOSTILE, "a photo"]),
        ("zoo", [HOSTILE, "a cat", "a dog"]),
        ("siglip", [HOSTILE, "anything else"]),
    ],
)
def test_a_sentence_stands_in_the_place_of_a_class(client, models, image, model, names):
    found = ask(client, image, model, HOSTILE)
    assert found["classNames"] == names
    assert found["classes"][0]["class_name"] == HOSTILE
    assert found["start"]["class"] == 0
    assert {"removal", "relevance", "evidence"} <= {view["name"] for view in found["views"]}
    base, classes = models[0]["clip" if model == "zoo" else model], ["a cat", "a dog"] if model == "zoo" else []
    worded = with_target(base, HOSTILE, classes)
    x = worded.card.preprocess(Image.open(io.BytesIO(image)))[None]
    with torch.no_grad():
        wanted = worded(x).softmax(dim=-1)[0].tolist()
    assert found["classes"][0]["index"] == 0
    assert found["classes"][0]["probability"] == pytest.approx(wanted[0], abs=1e-5)
    shown = {each["index"]: each["probability"] for each in found["predictions"]}
    assert [shown[i] for i in range(len(names))] == pytest.approx(wanted, abs=1e-5)
    said = {"clip": "100 % are shared", "zoo": "100 % are shared", "siglip": "by itself"}[model]
    assert said in found["model"]["compares"]


def test_every_view_of_a_sentence_is_computed(client, image):
    answer = client.post("/api/explain", params={"model": "clip", "sentence": HOSTILE}, content=image)
    found = header(answer.content)
    (removal,) = [view for view in found["views"] if view["name"] == "removal"]
    assert removal["results"][0]["names"]["class"] == [HOSTILE, "a photo"]


def test_another_class_of_the_same_page_can_be_asked_for(client, image):
    found = ask(client, image, "zoo", "a bird", classes="2")
    probability = next(each["probability"] for each in found["predictions"] if each["index"] == 2)
    assert found["classes"][0] == {"index": 2, "class_name": "a dog", "probability": pytest.approx(probability)}
    assert found["start"]["class"] == 2


@pytest.mark.parametrize(
    ("model", "sentence", "status", "reason"),
    [
        ("clip", "x" * 5000, 400, "a sentence has at most 1,000 characters"),
        ("clip", "a\x07b", 400, "a control character"),
        ("cifar", "a cat", 400, "packaged:cifar10 has no text tower"),
        ("clip", "x" * 20_000, 422, "at most 16000 characters"),
    ],
)
def test_a_sentence_that_cannot_be_asked_for_gets_one_line(client, image, model, sentence, status, reason):
    found, detail = ask(client, image, model, sentence)
    line = detail if isinstance(detail, str) else detail[0]["msg"]
    assert (found, reason in line, "\n" in line) == (status, True, False)


def test_an_empty_sentence_is_none(client, image):
    assert ask(client, image, "zoo", "  ")["classNames"] == ["a cat", "a dog"]


def test_heads_switched_off_change_a_sentences_answer_as_intervene_does(client, models, image):
    params = {"model": "clip", "off": "0.0,1.1", "sentence": "a cat"}
    found = client.post("/api/ablate", params=params, content=image).json()
    worded = with_target(models[0]["clip"], "a cat")
    with torch.no_grad(), intervene(worded, heads_off=[(0, 0), (1, 1)]):
        wanted = worded(worded.card.preprocess(Image.open(io.BytesIO(image)))[None]).softmax(dim=-1)[0]
    assert {each["class_name"] for each in found} == {"a cat", "a photo"}
    assert found[0]["probability"] == pytest.approx(wanted.max().item(), abs=1e-5)
