"""The tool that looks for tests which cannot fail: each kind of change, and what is left alone."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from mutants import mutants, own_tests

SOURCE = '''
LIMIT = 1

def measure(values, least=0):
    """How many."""
    if not values:
        raise ValueError(f"got {len(values) - 1}")
    total = len(values) + 1
    print("a" + "b")
    return total > least
'''


def test_every_kind_of_change_is_made_inside_functions_and_nowhere_else():
    found = mutants(SOURCE)
    assert [(each.kind, each.change) for each in found] == [
        ("not", "not values → values"),
        ("statement", "raise ValueError(f'got {len(values) - 1}') → nothing"),
        ("statement", "total = len(values) + 1 → nothing"),
        ("sum", "len(values) + 1 → len(values) - 1"),
        ("constant", "1 → 0"),
        ("statement", "print('a' + 'b') → nothing"),
        ("return", "return total > least → return None"),
        ("comparison", "total > least → total <= least"),
    ]
    assert all("LIMIT = 1" in each.source and "least=0" in each.source for each in found)


def test_a_mutant_differs_by_its_own_change_alone():
    (swapped,) = [each for each in mutants(SOURCE) if each.kind == "sum"]
    names = {"LIMIT": 0}
    exec(swapped.source, names)
    assert names["measure"]([1, 2], least=1) is False  # 2 - 1
    assert swapped.line == 8
    assert "if not values:" in swapped.source


def test_a_module_without_tests_is_named():
    assert own_tests("models/tokens.py") == ["tests/models/test_tokens.py", "src/vitreous/models/tokens.py"]
    with pytest.raises(ValueError, match="models/hooks.py has no tests/models/test_watch.py"):
        own_tests("models/hooks.py")
