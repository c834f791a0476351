"""The examples run as they are, from an empty folder and with nothing downloaded.

Scripts and notebooks run in this process, where torch is already imported, and notebooks cell by cell without a kernel:
their cells are plain Python, and a kernel for each would take longer than all of them together.
"""

import contextlib
import io
import json
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {  # script → words of what it prints
    "classify_an_image": ["chelsea: cat"],
    "compare_checkpoints": ["chelsea    cat 87%   cat 8"],
    "finetune_a_folder": ["of 9 held-out images right after 4 epochs", ".png is "],
    "look_inside": ["cat 87", "wrote 4 figures to inside/", "block 7: heads look"],
    "switch_heads_off": ["cat: logit", "all three off: -"],
}
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_no_script_is_left_out_and_all_are_short():
    scripts = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert scripts.keys() == SAYS.keys()
    assert {name for name, path in scripts.items() if len(path.read_text().splitlines()) >= 50} == set()


@pytest.mark.parametrize("name", SAYS)
def test_a_script_runs_and_says_what_it_should(name, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert [words for words in SAYS[name] if words not in said.getvalue()] == [], said.getvalue()


def code_cells(path):
    """Source and stored text of every cell of code."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"]), "".join("".join(output["text"]) for output in cell["outputs"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_stores(path):
    names = {"__name__": "__main__"}
    for number, (source, stored) in enumerate(code_cells(path)):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(source, f"{path.name} cell {number}", "exec"), names)
        assert said.getvalue() == stored


def test_there_are_two_notebooks_and_they_are_small():
    assert [path.stem for path in NOTEBOOKS] == ["first_look", "the_papers_figures"]
    assert max(path.stat().st_size for path in NOTEBOOKS) < 20_000
