"""A floor imports floors below it, never in a circle, and the documents show the imports and every module as they are.

`python tests/test_imports.py` writes the matrix of `docs/reference/imports.md` and the list of `modules.md` anew.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/vitreous"
DOCUMENTS = ROOT / "docs/reference"
FLOORS = (  # each may import itself and what stands after it
    "cli",
    "api",
    "server",
    "comparison",
    "pages",
    "views",
    "training",
    "benchmarking",
    "predict",
    "speed",
    "weights",
    "inside",
    "figures",
    "data",
    "models",
    "runtime",
)
EXCEPTIONS = {("models.vit", "weights")}  # `ViT.from_pretrained`: the ecosystem's spelling
FORBIDDEN = {  # floor → libraries that it does without
    "figures": {"torch", "torchvision"},
    "models": {"numpy", "PIL", "matplotlib", "safetensors"},
}
ROOT_FILES = {"__init__.py", "__main__.py", "py.typed"}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """List what a file imports, anywhere in it, and whether type checkers alone see it."""
    tree = parsed(path)
    found: list[tuple[str, bool]] = []
    typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += ((alias.name, node in typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                known = inner.removeprefix("vitreous.") in MODULES
                found.append((inner if known else node.module, node in typing))
    return found


def edges(*, typing: bool = True) -> Iterator[tuple[str, str]]:
    """Pairs of modules of the package, the one that imports first."""
    for name, path in MODULES.items():
        for target, for_types in imports(path):
            inner = target.removeprefix("vitreous.")
            if target.startswith("vitreous.") and inner in MODULES and (typing or not for_types):
                yield name, inner


def floor(module: str) -> str:
    return module.partition(".")[0]


def test_the_root_holds_the_public_names_alone():
    assert {path.name for path in SOURCE.iterdir() if path.is_file()} == ROOT_FILES
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(FLOORS)


def test_a_floor_imports_floors_below_it():
    upward = {
        f"{name} imports {target}"
        for name, target in edges()
        if floor(name) in FLOORS and FLOORS.index(floor(target)) < FLOORS.index(floor(name))
        if (name, floor(target)) not in EXCEPTIONS
    }
    assert not upward, "\n".join(sorted(upward))


def test_every_exception_is_still_needed():
    assert {(name, floor(target)) for name, target in edges()} >= EXCEPTIONS


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_floor_does_without_some_libraries(name):
    files = [path for module, path in MODULES.items() if floor(module) == name]
    assert files
    for path in files:
        found = {target.partition(".")[0] for target, _ in imports(path)}
        assert not found & FORBIDDEN[name], path


def test_imports_make_no_circle():
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for name, target in edges(typing=False):
        if name != target and (name, floor(target)) not in EXCEPTIONS and floor(name) in FLOORS:
            graph[name].add(target)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def matrix() -> str:
    """How many imports lead from each floor to each other, as the document shows them."""
    counts = Counter((floor(name), floor(target)) for name, target in edges() if floor(name) in FLOORS)
    lines = [f"| | {' | '.join(FLOORS)} |", f"|---|{'--:|' * len(FLOORS)}"]
    for row in FLOORS:
        cells = (str(counts[row, column] or "·") for column in FLOORS)
        lines.append(f"| **{row}** | {' | '.join(cells)} |")
    return "\n".join(lines)


def first_line(path: Path) -> str:
    """What a module's docstring says first; a line that wraps is joined."""
    return " ".join((ast.get_docstring(parsed(path)) or "").partition("\n\n")[0].split())


def module_list() -> str:
    """Every module below its floor, with the first line of its docstring."""
    lines = []
    for name in FLOORS:
        lines += [f"## {name}", "", first_line(MODULES[name]), "", "| module | what it holds |", "|---|---|"]
        for module, path in MODULES.items():
            if floor(module) == name and path.name != "__init__.py":
                file = path.relative_to(SOURCE).as_posix()
                lines.append(f"| `{file}` | {first_line(path).replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


GENERATED = {"imports.md": matrix, "modules.md": module_list}


def with_generated(name: str) -> str:
    """A document with the part between its two marks made anew."""
    before, _, rest = (DOCUMENTS / name).read_text().partition("<!-- generated -->\n")
    _, _, after = rest.partition("<!-- end -->")
    return f"{before}<!-- generated -->\n{GENERATED[name]()}\n<!-- end -->{after}"


def test_every_module_opens_with_one_line_that_says_what_it_holds():
    lines = {name: first_line(path) for name, path in MODULES.items()}
    assert not [f"{name}: {line!r}" for name, line in lines.items() if not 15 <= len(line) <= 120]
    assert len(set(lines.values())) == len(lines)


@pytest.mark.parametrize("name", GENERATED)
def test_a_document_is_current(name):
    assert with_generated(name) == (DOCUMENTS / name).read_text(), "run `python tests/test_imports.py`"


if __name__ == "__main__":
    for name in GENERATED:
        (DOCUMENTS / name).write_text(with_generated(name))
