"""Models of several labels, numbers and masks, as the explorer's server answers for them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from task_sets import NAMES, TASKS, task_model

from conftest import noise
from vitreous.data.images import read_image
from vitreous.data.preprocess import default_preprocess
from vitreous.inside.intervene import intervene
from vitreous.models.dense_head import at_region
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.server.app import create_app
from vitreous.server.jobs import JobQueue
from vitreous.server.page_parts import blurred
from vitreous.views.inspection import Inspection
from vitreous.weights.card import Card

STANDARD = [[3.0, 2.0], [-1.0, 0.5]]
CHANGE = {"gone": "0,5", "off": "1.0"}


@pytest.fixture(scope="module")
def models():
    """A model of each task, a classifier, and a model of labels that reads the mean of its patches."""
    torch.manual_seed(0)
    found = {task: task_model(task) for task in TASKS}
    found["regress"].card.training = {"standard": STANDARD}
    found["multilabel"].card.thresholds = (0.0, 1.0, 0.0)
    shape = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=5)
    found["classify"] = noise(ViT(shape))
    found["classify"].card = Card("tiny", default_preprocess(shape), class_names=tuple("abcde"))
    mean = noise(ViT(replace(shape, classes=3, pool="mean", class_token=False)))
    mean.card = replace(found["multilabel"].card, preprocess=default_preprocess(mean.config))
    return found | {"mean": mean}


@pytest.fixture(scope="module")
def client(models):
    with TestClient(create_app(models, JobQueue())) as client:
        yield client


def ask(client, image, model, **more):
    """The whole page: its header, or the status and the line of an error."""
    answer = client.post("/api/explain", params={"model": model} | more, content=image)
    if answer.status_code != 200:
        return answer.status_code, answer.json()["detail"]
    return json.loads(answer.content[4 : 4 + int.from_bytes(answer.content[:4], "little")])


def result(header, view, part=""):
    results = next(each for each in header["views"] if each["name"] == view)["results"]
    return next(each for each in results if each["part"] == part)


def outputs(model, image):
    """What the model gives for an image that is sent: a tensor."""
    with torch.no_grad():
        return model(Inspection(model, read_image(image)).x)[0]


def by_index(header):
    return {each["index"]: each for each in header["predictions"]}


def test_the_page_knows_the_task_of_each_model(client):
    found = {each["name"]: (each["task"], each["classes"]) for each in client.get("/api/models").json()}
    assert found == {
        "multilabel": ("multilabel", 3),
        "regress": ("regress", 2),
        "segment": ("segment", 2),
        "classify": ("classify", 5),
        "mean": ("multilabel", 3),
    }


def test_labels_have_their_own_probabilities_and_the_likeliest_is_explained(client, models, image):
    found, expected = ask(client, image, "multilabel"), outputs(models["multilabel"], image).sigmoid()
    assert [each["probability"] for each in found["predictions"]] == pytest.approx(expected.sort(descending=True)[0])
    assert found["start"]["class"] == int(expected.argmax())
    assert {i: each["present"] for i, each in by_index(found).items()} == {0: True, 1: False, 2: True}
    assert found["classNames"] == list(NAMES["multilabel"])


@pytest.mark.parametrize("index", range(3))
def test_every_map_follows_the_label_that_is_chosen(client, models, image, index):
    found = ask(client, image, "multilabel", classes=index)
    name = NAMES["multilabel"][index]
    probability = outputs(models["multilabel"], image).sigmoid()[index].item()
    assert found["classes"] == [{"index": index, "class_name": name, "probability": pytest.approx(probability)}]
    for view in ("removal", "relevance", "evidence", "pruned-gradients", "cam"):
        assert result(found, view)["names"]["class"] == [name]
    assert result(found, "evidence")["best"][0][0][0][0] in (name, f"no {name}")


def test_numbers_stand_in_their_units_and_the_sentence_names_the_number(client, models, image):
    expected = outputs(models["regress"], image)
    for index, name in enumerate(NAMES["regress"]):
        found = ask(client, image, "regress", classes=index)
        assert [each["value"] for each in found["predictions"]] == pytest.approx(expected.tolist(), rel=1e-5)
        number = result(found, "evidence")["number"]
        assert number["name"] == found["classes"][0]["class_name"] == name
        assert number["hidden"][0] == pytest.approx(expected[index].item(), rel=1e-4)
        assert number["alone"][-1] == pytest.approx(expected[index].item(), rel=1e-4)
        assert result(found, "removal")["names"]["class"] == [f"higher {name}"]


def test_a_mask_comes_with_a_legend_and_the_shares_of_its_classes(client, models, image):
    found = ask(client, image, "segment")
    mask = outputs(models["segment"], image).argmax(dim=0)
    shares = {i: (mask == i).float().mean().item() for i in range(2)}
    assert {i: each["probability"] for i, each in by_index(found).items()} == pytest.approx(shares)
    drawn = result(found, "outputs")
    assert {(name, colour) for name, colour, _ in drawn["legend"]} == {("ground", "#e69f00"), ("box", "#56b4e9")}
    assert [share for _, _, share in drawn["legend"]] == pytest.approx(sorted(shares.values(), reverse=True))
    assert found["start"]["view"] == "outputs"


@pytest.mark.parametrize("model", [*TASKS, "mean"])
def test_heads_and_patches_that_are_gone_change_the_outputs_as_intervene_does(client, models, image, model):
    before, after = ask(client, image, model), ask(client, image, model, **CHANGE)
    with intervene(models[model], heads_off=[(1, 0)], patches_off=[0, 5]):
        expected = outputs(models[model], image)
    if model == "segment":
        expected = torch.stack([(expected.argmax(dim=0) == i).float().mean() for i in range(2)])
    elif model != "regress":
        expected = expected.sigmoid()
    key = "value" if model == "regress" else "probability"
    assert [by_index(after)[i][key] for i in range(len(expected))] == pytest.approx(expected.tolist(), abs=1e-5)
    assert [by_index(before)[i][key] for i in range(len(expected))] != pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.parametrize("model", ["multilabel", "mean"])
def test_evidence_is_that_of_the_changed_model(client, models, image, model):
    """A question about a label is a model of its own, which shares its blocks with the one that is changed."""
    found = client.post("/api/explain", params={"model": model, "classes": 1} | CHANGE, content=image).content
    length = int.from_bytes(found[:4], "little")
    header = json.loads(found[4 : 4 + length])
    with intervene(models[model], heads_off=[(1, 0)], patches_off=[0, 5]):
        expected = outputs(models[model], image).sigmoid()[1].item()
    entry = header["arrays"][result(header, "evidence")["hidden"]]
    whole = np.frombuffer(found[4 + length :], np.float32, 1, entry["offset"])[0]
    assert whole == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("way", ["tokens", "blur"])
def test_the_pixels_that_are_asked_about_stay_those_of_the_unchanged_image(client, models, image, way):
    model = models["segment"]
    before = ask(client, image, "segment", classes=1)
    found = client.post("/api/explain", params={"model": "segment", "classes": 1, "gone": "0,5,6", "way": way},
                        content=image).content  # fmt: skip
    length = int.from_bytes(found[:4], "little")
    header = json.loads(found[4 : 4 + length])
    assert header["model"]["compares"] == before["model"]["compares"]
    region = at_region(model, outputs(model, image).argmax(dim=0) == 1)
    inspection = Inspection(model, read_image(image))
    seen = inspection.view if way == "tokens" else blurred(inspection.view, model.config, [0, 5, 6])
    x = model.card.preprocess.normalise(model.card.preprocess.pixels_of(seen))[None]
    with torch.no_grad(), intervene(model, patches_off=[0, 5, 6] if way == "tokens" else []):
        expected = region(x)[0].softmax(dim=-1)[1].item()
        mask = model(x)[0].argmax(dim=0)
    entry = header["arrays"][result(header, "evidence")["hidden"]]
    answers = result(header, "evidence")["answers"]
    whole = np.frombuffer(found[4 + length :], np.float32, 2, entry["offset"])[answers.index(1)]
    assert whole == pytest.approx(expected, abs=1e-5)
    assert by_index(header)[1]["probability"] == pytest.approx((mask == 1).float().mean().item())


def test_blurred_patches_change_numbers(client, models, image):
    inspection = Inspection(models["regress"], read_image(image))
    seen = blurred(inspection.view, models["regress"].config, [5, 6])
    preprocess = models["regress"].card.preprocess
    with torch.no_grad():
        expected = models["regress"](preprocess.normalise(preprocess.pixels_of(seen))[None])[0].tolist()
    found = ask(client, image, "regress", gone="5,6", way="blur")
    assert [each["value"] for each in found["predictions"]] == pytest.approx(expected, rel=1e-4)
    assert expected != pytest.approx(outputs(models["regress"], image).tolist(), rel=1e-2)


def test_one_pixel_of_a_mask_can_be_asked_about(client, models, image):
    logits = outputs(models["segment"], image)[:, 3, 30]
    found = ask(client, image, "segment", pixel="3,30")
    assert found["start"]["pixel"] == [3, 30]
    assert found["start"]["class"] == int(logits.argmax())
    assert "row 3, column 30" in found["model"]["compares"]
    best = result(found, "evidence")["best"][0][0][0]
    assert best[1] == pytest.approx(logits.softmax(dim=-1).max().item(), abs=1e-5)


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize(
    ("model", "wrong", "reason"),
    [
        ("multilabel", {"classes": "3"}, "there is no class 3: this model has 0 to 2"),
        ("multilabel", {"classes": "0,1"}, "one at a time"),
        ("regress", {"classes": "2"}, "there is no class 2"),
        ("regress", {"sentence": "a cat"}, "no text tower"),
        ("segment", {"pixel": "32,0"}, "lies outside the image of 32×32 pixels"),
        ("segment", {"pixel": "3"}, "a pixel is its row and its column"),
        ("segment", {"pixel": "-1,2"}, "row and column of a pixel are numbers"),
        ("multilabel", {"pixel": "1,2"}, "of masks alone"),
        ("classify", {"pixel": "1,2"}, "a pixel can be asked about of a model that gives masks"),
        ("segment", {"gone": "16", "way": "blur"}, "there is no patch 16"),
    ],
)
def test_what_cannot_be_asked_gets_one_line(client, image, model, wrong, reason, stages):
    status, said = ask(client, image, model, stages=stages, **wrong)
    assert status == 400
    assert reason in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("task", TASKS)
def test_heads_switched_off_change_what_programs_are_answered(client, models, image, task):
    found = client.post("/api/ablate", params={"model": task, "off": "1.0,1.2"}, content=image).json()
    with intervene(models[task], heads_off=[(1, 0), (1, 2)]):
        expected = outputs(models[task], image)
    if task == "segment":
        expected = torch.stack([(expected.argmax(dim=0) == i).float().mean() for i in range(2)])
    elif task == "multilabel":
        expected = expected.sigmoid()
    key = "value" if task == "regress" else "probability"
    assert {each["index"]: each[key] for each in found} == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_outputs_come_with_the_first_part_and_their_view_soon_after(client, image, task):
    body, found = client.post("/api/explain", params={"model": task, "stages": True}, content=image).content, []
    while body:
        length = int.from_bytes(body[:4], "little")
        part, body = body[4 : 4 + length], body[4 + length :]
        found.append(json.loads(part[4 : 4 + int.from_bytes(part[:4], "little")]))
    assert not [part["error"] for part in found if "error" in part]
    assert len(found[0]["predictions"]) == len(NAMES[task])
    views = [part["views"][0]["name"] for part in found[1:]]
    assert views[:2] == (["predictions", "outputs"] if task == "segment" else ["outputs", "attention-rows"])
    assert all(view["results"] for part in found[1:] for view in part["views"])


@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_answers_nan_gets_one_line_and_no_mask(task, image):
    model = task_model(task)
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    with TestClient(create_app({"broken": model}, JobQueue())) as client:
        status, said = ask(client, image, "broken", stages=True)
        assert client.post("/api/ablate", params={"model": "broken"}, content=image).status_code == 400
    assert status == 400
    assert "tiny answers NaN" in said


@pytest.mark.parametrize("task", TASKS)
def test_a_model_in_bf16_is_looked_into(task, image):
    torch.manual_seed(0)
    model = task_model(task).to(torch.bfloat16)
    with TestClient(create_app({"half": model}, JobQueue())) as client:
        found = ask(client, image, "half", **CHANGE)
    assert len(found["predictions"]) == len(NAMES[task])
