"""Imports point one way: cli → views → inside, figures; train → weights → models, data."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/vitreous"
ALLOWED = {  # folder → what of vitreous it may import
    "models": {"models"},
    "figures": {"figures"},
    "data": {"data"},
    "weights": {"weights", "models", "data", "loopback", "wilson"},
    "inside": {"inside", "models"},
    "speed": {"speed", "models", "weights", "device", "doctor"},
    "train": {"train", "weights", "models", "data", "speed", "device", "ranks", "together"},
    "comparison": {
        *("comparison", "train", "weights", "models", "data", "speed", "inside", "figures", "device"),
        *(
            "page",
            "run_page",
            "field_docs",
            "doctor",
            "evaluation",
            "inspection",
            "interactive",
            "line_chart",
            "snapshots",
        ),
        *("feeding", "wilson"),
    },
    "explore": {"explore", "models", "data", "inside", "loopback", "page_data", "samples", "inspection"},
    "commands": {"commands", "ranks", "train"},  # the rest waits inside functions: `--help` is instant
}
FORBIDDEN = {"figures": {"torch", "torchvision"}, "models": {"numpy", "PIL", "matplotlib", "safetensors"}}


MODULES = {  # each module's name → its file
    ".".join(("vitreous", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def imports(path):
    """Modules that a file imports at its top; imports inside functions wait until they are called."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_lies_below_it(folder):
    files = sorted((SOURCE / folder).glob("*.py"))
    assert files
    for path in files:
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] not in FORBIDDEN.get(folder, set()), f"{path.name} imports {name}"
            if parts[0] == "vitreous" and ".".join(parts[:2]) in MODULES and len(parts) > 1:
                assert parts[1] in ALLOWED[folder], f"{path.name} imports {name}"


def test_every_folder_has_its_place():
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()} == set(ALLOWED)


def test_imports_make_no_circle():
    """Whichever module is named first, modules of the package's own folder and of the others alike."""
    below = {name: {each for each in imports(path) if each in MODULES} - {name} for name, path in MODULES.items()}
    while below:
        free = {name for name, wanted in below.items() if not wanted & below.keys()}
        assert free, f"a circle is among {sorted(below)}"
        below = {name: wanted for name, wanted in below.items() if name not in free}


def test_nothing_below_imports_the_command_line():
    below = [
        p for p in MODULES.values() if p.parent.name != "commands" and p.name not in ("cli/main.py", "__main__.py")
    ]
    assert 100 < len(below) < len(MODULES)
    for path in below:
        assert not any(name.startswith(("vitreous.cli", "vitreous.cli.main")) for name in imports(path)), path
