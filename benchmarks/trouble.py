"""Training among real troubles, by the command line: `python benchmarks/trouble.py [--only disk ranks signals data]`.

- disk: a small tmpfs (Linux, as root) is filled to the brim at a random moment, by one process and by two.
- ranks: under `torchrun` one of two processes is ended by SIGKILL; how soon all have ended, and what they say.
- signals: SIGTERM and SIGINT at random moments, once and twice in a row.
- data: a picture that is deleted or cut short while it is read anew in each epoch, by one process and by two.

After each the trouble is taken away and the same command run again; the bits have to be those of an undisturbed run.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from resume import bits, left_over, reached

WORDS = "train digits --epochs 3 --snapshots 2 --save-every 0 --device cpu --stochastic-depth 0.1"
LONGEST = 60.0  # seconds until an end that does not come is called a hang


class Run:
    """One command in a process of its own, or in two under `torchrun`."""

    def __init__(self, folder: Path, ranks: int, more: str = "") -> None:
        start = [sys.executable, "-m"]
        if ranks > 1:
            start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        words = [*start, "vitreous", *WORDS.split(), *more.split(), "--output", str(folder)]
        self.folder = folder
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # read at the end
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def reach(self, update: int) -> None:
        while self.process.poll() is None and reached(self.folder) < update:
            time.sleep(0.005)

    def end(self) -> tuple[int | None, float, str]:
        """Its exit code (None for a hang), seconds until then, and all that it said."""
        begun = time.monotonic()
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(LONGEST)
        spent = time.monotonic() - begun
        if code is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.seek(0)
        return code, spent, self.log.read()

    def workers(self) -> list[int]:
        """The processes that `torchrun` started."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in listed if b"vitreous" in Path(f"/proc/{pid}/cmdline").read_bytes()]


class Trials:
    """Counts how troubles ended."""

    def __init__(self, chance: random.Random, root: Path) -> None:
        self.chance, self.root, self.wholes = chance, root, {}

    def whole(self, ranks: int, more: str = "") -> Path:
        """The undisturbed run."""
        if (ranks, more) not in self.wholes:
            folder = self.root / f"whole-{len(self.wholes)}"
            code, _, said = Run(folder, ranks, more).end()
            if code:
                sys.exit(said)
            self.wholes[ranks, more] = folder
        return self.wholes[ranks, more]

    def run(
        self,
        what: str,
        count: int,
        ranks: int,
        trouble: Callable[[Run], object],
        mend: Callable[[], object] = lambda: None,
        place: Path | None = None,
        more: str = "",
        most: int = 50,
    ) -> None:
        whole = self.whole(ranks, more)
        truth, longest, traced, equal, hangs = bits(whole), 0.0, 0, 0, 0
        codes: dict[int | None, int] = {}
        lines: dict[str, int] = {}
        for number in range(count):
            folder = (place or self.root) / f"{what.replace(' ', '-')}-{number}"
            run = Run(folder, ranks, more)
            run.reach(self.chance.randint(1, most))
            time.sleep(self.chance.uniform(0, 0.1))
            trouble(run)
            code, spent, said = run.end()
            longest, hangs = max(longest, spent), hangs + (code is None)
            traced += "Traceback (most recent" in re.sub(r"(?s)=====.*", "", said)  # torchrun's summary comes last
            codes[code] = codes.get(code, 0) + 1
            for line in re.findall(r"^(vitreous: .*|stopped .*)$", said, re.MULTILINE):
                line = re.sub(r"\d+|/\S+/|gloo.*", "…", line)
                lines[line] = lines.get(line, 0) + 1
            mend()
            again, _, said = Run(folder, ranks, more).end()
            found = bits(folder) if not again else {}
            equal += found == truth and not left_over(folder)
            if found != truth or left_over(folder):
                print(said, left_over(folder), sorted(n for n in truth if found.get(n) != truth[n])[:4])
            shutil.rmtree(folder, ignore_errors=True)
        print(
            f"{what}: {count} times, exit codes {codes}, ended after {longest:.1f} s at the most, {hangs} hangs, "
            f"{traced} tracebacks; {equal} of {count} resumed bit-identical"
        )
        for line, times in lines.items():
            print(f"    {times} × {line}")
        sys.stdout.flush()


def disk(trials: Trials, count: int) -> None:
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], check=True)
            filler = Path(place) / "filler"

            def fill(run: Run, filler: Path = filler) -> None:
                with filler.open("wb", buffering=0) as file, suppress(OSError):
                    while run.process.poll() is None:
                        file.write(bytes(4096))
                while run.process.poll() is None:  # what is removed meanwhile makes no room
                    with filler.open("ab", buffering=0) as file, suppress(OSError):
                        file.write(bytes(4096))

            try:
                where = Path(place)
                trials.run(f"full disk {ranks}", count, ranks, fill, lambda f=filler: f.unlink(missing_ok=True), where)
            finally:
                subprocess.run(["umount", place], check=True)


def ranks(trials: Trials, count: int) -> None:
    def kill_one(run: Run) -> None:
        if workers := run.workers():
            os.kill(trials.chance.choice(workers), signal.SIGKILL)

    trials.run("one of two killed", count, 2, kill_one)


def signals(trials: Trials, count: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        for times in (1, 2):

            def send(run: Run, number: int = number, times: int = times) -> None:
                for _ in range(times):
                    run.process.send_signal(number)
                    time.sleep(trials.chance.uniform(0, 0.02))

            trials.run(f"{signal.Signals(number).name} × {times}", count, 1, send)
    trials.run("SIGTERM to torchrun", count, 2, lambda run: run.process.send_signal(signal.SIGTERM))


def data(trials: Trials, count: int) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    pictures = trials.root / "pictures"
    for i, (pixels, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        (pictures / str(label)).mkdir(parents=True, exist_ok=True)
        if i < 600:
            Image.fromarray((pixels.reshape(8, 8) * 15).astype("uint8")).save(pictures / f"{label}/{i:04d}.png")
    found = sorted(pictures.rglob("*.png"))
    kept: dict[Path, bytes] = {}

    def take(path: Path) -> Path:
        kept[path] = path.read_bytes()
        return path

    def restore() -> None:
        for path, content in kept.items():
            path.write_bytes(content)

    for number in (1, 2):
        more = f"--data {pictures} --resident no"
        troubles = {
            "deleted": lambda run: take(trials.chance.choice(found)).unlink(),
            "cut short": lambda run: os.truncate(take(trials.chance.choice(found)), 60),
        }
        for what, trouble in troubles.items():
            trials.run(f"picture {what}, {number}", count, number, trouble, restore, more=more, most=8)


ALL = {"disk": disk, "ranks": ranks, "signals": signals, "data": data}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["VITREOUS_CACHE"] = f"{name}/cache"
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        trials = Trials(random.Random(given.seed), Path(name))
        for what in given.only:
            ALL[what](trials, given.count)


if __name__ == "__main__":
    main()
