"""The scripts of `benchmarks/` are run by hand, some of them for hours: here, that what they import is there."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_the_names_that_a_benchmark_imports_exist(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vitreous":
            if node.module == "vitreous.speed.triton_kernels":  # needs Triton, which CUDA builds of torch bring
                pytest.importorskip("triton")
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_the_key_table_of_efficientnet_lite0_covers_timms_keys_one_to_one(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    table = importlib.import_module("efficientnet_lite0")
    statistics = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    layers = [(name, statistics if "bn" in name else ("weight",)) for name in table.WHOLE if name != "_fc"]
    for number in range(sum(table.STAGES)):
        names = table.OTHER if number else table.FIRST
        layers += [(f"_blocks.{number}.{name}", statistics if "bn" in name else ("weight",)) for name in names]
    keys = [f"{name}.{part}" for name, parts in [*layers, ("_fc", ("weight", "bias"))] for part in parts]
    theirs = pytest.importorskip("timm").create_model("tf_efficientnet_lite0").state_dict()
    assert sorted(map(table.timm_key, keys)) == sorted(theirs)


def test_the_maps_that_were_left_out_give_the_results_known_in_closed_form(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    importlib.import_module("more_maps").check()
