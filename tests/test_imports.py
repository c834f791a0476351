"""A floor imports floors below it: at the top of a file and inside a function alike, and never in a circle."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/vitreous"
DOCUMENT = ROOT / "docs/reference/imports.md"
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
def imports(path: Path) -> list[tuple[str, bool]]:
    """List what a file imports, anywhere in it, and whether type checkers alone see it."""
    tree = ast.parse(path.read_text())
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


def test_the_document_shows_the_matrix():
    """`python tests/test_imports.py` writes it anew."""
    assert matrix() in DOCUMENT.read_text(), "run `python tests/test_imports.py`"


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    before, _, rest = text.partition("<!-- matrix -->\n")
    _, _, after = rest.partition("<!-- end -->")
    DOCUMENT.write_text(f"{before}<!-- matrix -->\n{matrix()}\n<!-- end -->{after}")
