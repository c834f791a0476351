"""One figure from files that `vitreous benchmark -o` and `benchmarks/gpu.py` wrote.

python benchmarks/draw_speeds.py OUT.png FILE[:NUMBER,…] …    # which results of a file, counted from 0; else all
"""

import json
import sys
from pathlib import Path

from vitreous.figures.bars import Panel, draw_speeds
from vitreous.figures.style import encode


def panels(argument):
    name, _, numbers = argument.partition(":")
    found = json.loads(Path(name).read_text())
    device = found["device"] if found["device"].startswith("NVIDIA") else f"{found['threads']} CPU cores"
    wanted = [int(number) for number in numbers.split(",")] if numbers else range(len(found["results"]))
    for result in (found["results"][number] for number in wanted):
        rows = result["rows"]
        yield Panel(
            f"{result['model']}, {result['task']}, batch {result['batch']}, {result['precision']}, {device}",
            [row["name"] for row in rows],
            [row["images_per_second"] for row in rows],
            [row["ours"] for row in rows],
            result["ceiling"] / result["flops"],
        )


def main():
    out, *files = sys.argv[1:]
    drawn = [panel for argument in files for panel in panels(argument)]
    dates = sorted({json.loads(Path(name.partition(":")[0]).read_text())["date"][:10] for name in files})
    note = f"each panel in one process, contenders in turn, medians; limit: the best matrix product; {', '.join(dates)}"
    figure = draw_speeds(drawn, title="Images a second, beside other libraries and the limit", note=note)
    Path(out).write_bytes(encode(figure, Path(out).suffix[1:]))


if __name__ == "__main__":
    main()
