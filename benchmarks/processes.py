"""Whole processes, measured in turn: seconds on the clock and of the processor, from start to end."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
OURS = [sys.executable, "-m", "vitreous", "classify"]
TIMM = [sys.executable, str(HERE / "timm_classify.py")]


def measured(command):
    """`(seconds, seconds of the processor with all children, standard output)` of one process."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        output.seek(0)
        errors.seek(0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"{' '.join(map(str, command))}:\n{errors.read().decode()}")
        return seconds, usage.ru_utime + usage.ru_stime, output.read().decode()


def in_turn(commands, rounds):
    """`{name: [(seconds, processor seconds)]}`, each command once a round, so that a busy machine slows all alike."""
    times = {name: [] for name in commands}
    for number in range(rounds):
        for name, command in commands.items():
            seconds, processor, _ = measured(command)
            times[name].append((seconds, processor))
            print(f"round {number + 1} {name}: {seconds:.2f} s, {processor:.2f} s of the processor", file=sys.stderr)
    return times


def table(times, against):
    """A Markdown table: medians, and how many times as fast as `against`."""
    middle = {name: [statistics.median(column) for column in zip(*each, strict=True)] for name, each in times.items()}
    lines = [f"| | seconds | × {against} | processor seconds | × {against} |", "|---|---|---|---|---|"]
    for name, (seconds, processor) in middle.items():
        ratios = middle[against][0] / seconds, middle[against][1] / processor
        lines.append(f"| {name} | {seconds:.2f} | {ratios[0]:.2f} | {processor:.2f} | {ratios[1]:.2f} |")
    return "\n".join(lines)
