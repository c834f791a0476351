"""The suite under the oldest versions that `pyproject.toml` allows, and under today's newest.

    python benchmarks/versions.py                    # every lower bound at once, a new environment, the whole suite
    python benchmarks/versions.py --newest           # nothing held back
    python benchmarks/versions.py --quick            # the parts that take seconds
    python benchmarks/versions.py --parts train src --environment FOLDER --installed
    python benchmarks/versions.py --parts train --again --environment FOLDER --installed    # what failed before, alone
    python benchmarks/versions.py --newest --python python3.13    # a column of its own

Oldest means: of each requirement in `dependencies`, `[test]` and the build system, the first release that the bound
allows, all of them together. Bounds that cannot be installed together are an error. What these packages ask for in turn
is as new as pip finds it. Each part of the suite is a pytest of its own; what it found is kept in
`results/versions.json`, and `results/versions.md` is drawn from there, so that parts can be run one at a time. A part
that was run before a bound was raised keeps what it saw of that package, and the page says so.
"""

import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "results/versions.json"
PAGE = ROOT / "results/versions.md"
PARTS = {
    **{name: [f"tests/{name}"] for name in ("models", "weights", "inside", "data", "figures", "speed", "commands")},
    "src": ["src"],  # the examples in docstrings
    **{name: [f"tests/{name}"] for name in ("train", "explore", "comparison", "browser")},
    # the last, since one of them reads the record of the others
    "single files": sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_*.py")),
}
QUICK = ("models", "weights", "inside", "figures")


def requirements():
    """`{name: requirement}` of what `[test]` installs and of what builds the package; bounds on one name are joined."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["test"]]
    found = {}
    for requirement in map(Requirement, [*lines, *project["build-system"]["requires"]]):
        name = canonicalize_name(requirement.name)
        if name in found:
            requirement.specifier &= found[name].specifier
        found[name] = requirement
    return found


def first_release(python, requirement):
    """The first release of a package that its bounds allow, of those there are for this interpreter."""
    command = [python, "-m", "pip", "index", "versions", requirement.name]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    there = re.search(r"Available versions: (.*)", answer)[1].split(", ")
    return min(requirement.specifier.filter(there), key=Version)


def install(python, oldest):
    """The package with `[test]`, editable, built by the very build system that its bounds ask for."""
    wanted = requirements()
    pip = [python, "-m", "pip", "install", "--quiet"]
    constraints = Path(python).parents[1] / "constraints.txt"
    constraints.write_text("")
    if oldest:
        with ThreadPoolExecutor(4) as pool:
            releases = list(pool.map(lambda requirement: first_release(python, requirement), wanted.values()))
        pins = [f"{name}=={release}\n" for name, release in zip(wanted, releases, strict=True)]
        constraints.write_text("".join(pins))
        print(constraints.read_text(), file=sys.stderr)
    subprocess.run([*pip, "-c", constraints, "hatchling", "editables"], check=True)
    subprocess.run([*pip, "-c", constraints, "--no-build-isolation", "-e", f"{ROOT}[test]"], check=True)


def versions(python):
    """`(Python, {name: version})` of an environment."""
    command = [python, "-m", "pip", "list", "--format", "json"]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    number = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    return number, {canonicalize_name(entry["name"]): entry["version"] for entry in listed}


def column(oldest, number):
    """What a run is called: the interpreter is named where it is not the first that `requires-python` allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minor = ".".join(number.split(".")[:2])
    named = "" if project["requires-python"] == f">={minor}" else f", Python {minor}"
    return f"{'oldest' if oldest else 'newest'}{named}"


def keep_what_was_seen(run, installed):
    """Before a run takes over the versions installed now: each part keeps those it was run with, where they differ."""
    for part in run["parts"].values():
        seen = run["versions"] | part.get("other versions", {})
        part["other versions"] = {name: seen[name] for name in seen if seen[name] != installed.get(name)}


def read(name):
    """The record, and in it the run of this name."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record, record.setdefault(name, {"parts": {}, "versions": {}})


def run_part(python, paths):
    """One pytest: how many passed, which failed, which reasons there were to skip, seconds."""
    if not paths:  # pytest would run everything
        return {"passed": 0, "failed": [], "skipped": {}, "seconds": 0, "date": datetime.date.today().isoformat()}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", f"--junitxml={report}", *paths]
        begun = time.perf_counter()
        status = subprocess.run(command, cwd=ROOT).returncode
        seconds = time.perf_counter() - begun
        if status not in (0, 1):
            raise SystemExit(f"pytest ended with {status}: {' '.join(paths)}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case.find("skipped") for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed),
        "skipped": dict(Counter(why.get("message") or why.get("type") for why in skipped).most_common()),
        "seconds": round(seconds),
        "date": datetime.date.today().isoformat(),
    }


def node(test):
    """What pytest calls a test that its report calls `tests.train.test_loop::test_name[case]`."""
    module, name = test.split("::", 1)
    return f"{module.replace('.', '/')}.py::{name}"


def still_there(python, tests):
    """Those of the tests that the suite has today: a part may have failed before it was mended, test and all."""
    command = [python, "-m", "pytest", "-n0", "--collect-only", "-q", *map(node, tests)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [test for test in tests if f"not found: {ROOT / node(test)}" not in answer.stdout + answer.stderr]


def joined(before, tests, found):
    """A part of which `tests`, its failures, were run again alone: what passed in the end, and how much only then."""
    skipped = Counter(before["skipped"]) + Counter(found["skipped"])
    return found | {
        "passed": before["passed"] + found["passed"],
        "skipped": dict(skipped),
        "seconds": before["seconds"] + found["seconds"],
        "again": before.get("again", 0) + found["passed"],
        "gone": sorted({*before.get("gone", []), *before["failed"]} - {*tests}),
        "other versions": before.get("other versions", {}),
    }


def counts(part):
    """A part's cell in the table."""
    if part is None:
        return "not run"
    words = [f"{part['passed']} passed" + (f" ({part['again']} when run again alone)" if part.get("again") else "")]
    words += [f"**{len(part['failed'])} failed**"] if part["failed"] else []
    words += [f"{sum(part['skipped'].values())} skipped"] if part["skipped"] else []
    others = [f"{name} {release}" for name, release in part.get("other versions", {}).items()]
    return f"{', '.join(words)} ({part['seconds']} s)" + (f", with {', '.join(others)}" if others else "")


def total(run):
    """The sum over the parts that were run."""
    parts = run["parts"].values()
    passed, failed = sum(part["passed"] for part in parts), sum(len(part["failed"]) for part in parts)
    skipped = sum(sum(part["skipped"].values()) for part in parts)
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def page(record):
    """`results/versions.md` as text."""
    columns = sorted(record, key=lambda name: (not name.startswith("oldest"), name))
    where = [f"Python {record[name]['python']}, {record[name]['machine']}" for name in columns]
    lines = [
        "# The oldest versions allowed, and the newest",
        "",
        "```bash",
        "python benchmarks/versions.py && python benchmarks/versions.py --newest",
        "python benchmarks/versions.py --newest --python python3.13   # and 3.12",
        "```",
        "",
        "Oldest: the first release that each bound of `dependencies`, `[test]` and the build system in",
        "`pyproject.toml` allows, all installed together; what they ask for in turn is as new as pip finds it.",
        "The machine had other work to do meanwhile, so the seconds compare nothing.",
        "",
        f"| part of the suite | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
        f"| where | {' | '.join(where)} |",
    ]
    for part in PARTS:
        cells = [record[name]["parts"].get(part) for name in columns]
        dates = sorted({cell["date"] for cell in cells if cell})
        lines.append(f"| {part}, {' and '.join(dates) or '–'} | {' | '.join(map(counts, cells))} |")
    lines.append(f"| all that was run | {' | '.join(total(record[name]) for name in columns)} |")
    for name in columns:
        parts = record[name]["parts"].values()
        failed = [test for part in parts for test in part["failed"]]
        skipped = sum((Counter(part["skipped"]) for part in parts), Counter())
        lines += ["", f"Failed, {name}:", "", *(f"- `{test}`" for test in failed)] if failed else []
        gone = [test for part in parts for test in part.get("gone", [])]
        lines += ["", f"Failed, {name}, and no longer in the suite:", ""] if gone else []
        lines += [f"- `{test}`" for test in gone]
        lines += ["", f"Skipped, {name}:", ""] if skipped else []
        lines += [f"- {number} × {' '.join(why.split())}" for why, number in skipped.most_common()]
    lines += ["", f"| package | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for package, requirement in requirements().items():
        there = [record[name]["versions"].get(package, "–") for name in columns]
        lines.append(f"| {package} {requirement.specifier} | {' | '.join(there)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="only these")
    parser.add_argument("--again", action="store_true", help="of these, only the tests that failed before")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of a new environment")
    parser.add_argument("--environment", type=Path, help="a folder to make it in, or to find it in; kept")
    parser.add_argument("--installed", action="store_true", help="the environment is complete: install nothing")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, and tests send it
    if given.installed and not given.environment:
        parser.error("--installed: expected an --environment, got none")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.environment or Path(temporary)).absolute()
        python = str(folder / "bin/python")
        if not given.installed:
            subprocess.run([given.python, "-m", "venv", folder], check=True)
            install(python, not given.newest)
        number, installed = versions(python)
        kept = {name: installed[name] for name in requirements() if name in installed}
        where = {"python": number, "machine": f"{platform.system()}, {os.cpu_count()} cores", "versions": kept}
        name = column(not given.newest, number)
        failed = False
        for part in given.parts or (QUICK if given.quick else PARTS):
            before = read(name)[1]["parts"].get(part) if given.again else None
            if before is not None and not before["failed"]:
                continue
            tests = still_there(python, before["failed"]) if before else []
            found = run_part(python, [node(test) for test in tests] if before else PARTS[part])
            failed |= bool(found["failed"])
            print(f"{name}, {part}: {counts(found)}")
            record, run = read(name)  # another part may have ended meanwhile
            keep_what_was_seen(run, kept)
            run |= where
            run["parts"][part] = joined(run["parts"][part], tests, found) if before else found
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            PAGE.write_text(page(record))
    return failed


if __name__ == "__main__":
    sys.exit(main())
