"""The facts behind `vitreous doctor`: to read, to parse and to show in a notebook."""

import json
import re

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
