"""Give `vitreous classify --model` thousands of hostile checkpoints: none runs code, each is used or refused.

python benchmarks/fuzz_checkpoints.py

Refused means exit code 2 and one line. A case is printed as FOUND if its error is not one line, if it takes over 5 s of
processor time, raises memory by more than 1 GB, or leaves the canary file that hostile pickles would write.
"""

import argparse
import contextlib
import io
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

for part in (".", "support"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / part))
import bad_checkpoints  # noqa: E402
from fuzz_images import SLOW, memory  # noqa: E402

from vitreous.cli.main import main as vitreous  # noqa: E402
from vitreous.data.sample_photos import samples  # noqa: E402

MAX_MEMORY = 1024.0  # MB that one checkpoint may raise the memory by


def classify_with(path: Path, image: Path) -> tuple[str, str]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            vitreous(["classify", str(image), "--model", str(path), "--json", "--device", "cpu"])
        except SystemExit as end:
            code = end.code
    lines = [line for line in err.getvalue().splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("vitreous: ")]
    if code == 0:
        return ("used, with a warning" if "NaN" in err.getvalue() else "used"), ""
    if code == 2 and len(ours) == 1 and "Traceback" not in err.getvalue():
        return "refused", ours[0]
    return "unclear", f"exit {code}: {err.getvalue()!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=600)
    parser.add_argument("--every", type=int, default=1, help="of the changed config files, try one of so many")
    parser.add_argument("--show", action="store_true", help="one refusal of each kind")
    given = parser.parse_args()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    slowest, largest, failed, shown = (0.0, ""), (0.0, ""), False, set()
    with tempfile.TemporaryDirectory() as name:
        folder, canary, image = Path(name, "cases"), Path(name, "canary"), Path(name, "cat.png")
        folder.mkdir()
        samples()["chelsea"].save(image)
        vitreous(["classify", str(image), "--json", "--device", "cpu"])
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # protects the machine
        for kind, path in bad_checkpoints.cases(folder, canary, flips=given.flips, every=given.every):
            Path("/proc/self/clear_refs").write_text("5")
            before, begun = memory()[0], time.process_time()
            try:
                outcome, message = classify_with(path, image)
            except Exception as error:
                outcome, message = "traceback", f"{type(error).__name__}: {error}"
            seconds, peak = time.process_time() - begun, memory()[1] - before
            slowest, largest = max(slowest, (seconds, kind)), max(largest, (peak, kind))
            outcome = (
                "ran!" if canary.exists() else "slow" if seconds > SLOW else "large" if peak > MAX_MEMORY else outcome
            )
            canary.unlink(missing_ok=True)
            found[kind.split(" ")[0].rstrip(":")][outcome] += 1
            if outcome not in ("refused", "used", "used, with a warning"):
                failed = True
                print("FOUND", kind, path.name, outcome, f"{seconds:.1f} s {peak:.0f} MB", message[:300], flush=True)
            elif given.show and outcome == "refused" and kind not in shown:
                shown.add(kind)
                print(f"{kind}: {message.replace(name, '')[:260]}")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print()
    for kind, outcomes in found.items():
        print(f"{kind:32} {sum(outcomes.values()):6,}  {dict(outcomes)}")
    print(f"{sum(sum(each.values()) for each in found.values()):,} checkpoints")
    print(f"slowest {slowest[0]:.2f} s ({slowest[1]}), most memory {largest[0]:.0f} MB ({largest[1]})")
    sys.exit(failed)


if __name__ == "__main__":
    main()
