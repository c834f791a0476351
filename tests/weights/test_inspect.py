"""The facts behind `vitreous doctor`: to read, to parse and to show in a notebook."""

import json
import re

from task_sets import task_model

from vitreous.weights.inspect import inspect
from vitreous.weights.load import load


def test_the_summary_reads_as_sections_and_parses_as_values():
    model = load("packaged:cifar10")
    summary = inspect(model)
    assert list(summary.sections) == ["source", "model", "weights", "images", "training"]
    lines = repr(summary).splitlines()
    assert lines[0] == "source"
    assert "  parameters        6,350,602" in lines
    values = json.loads(json.dumps(summary.to_dict()))
    assert values["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert values["report"]["format"] == "timm"
    assert values["remarks"] == model.card.report.remarks() == []


def test_shapes_are_added_on_request():
    summary = inspect(load("packaged:cifar10"), shapes=True)
    assert ("logits", "10") in summary.sections["shapes"]
    assert summary.to_dict()["shapes"]["logits"] == "10"
    assert "shapes" not in inspect(load("packaged:cifar10")).sections


def test_html_escapes_what_comes_from_files():
    model = load("packaged:cifar10")
    model.card.name = "<script>alert(1)</script>"
    page = inspect(model)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert len(re.findall("<table>", page)) == len(inspect(model).sections)


def test_another_task_is_told_with_its_figures():
    model = task_model("multilabel", ["cat", "dog"])
    model.card.thresholds = (0.25, 0.5)
    result = {"map": 0.91234, "f1": 0.8, "images": 100, "epochs": 3, "seconds": 8.0}
    model.card.training = {"config": {"model": "tiny", "data": "/home/ann/zoo.csv"}, "result": result}
    summary = inspect(model)
    assert ("task", "multilabel") in summary.sections["model"]
    assert ("head", "2 labels: cat, dog") in summary.sections["model"]
    assert ("thresholds", "cat 0.25, dog 0.5") in summary.sections["model"]
    assert summary.sections["training"][1:] == [("mAP", "0.912 on 100 held-out images"), ("F1 at 0.5", "0.800")]
    assert summary.to_dict()["thresholds"] == [0.25, 0.5]


def test_a_dense_head_is_told_with_its_blocks_and_its_shapes():
    summary = inspect(task_model("segment"), shapes=True)
    head = dict(summary.sections["model"])["head"]
    assert head == "2 pixel classes: ground, box; linear, on the patch tokens of blocks 0, 1"
    assert summary.sections["shapes"][-1] == ("logits of each pixel", "2×32×32")
