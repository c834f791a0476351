"""The record of the suite under the oldest versions speaks of today's bounds and of every part."""

import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "results/versions.json"
OWN = "single files"
"""The part that this file is in: while it runs, it cannot have ended."""


def bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in ("hub", "lora", "export", "log", "test"):  # docs is no part of the suite
        lines += extras[extra]
    return [Requirement(line) for line in lines]


def recorded():
    if not RECORD.exists():
        pytest.skip("results/ is not part of a source distribution")
    return json.loads(RECORD.read_text())


@pytest.mark.parametrize("requirement", bounds(), ids=str)
def test_the_suite_was_run_with_the_first_release_that_a_bound_allows(requirement):
    (bound,) = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
    tried = Version(recorded()["oldest"]["versions"][canonicalize_name(requirement.name)])
    again = "run benchmarks/versions.py with the new bound"
    assert tried.release[: len(bound.release)] == bound.release, f"{requirement} was tried with {tried}: {again}"


def test_every_part_of_the_suite_was_run_with_the_oldest():
    parts = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} | {"src"}
    assert recorded()["oldest"]["parts"].keys() - {OWN} == parts


def test_nothing_failed_in_what_was_run():
    runs = recorded().items()
    parts = {(name, part): found["failed"] for name, run in runs for part, found in run["parts"].items() if part != OWN}
    assert parts
    assert not {place: failed for place, failed in parts.items() if failed}
