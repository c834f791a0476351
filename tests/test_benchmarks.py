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
