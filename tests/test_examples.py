"""The examples run as they are, from an empty folder and with nothing downloaded.

Scripts run in this process, where torch is already imported; notebooks run in a Jupyter kernel, as a user runs them.
"""

import ast
import contextlib
import io
import os
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from two_towers import write_open_clip

import vitreous
from vitreous.cli.main import main

EXAMPLES = Path(__file__).parents[1] / "examples"
PRINTS = {  # script → parts of its output
    "classify_an_image": ["chelsea: Egyptian cat 81%", "coffee: espresso 94%"],
    "compare_checkpoints": ["chelsea    cat 87.1%   cat 8", "rank correlation of the relevance maps: +1.00"],
    "digits_with_angles": ["100 digits in angles; next: vitreous train --data angles/angles.csv"],
    "mosaics_with_labels": ["60 mosaics in mosaics; next: vitreous finetune --data mosaics"],
    "pets_with_masks": ["40 images with masks in pets; next: vitreous finetune --data pets"],
    "find_concepts": ["Concepts of block 8 of packaged:vit_tiny: 128, ", "concept ", "wrote concepts.html"],
    "finetune_a_folder": ["on 9 held-out images", ".png is "],
    "look_inside": ["Egyptian cat 81", "wrote 4 figures to inside/", "block 11: "],
    "switch_heads_off": ["Egyptian cat: logit", "all three off: -"],
}
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_every_script_is_tested_and_short():
    scripts = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert scripts.keys() == PRINTS.keys() | {"search_by_a_sentence"}
    assert {name for name, path in scripts.items() if len(path.read_text().splitlines()) >= 50} == set()


def code(path):
    """The Python of a script, or of all cells of a notebook."""
    if path.suffix == ".py":
        return path.read_text()
    return "\n".join(
        cell["source"] for cell in nbformat.read(path, as_version=4)["cells"] if cell["cell_type"] == "code"
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_an_example_uses_public_names_alone(path):
    tree = ast.parse(code(path))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.startswith("vitreous")} == {"vitreous"}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "vitreous"
    }
    assert used
    assert used <= set(vitreous.__all__)


def run_script(name, monkeypatch, *arguments):
    """What a script prints."""
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTS)
def test_a_script_runs_and_prints_what_it_should(name, monkeypatch):
    output = run_script(name, monkeypatch)
    assert [words for words in PRINTS[name] if words not in output] == [], output


def test_the_search_by_a_sentence_finds_what_is_most_similar(tmp_path, monkeypatch):
    """With a small model and photographs; the other scripts need no arguments."""
    write_open_clip(tmp_path)
    (tmp_path / "photos").mkdir()
    for name, photo in vitreous.samples().items():
        photo.save(tmp_path / "photos" / f"{name}.png")
    monkeypatch.setattr("sys.argv", ["vitreous", "embed", "photos", "--model", str(tmp_path), "--text", "a dog"])
    main()
    photos = sorted(Path("photos").iterdir())
    wanted = vitreous.similarity(photos, "a cat", str(tmp_path), device="cpu")
    best = wanted.argmax().item()
    first, second, *rest = run_script("search_by_a_sentence", monkeypatch, "features.parquet", "a cat").splitlines()
    assert (first, len(rest)) == ("a cat", 2)
    assert second == f"  {wanted[best]:.3f}  {photos[best]}"
    with pytest.raises(SystemExit, match="vitreous embed images/"):
        run_script("search_by_a_sentence", monkeypatch)


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
    shown = [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", ()) if "data" in output]
    assert any("image/png" in data for data in shown)
    if path.stem == "first_look":  # an explanation shows itself as the interactive page
        (page,) = [data["text/html"] for data in shown if "text/html" in data]
        assert page.startswith("<iframe srcdoc=")


def test_notebooks_are_small():
    assert [path.stem for path in NOTEBOOKS] == ["first_look", "the_papers_figures"]
    assert max(path.stat().st_size for path in NOTEBOOKS) < 20_000
