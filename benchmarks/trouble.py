"""Training through real faults, by the command line: `python benchmarks/trouble.py [--only disk ranks signals data]`.

- disk: a small tmpfs (Linux, as root) is filled at a random moment, by one process and by two.
- ranks: under `torchrun` one of two processes is ended by SIGKILL; how soon all have ended, and their messages.
- signals: SIGTERM and SIGINT at random moments, once and twice in a row.
- data: an image that is deleted or cut short while it is read anew in each epoch, by one process and by two.

After each fault is removed, the same command runs again and must end with the bits of an undisturbed run.
"""

import argparse
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from resume import bits, left_over, reached

import vitreous
from vitreous.cli.main import main

PACKAGE = str(Path(vitreous.__file__).parent)
FORKED = multiprocessing.get_context("fork")
WORDS = "train digits --epochs 3 --snapshots 2 --save-every 0 --device cpu --stochastic-depth 0.1"
LONGEST = 60.0  # seconds until an end that does not come is called a hang
WHOLE = 600.0  # the same for a run to its end


class Run:
    """One command, on so many processes: forked from this one, which has torch in memory, or under `torchrun`."""

    def __init__(self, folder: Path, ranks: int, more: str = "", torchrun: bool = False) -> None:
        words = [*WORDS.split(), *more.split(), "--output", str(folder)]
        self.folder = folder
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # read at the end
        if torchrun:
            start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", "vitreous"]
            self.processes = [subprocess.Popen([sys.executable, *start, *words], stdout=self.log, stderr=self.log)]
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        self.processes = []
        for rank in range(ranks):
            own = {"WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            process = FORKED.Process(target=run_command, args=(words, self.log.fileno(), common | own))
            process.start()
            self.processes.append(process)

    def codes(self) -> list[int | None]:
        """Return how each process ended, None for one that is running."""
        return [each.poll() if isinstance(each, subprocess.Popen) else each.exitcode for each in self.processes]

    def going(self) -> bool:
        return None in self.codes()

    def reach(self, update: int) -> None:
        while self.going() and reached(self.folder) < update:
            time.sleep(0.005)

    def send(self, number: int) -> None:
        os.kill(self.processes[0].pid, number)

    def end(self, limit: float = LONGEST) -> tuple[tuple[int | None, ...], float, str]:
        """Return the exit codes (None for a hang), the seconds until then, and the output."""
        started = time.monotonic()
        while self.going() and time.monotonic() - started < limit:
            time.sleep(0.01)
        codes, spent = tuple(self.codes()), time.monotonic() - started
        for process, code in zip(self.processes, codes, strict=True):
            if code is None:
                process.kill()
            process.wait() if isinstance(process, subprocess.Popen) else process.join()
        self.log.seek(0)
        return codes, spent, self.log.read()

    def workers(self) -> list[int]:
        """The processes that `torchrun` started."""
        started = self.processes[0].pid
        listed = Path(f"/proc/{started}/task/{started}/children").read_text().split()
        return [int(pid) for pid in listed if b"vitreous" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def run_command(words: list[str], log: int, environment: dict[str, str]) -> None:
    """What a forked process does: `vitreous WORDS`."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    torch.set_num_threads(1)
    main(words)


class Trials:
    """Counts how troubles ended."""

    def __init__(self, chance: random.Random, root: Path) -> None:
        self.chance, self.root = chance, root
        self.wholes: dict[tuple[int, str], dict[str, object]] = {}

    def whole(self, ranks: int, more: str) -> dict[str, object]:
        """The undisturbed run's bits."""
        if (ranks, more) not in self.wholes:
            folder = self.root / f"whole-{len(self.wholes)}"
            codes, _, output = Run(folder, ranks, more).end(WHOLE)
            if codes != (0,) * ranks:
                sys.exit(output)
            self.wholes[ranks, more] = bits(folder)
        return self.wholes[ranks, more]

    def run(
        self,
        what: str,
        count: int,
        ranks: int,
        trouble: Callable[[Run], object],
        mend: Callable[[], object] = lambda: None,
        parent: Path | None = None,
        more: str = "",
        last_step: int = 50,
        torchrun: bool = False,
    ) -> None:
        truth, longest, traced, equal = self.whole(ranks, more), 0.0, 0, 0
        ends: dict[tuple[int | None, ...], int] = {}
        lines: dict[str, int] = {}
        for number in range(count):
            folder = (parent or self.root) / f"{what.replace(' ', '-')}-{number}"
            run = Run(folder, ranks, more, torchrun)
            run.reach(self.chance.randint(1, last_step))
            time.sleep(self.chance.uniform(0, 0.1))
            trouble(run)
            codes, spent, output = run.end()
            longest = max(longest, spent)
            traced += traceback_of_ours(output)
            ends[codes] = ends.get(codes, 0) + 1
            for line in re.findall(r"^(vitreous: .*|stopped .*)$", output, re.MULTILINE):
                line = re.sub(r"\d+|/\S+/|gloo.*", "…", line)
                lines[line] = lines.get(line, 0) + 1
            mend()
            again, _, output = Run(folder, ranks, more).end(WHOLE)
            found = bits(folder) if again == (0,) * ranks else {}
            equal += found == truth and not left_over(folder)
            if found != truth or left_over(folder):
                print(output, left_over(folder), sorted(n for n in truth if found.get(n) != truth[n])[:4])
            shutil.rmtree(folder, ignore_errors=True)
        print(
            f"{what}: {count} times, exit codes {ends}, ended after {longest:.1f} s at most, "
            f"{traced} tracebacks; {equal} of {count} resumed bit-identical"
        )
        for line, times in lines.items():
            print(f"    {times} × {line}")
        sys.stdout.flush()


def traceback_of_ours(output: str) -> bool:
    """Whether a traceback goes through the package; `torchrun` prints one of its own where a signal ends it.

    >>> text = 'Traceback (most recent call last):\\n  File "{}"\\nError\\n'
    >>> traceback_of_ours(text.format("torch.py")), traceback_of_ours(text.format(PACKAGE))
    (False, True)
    """
    before = re.sub(r"(?s)=====.*", "", output)  # its summary comes last, and quotes what we left for it
    return any(PACKAGE in block for block in re.findall(r"(?m)^Traceback \(.*\n(?:[ \t].*\n)+", before))


def disk(trials: Trials, count: int) -> None:
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True)
            filler = Path(disk) / "filler"

            def fill(run: Run, filler: Path = filler) -> None:
                with filler.open("wb", buffering=0) as file, suppress(OSError):
                    while run.going():
                        file.write(bytes(4096))
                while run.going():  # what is removed meanwhile makes no room
                    with filler.open("ab", buffering=0) as file, suppress(OSError):
                        file.write(bytes(4096))

            try:
                parent = Path(disk)
                trials.run(f"full disk {ranks}", count, ranks, fill, lambda f=filler: f.unlink(missing_ok=True), parent)
            finally:
                subprocess.run(["umount", disk], check=True)


def ranks(trials: Trials, count: int) -> None:
    def kill_one(run: Run) -> None:
        if workers := run.workers():
            os.kill(trials.chance.choice(workers), signal.SIGKILL)

    trials.run("one of two killed under torchrun", count, 2, kill_one, torchrun=True)


def signals(trials: Trials, count: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        for times in (1, 2):

            def send(run: Run, number: int = number, times: int = times) -> None:
                for _ in range(times):
                    run.send(number)
                    time.sleep(trials.chance.uniform(0, 0.02))

            trials.run(f"{signal.Signals(number).name} × {times}", count, 1, send)
    trials.run("SIGTERM to torchrun", count, 2, lambda run: run.send(signal.SIGTERM), torchrun=True)


def data(trials: Trials, count: int) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    images = trials.root / "images"
    for i, (pixels, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        (images / str(label)).mkdir(parents=True, exist_ok=True)
        if i < 600:
            Image.fromarray((pixels.reshape(8, 8) * 15).astype("uint8")).save(images / f"{label}/{i:04d}.png")
    found = sorted(images.rglob("*.png"))
    kept: dict[Path, bytes] = {}

    def take(path: Path) -> Path:
        kept[path] = path.read_bytes()
        return path

    def restore() -> None:
        for path, content in kept.items():
            path.write_bytes(content)

    for number in (1, 2):
        more = f"--data {images} --resident no"
        troubles = {
            "deleted": lambda run: take(trials.chance.choice(found)).unlink(),
            "cut short": lambda run: os.truncate(take(trials.chance.choice(found)), 60),
        }
        for what, trouble in troubles.items():
            trials.run(f"image {what}, {number}", count, number, trouble, restore, more=more, last_step=8)


ALL = {"disk": disk, "ranks": ranks, "signals": signals, "data": data}


def measure() -> None:
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
    measure()
