"""The pages of `docs/` do what they say: their Python runs, their output is that output, their tables are the code's.

Every block marked `python` is run, the blocks of a page one after the other in one namespace and an empty folder; what
a block prints equals the `text` block that follows it at once. A block that needs a download is marked `py` instead.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

import vitreous
from test_imports import FLOORS
from vitreous.data.datasets import DATASETS
from vitreous.inside.glossary import BLOCK, WHOLE
from vitreous.training.policies import POLICIES
from vitreous.training.recipes import POLICY_RATES, RECIPES
from vitreous.views.registry import VIEWS
from vitreous.weights.formats.registry import FORMATS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
TABLES = (DATASETS, FORMATS, POLICIES, POLICY_RATES, RECIPES, VIEWS)


def blocks(page):
    return [(match[1], match[2]) for match in CODE.finditer(page.read_text())]


def run(code, names, file):
    """Run a block; what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, str(file), "exec"), names)
    return said.getvalue()


@pytest.fixture
def tables():
    """What a page adds to the tables is gone after it."""
    before = [dict(table) for table in TABLES]
    yield
    for table, kept in zip(TABLES, before, strict=True):
        table.clear()
        table.update(kept)


def cells(page, heading):
    """The rows of the first table below a heading, without backticks."""
    text = (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)
    ]
    return rows[2:]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_a_pages_python_runs_and_prints_what_the_page_shows(page, tmp_path, monkeypatch, tables):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__page__"}
    for code, shown in blocks(page):
        said = run(code, names, page)
        assert said == (shown or ""), f"{page.name} prints:\n{said}"


def test_the_maths_page_has_every_view_in_its_order_with_a_source():
    sections = re.split(r"^## ", (DOCS / "reference/views.md").read_text(), flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0] for section in sections] == list(VIEWS)
    assert [section.split("\n")[0] for section in sections if "**Source:**" not in section] == []


@pytest.mark.parametrize(("heading", "names"), [("Of the whole model", WHOLE), ("Of each block", BLOCK)])
def test_the_glossary_is_that_of_the_code(heading, names):
    assert cells("reference/glossary.md", heading) == [[name, *message] for name, message in names.items()]


def test_the_import_page_has_every_floor_in_its_order():
    assert [row[0] for row in cells("reference/imports.md", "Floors")] == list(FLOORS)


def test_the_reference_has_every_public_name():
    named = re.findall(r"^::: (\S+)$", (DOCS / "reference/api.md").read_text(), re.MULTILINE)
    assert [f"{home}.{name}" for name, home in vitreous._HOMES.items() if f"{home}.{name}" not in named] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_modules_that_a_page_names_exist(page):
    if page.stem == "comparison" or page.parent.name == "extend":  # other packages, files that a reader is to write
        return
    root = DOCS.parent
    named = set(re.findall(r"`([a-z_]+/[a-z0-9_/]+\.py)`", page.read_text()))
    assert {
        path for path in named if not any((folder / path).is_file() for folder in (root, root / "src/vitreous"))
    } == set()


def test_every_image_is_shown_and_they_are_small():
    shown = {
        (page.parent / target).resolve()
        for page in [*PAGES, DOCS.parent / "README.md"]
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    images = {path for path in (DOCS / "images").iterdir() if path.suffix != ".py"}
    assert images - shown == set()
    assert sum(path.stat().st_size for path in images) < 1_500_000
