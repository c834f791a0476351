"""Run the tests with the oldest versions that `pyproject.toml` allows, or with the newest there are.

    pip install uv && python benchmarks/versions.py              # every lower bound at once, in a new environment
    python benchmarks/versions.py --newest --python 3.13         # nothing held back
    python benchmarks/versions.py -- -m "not slow" tests/weights # what follows `--` goes to pytest

uv chooses the first release that each bound of `dependencies` and `[test]` allows (`--resolution lowest-direct`); what
these packages need in turn is as new as it finds. The versions are printed before the tests.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after `--`")
    given = parser.parse_args()
    resolution = "highest" if given.newest else "lowest-direct"
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/bin/python"
        subprocess.run(["uv", "venv", "--quiet", "--python", given.python, folder], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", python, "--resolution", resolution]
        subprocess.run([*install, "-e", f"{ROOT}[test]"], check=True)
        subprocess.run(["uv", "pip", "list", "--python", python], check=True)
        return subprocess.run([python, "-m", "pytest", *given.pytest], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
