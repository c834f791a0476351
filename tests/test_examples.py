"""The examples run as they are, from an empty folder and with nothing downloaded.

Scripts run in this process, where torch is already imported; notebooks run in a Jupyter kernel, as a user runs them.
"""

import contextlib
import io
import os
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
PRINTS = {  # script → parts of its output
    "classify_an_image": ["chelsea: cat"],
    "compare_checkpoints": ["chelsea    cat 87%   cat 8"],
    "finetune_a_folder": ["of 9 held-out images right after 4 epochs", ".png is "],
    "look_inside": ["cat 87", "wrote 4 figures to inside/", "block 7: heads look"],
    "switch_heads_off": ["cat: logit", "all three off: -"],
}
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_every_script_is_tested_and_short():
    scripts = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert scripts.keys() == PRINTS.keys()
    assert {name for name, path in scripts.items() if len(path.read_text().splitlines()) >= 50} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTS)
def test_a_script_runs_and_prints_what_it_should(name, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert [words for words in PRINTS[name] if words not in output.getvalue()] == [], output.getvalue()


def printed(notebook):
    """The text that each cell of code printed."""
    return [
        "".join(output["text"] for output in cell["outputs"] if output["output_type"] == "stream")
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_stores(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    stored = printed(notebook)
    assert any(stored)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert printed(notebook) == stored


def test_notebooks_are_small():
    assert [path.stem for path in NOTEBOOKS] == ["first_look", "the_papers_figures"]
    assert max(path.stat().st_size for path in NOTEBOOKS) < 20_000
