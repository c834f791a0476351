"""Build kernels.wasm from kernels.c: `python benchmarks/build_kernels.py`.

The compiler is pinned, here and in the extra [test], so that the same source gives the same bytes;
`tests/pages/test_live.py` builds them again and compares. `--check FILE` writes elsewhere.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "src" / "vitreous" / "pages" / "assets"
COMPILER = "0.15.2"
COMPILE = (
    "--target=wasm32-freestanding", "-mcpu=generic+simd128+bulk_memory+nontrapping_fptoint", "-O3", "-ffp-contract=off",
    "-fno-sanitize=all", "-fvisibility=hidden", "-c",
)  # fmt: skip
LINK = (
    "--no-entry", "--import-memory", "--strip-all", "--stack-first", "-z", "stack-size=65536",
    "--initial-memory=131072", "--max-memory=4294967296",
)  # fmt: skip


def build(output: Path) -> None:
    """Compile the kernels of the live page to WebAssembly."""
    tool = [sys.executable, "-m", "ziglang"]
    found = subprocess.run([*tool, "version"], capture_output=True, text=True, check=True)
    if (version := found.stdout.strip()) != COMPILER:
        raise SystemExit(f"expected ziglang {COMPILER}, got {version}: try pip install ziglang=={COMPILER}")
    with tempfile.TemporaryDirectory() as folder:
        compiled = str(Path(folder) / "kernels.o")
        subprocess.run([*tool, "cc", *COMPILE, "kernels.c", "-o", compiled], cwd=ASSETS, check=True)
        subprocess.run([*tool, "wasm-ld", *LINK, compiled, "-o", str(output.resolve())], cwd=ASSETS, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=Path, default=ASSETS / "kernels.wasm")
    path = parser.parse_args().check
    build(path)
    print(f"wrote {path} ({path.stat().st_size} bytes)")
