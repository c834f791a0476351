"""Run thousands of broken and hostile images through `classify`, `explain` and the explorer.

python benchmarks/fuzz_images.py

Each route runs in its own process, which is watched from outside: its death is a crash, a Python exception a traceback,
and over 5 s of its time more than a sound photograph takes a hang: `explain` may take 5 s with any image. So the
photograph is timed right after a file that took that much longer than it ever did. First, each route reads a JPEG of
many scans without the limit on scans: if that is no hang, the watch is blind, which is a failure too. Memory is the
rise of the process's peak for one file (on Linux).
"""

import argparse
import contextlib
import io
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
import bad_images

SLOW = 5.0
GIVE_UP = 60.0  # seconds of the process, after which it is ended; ten times as many if it does nothing
Outcome = dict[str, str | float]


# --- in the watched process -------------------------------------------------------------------------------------------


def by_command(command: str) -> Callable[[Path], tuple[str, str]]:
    from vitreous.cli.main import main

    def run(path: Path) -> tuple[str, str]:
        words = [
            command,
            str(path),
            *(["--json"] if command == "classify" else ["-o", str(path.parent / "report.html")]),
        ]
        out, err = io.StringIO(), io.StringIO()
        code: object = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main([*words, "--device", "cpu"])
            except SystemExit as end:
                code = end.code
        lines = [line for line in err.getvalue().splitlines() if line.startswith("vitreous: ")]
        if code == 0 and not lines:
            return "answered", ""
        if code == 2 and len(lines) == 1 and path.name in "".join(err.getvalue().split("\n")):
            return "refused", err.getvalue().replace("\n", " ").partition(path.name)[2].lstrip(": ").strip()
        return "unclear", f"exit {code}: {err.getvalue()!r}"

    return run


def by_library() -> Callable[[Path], tuple[str, str]]:
    from vitreous import load
    from vitreous.data.images import ImageError
    from vitreous.predict.classify import classify_each

    model = load("packaged:cifar10")

    def run(path: Path) -> tuple[str, str]:
        (found,) = classify_each([path], model, device="cpu")
        if not isinstance(found, ImageError):
            return "answered", ""
        named = found.name == str(path) and "\n" not in str(found)
        return "refused" if named else "unclear", found.reason

    return run


def by_upload() -> Callable[[Path], tuple[str, str]]:
    from starlette.testclient import TestClient

    from vitreous import load
    from vitreous.server.app import create_app
    from vitreous.server.jobs import JobQueue
    from vitreous.server.security import SecurityMiddleware, allowed_hosts

    app = SecurityMiddleware(
        create_app({"packaged": load("packaged:cifar10")}, JobQueue()), allowed_hosts("127.0.0.1", 8137)
    )
    client = TestClient(app, base_url="http://127.0.0.1:8137")

    def run(path: Path) -> tuple[str, str]:
        answer = client.post("/api/explain?model=packaged", content=path.read_bytes())
        if answer.status_code == 200:
            return "answered", ""
        if answer.status_code in (400, 413):
            message = answer.text if answer.status_code == 413 else answer.json()["detail"]
            return ("refused", message) if "\n" not in message else ("unclear", message)
        return "unclear", f"{answer.status_code}: {answer.text[:200]}"

    return run


def memory() -> tuple[float, float]:
    """Resident now, and the most since `forget_peak`, in MB."""
    text = Path("/proc/self/status").read_text()
    return tuple(int(re.search(rf"{name}:\s+(\d+)", text)[1]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore


def work(route: str, *, unlimited: bool) -> None:
    answers = sys.stdout
    if unlimited:
        from vitreous.data import images

        images.LIMIT_PASSES = 10**15
    made = {"classify": by_library, "explorer": by_upload, "command": lambda: by_command("classify")}
    run = made.get(route, lambda: by_command("explain"))()
    run(Path(sys.stdin.readline().strip()))  # a sound image, so that everything is imported
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")
        before, begun = memory()[0], time.process_time()
        try:
            kind, message = run(Path(line.strip()))
        except BaseException as error:  # whatever it is, it is a finding
            kind, message = "traceback", f"{type(error).__name__}: {error}"
        seconds = time.process_time() - begun  # of this process: others may use the cores as well
        outcome = {"kind": kind, "message": message, "seconds": seconds, "peak": memory()[1] - before}
        print(json.dumps(outcome), file=answers, flush=True)


# --- outside ----------------------------------------------------------------------------------------------------------


class Watched:
    """The process, started again whenever it has died or hung."""

    def __init__(self, route: str, sound: Path, *, unlimited: bool = False) -> None:
        self.words = [sys.executable, __file__, "--work", route, *(["--unlimited"] if unlimited else [])]
        self.sound = sound
        self.usual = 0.0  # the least seconds that the sound photograph took, once a file took over `SLOW`
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.answers: queue.Queue[str] = queue.Queue()

        def listen(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
            for line in process.stdout:  # type: ignore[union-attr]
                answers.put(line)
            answers.put("")

        threading.Thread(target=listen, args=(self.process, self.answers), daemon=True).start()
        assert self.ask(self.sound).strip() == "ready"

    def ask(self, path: Path) -> str:
        self.process.stdin.write(f"{path}\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        used, begun = self.used(), time.monotonic()
        while True:
            try:
                return self.answers.get(timeout=1)
            except queue.Empty:
                if self.used() - used > GIVE_UP or time.monotonic() - begun > 10 * GIVE_UP:
                    raise

    def used(self) -> float:
        """Seconds of processor time that the process has used: others may use the cores as well."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def outcome(self, path: Path) -> Outcome:
        try:
            line = self.ask(path)
        except queue.Empty:
            self.process.kill()
            line = ""
            kind = "hang"
        else:
            kind = "crash"
        if line:
            found: Outcome = json.loads(line)
            if float(found["seconds"]) - self.usual > SLOW:
                now = float(json.loads(self.ask(self.sound))["seconds"])
                self.usual = min(self.usual or now, now)
                if float(found["seconds"]) - now > SLOW:
                    found |= {"kind": "hang", "usual": now}
            return found
        code = self.process.wait()
        self.start()
        return {"kind": kind, "message": f"the process ended with {code}", "seconds": GIVE_UP, "peak": 0.0}

    def close(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


def sees_a_hang(route: str, sound: Path) -> bool:
    """Return whether a JPEG that keeps the decoder busy is found, if nothing refuses it."""
    path = sound.with_name("passes.jpg")
    path.write_bytes(bad_images.many_passes(8000, 250))
    watched = Watched(route, sound, unlimited=True)
    found = watched.outcome(path)
    watched.close()
    path.unlink()
    print(f"{route}, scans unlimited: {found}", flush=True)
    return found["kind"] == "hang"


def group(message: str) -> str:
    """A reason without the particulars of one file."""
    return re.sub(r"\s*\(.*", "", re.sub(r"[\d,.]*\d[\d,]*(×\d+)?", "N", message))[:70] or "(an answer)"


def given_counts(given: argparse.Namespace) -> list[tuple[str, int]]:
    routes = [(route, getattr(given, route)) for route in ("classify", "command", "explain", "explorer")]
    return [(route, count) for route, count in routes if count >= 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classify", type=int, default=6000, help="damaged files, beside those by hand; -1 for none")
    parser.add_argument("--command", type=int, default=400, help="the same by `vitreous classify`")
    parser.add_argument("--explain", type=int, default=150, help="by `vitreous explain`")
    parser.add_argument("--explorer", type=int, default=400, help="by upload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--unlimited", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, unlimited=given.unlimited)
        return
    failed = False
    by_hand = bad_images.written_by_hand()
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder, "sound.jpg")
        bad_images.noise(480, 640).save(sound)
        for route, count in given_counts(given):
            if not sees_a_hang(route, sound):
                failed = True
                print("BLIND", route, flush=True)
            watched, begun = Watched(route, sound), time.perf_counter()
            kinds: Counter[str] = Counter()
            reasons: Counter[str] = Counter()
            slowest, largest = (0.0, ""), (0.0, "")
            files = [*by_hand.items(), *bad_images.damaged(count, given.seed)]
            for number, (name, data) in enumerate(files):
                path = Path(folder, f"{number}-{name}")
                path.write_bytes(data)
                found = watched.outcome(path)
                path.unlink()
                kinds[str(found["kind"])] += 1
                reasons[group(str(found["message"])) if found["kind"] == "refused" else str(found["kind"])] += 1
                slowest = max(slowest, (float(found["seconds"]), name))
                largest = max(largest, (float(found["peak"]), name))
                if found["kind"] not in ("answered", "refused"):
                    failed = True
                    print("FOUND", route, path.name, found, flush=True)
            watched.close()
            print(f"\n{route}: {len(files)} files in {time.perf_counter() - begun:.0f} s: {dict(kinds)}")
            print(f"  slowest {slowest[0]:.2f} s ({slowest[1]}), most memory {largest[0]:.0f} MB ({largest[1]})")
            for reason, times in reasons.most_common():
                print(f"  {times:6,}  {reason}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
