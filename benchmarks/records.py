"""Records of training speed on CIFAR-10: run the seeds of one, and check a record from its log.

    python benchmarks/records.py run results/records/94 --mark 94 --data FOLDER [-- --epochs 90 …]
    python benchmarks/records.py check results/records/*/
    python benchmarks/records.py table

`run` starts `vitreous train cifar10-speedrun` once for each seed, with the flags after `--`, and times each process
from its start to its end. The first run is cold: it decodes the images and compiles, since all caches are in an empty
folder; `--caches FOLDER` keeps them for another call. A log may be continued on another machine of the kind (`--first 4
--seeds 6`). `--together N` runs N seeds at the same time, for their accuracy; a time counts only if the run had the
machine for itself. `check` computes every figure of a record again from its log, and says what does not fit. `table`
writes the table of the rules' page.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import vitreous
from vitreous.benchmarking.run import environment
from vitreous.models.variants import variant
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.device import device_name, pick_device
from vitreous.runtime.files import short_name
from vitreous.training.recipes import RECIPES

PAGE = Path(__file__).parents[1] / "results/records/README.md"
PACKAGE = Path(vitreous.__file__).parent
RECIPE = "cifar10-speedrun"
SEEDS = {94: 10, 95: 5, 96: 5, 97: 3}
"""Mark in per cent → the seeds of a record, counted from 0: nobody chooses them, or goes on until they suffice."""
LEVEL = 0.05
TEST_IMAGES = 10_000
PIXELS = {
    "10000": "8fc7247f5632582a753a771f110fe27d3df78803",
    "50000": "952110be75795a001f5f7ee9234458dcb4e6dff1",
}
"""Images → the hash of all their pixels, in whatever order: CIFAR-10's training and test images."""
DEVICE = r"\bH200\b"
PLAIN: dict[str, Any] = {"pretrained": False, "teacher": None, "stream": False, "validation": 0.0}
PLAIN |= {"train_split": "train", "policy": "full", "readout": "own", "head": "zero", "device": "auto"}
"""What the rules say of a run: no pre-training, no teacher, all training images and no others; on the first device."""
TIMED = 2  # runs of a record, at least, that had warm caches and the machine for themselves
FREE = {"seed", "data", "workers", "save_every", "keep", "snapshots"}
"""Settings in which the seeds of a record may differ; their images are compared pixel by pixel."""
SHAPE = {
    *(
        "image_size",
        "patch_size",
        "width",
        "depth",
        "heads",
        "mlp_width",
        "classes",
        "pool",
        "class_token",
        "registers",
    ),
    *("position", "position_std", "rope", "rope_temperature", "qk_norm", "layer_scale", "stochastic_depth", "dropout"),
}
"""Fields of a network that a plain ViT may choose; all others are the paper's."""


def run(
    folder: Path, mark: int, seeds: Sequence[int], data: str, flags: Sequence[str], together: int, caches: Path | None
) -> None:
    """Run the seeds of a record, and write its log, config and figures."""
    source = tree(PACKAGE)
    if not in_history(source):
        raise RuntimeError("src/vitreous is not as a commit has it, and a record names its source: commit it first")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as runs, ThreadPoolExecutor(together) as pool:
        kept = Path(runs) / "caches" if caches is None else caches
        try:
            for each in [pool.submit(one, Path(runs), seed, data, flags, kept) for seed in seeds]:
                found = {**each.result(), "alone": together == 1, "source": source}
                with (folder / "log.jsonl").open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(f"seed {found['seed']}: {found['top1']:.2%}, {found['wall']:.1f} s", flush=True)
        finally:  # after an error no other seed is begun
            pool.shutdown(cancel_futures=True)
    command = command_of(rows_of(folder)[0]["config"], recipe())
    described = {"mark": mark, "command": command, "source": source, "recipe": recipe()}
    described["date"] = time.strftime("%Y-%m-%d")
    machine = environment(pick_device("auto"))
    write(folder, described | {name: machine[name] for name in ("processor", "cores", "python")})


def one(runs: Path, seed: int, data: str, flags: Sequence[str], caches: Path) -> dict[str, Any]:
    """Run one seed in a process of its own, and return its row of the log."""
    output, cold = runs / str(seed), not caches.exists()
    words = ["train", RECIPE, "--seed", str(seed), "--data", data, "--output", str(output), *flags]
    kept = {name: str(caches / name) for name in ("VITREOUS_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    start = [sys.executable, "-P", "-m", "vitreous", *words]  # -P: this package, not one in the current folder
    before = time.perf_counter()
    done = subprocess.run(start, capture_output=True, text=True, env=os.environ | kept)
    wall = time.perf_counter() - before
    if done.returncode:
        raise RuntimeError(f"seed {seed} failed: {done.stderr[-2000:]}")
    result = json.loads((output / "result.json").read_text())
    epochs = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((output / "config.json").read_text())
    del config["format"]
    config["data"] = short_name(config["data"])
    row = {"seed": seed, "top1": result["top1"], "wall": round(wall, 2), "cold": cold, "ready": result["ready"]}
    device = pick_device("auto")
    row |= {"device": device_name(device), "versions": environment(device)["versions"]}
    return row | {"pixels": pixels(Path(kept["VITREOUS_CACHE"])), "config": config, "epochs": epochs}


def pixels(caches: Path) -> dict[str, str]:
    """Hash the decoded images in a folder of caches, in whatever order they stand: their number → the hash."""
    arrays = [np.load(path, mmap_mode="r") for path in caches.glob("*.npy")]
    hashes = [sorted(hashlib.sha1(image.tobytes()).digest() for image in array) for array in arrays]
    return {str(len(each)): hashlib.sha1(b"".join(each)).hexdigest() for each in hashes}


def recipe() -> dict[str, Any]:
    """The recipe's settings, as a file has them."""
    found: dict[str, Any] = json.loads(json.dumps(RECIPES[RECIPE].config.to_dict()))
    return found


def command_of(config: dict[str, Any], usual: dict[str, Any]) -> str:
    """Write the command of a config: the recipe, and every setting in which it differs and seeds may not."""
    words = ["vitreous train", RECIPE]
    for name, value in config.items():
        flag = name.replace("_", "-")
        if name in FREE or value == usual.get(name):
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return " ".join(words)


def tree(folder: Path) -> str:
    """Hash a folder's files as git hashes a tree, also where there is no git: `git log --find-object` knows it."""
    entries = []
    for path in folder.iterdir():
        if path.name == "__pycache__":
            continue
        if path.is_dir():
            if not any(each.is_file() and each.suffix != ".pyc" for each in path.rglob("*")):
                continue  # git knows no folder without files
            name, mode, found = f"{path.name}/", "40000", tree(path)
        else:
            content = path.read_bytes()
            mode = "100755" if os.access(path, os.X_OK) else "100644"
            name, found = path.name, hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entries.append((name.encode(), f"{mode} {path.name}\0".encode() + bytes.fromhex(found)))
    body = b"".join(entry for _, entry in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body).hexdigest()


def in_history(source: str) -> bool:
    """Whether a commit of this checkout has a tree as its package; true where nothing is known, without the history."""
    git = ["git", "-C", str(PACKAGE)]
    if shutil.which("git") is None or not (PAGE.parents[2] / ".git").exists():
        return True
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        return True
    # -m: a merge may be the only commit that has it; the dot: of this folder, not of another
    log = [*git, "log", "-1", "-m", "-t", "--format=%H", f"--find-object={source}", "--", "."]
    named = re.fullmatch("[0-9a-f]{40}", source) is not None
    return named and bool(subprocess.run(log, capture_output=True, text=True).stdout)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def figures(rows: Sequence[dict[str, Any]], mark: int) -> dict[str, Any]:
    """Compute mean, interval, p-value and times of a record from the rows of its log."""
    found = [100 * row["top1"] for row in rows]
    alone = [row["wall"] for row in rows if row["alone"] and not row["cold"]]
    cold = [row["wall"] for row in rows if row["alone"] and row["cold"]]
    interval, p = None, None
    if len(found) > 1:  # one seed has no spread
        low, high = stats.ttest_1samp(found, mark).confidence_interval(0.95)
        interval = [round(float(low), 3), round(float(high), 3)]
        p = float(f"{stats.ttest_1samp(found, mark, alternative='greater').pvalue:.2g}")
    return {
        "seeds": len(rows),
        "mean": round(statistics.mean(found), 3),
        "interval": interval,
        "p": p,
        "seconds": round(statistics.median(alone), 1) if alone else None,
        "timed": len(alone),
        "cold_seconds": round(cold[0], 1) if cold else None,
    }


def write(folder: Path, described: dict[str, Any]) -> None:
    """Write a record's figures beside its log."""
    record = described | figures(rows_of(folder), described["mark"])
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n")


def check(folder: Path) -> list[str]:
    """Compute a record's figures again from its log; return what does not fit the record or the rules."""
    if missing := [name for name in ("log.jsonl", "record.json") if not (folder / name).exists()]:
        return [f"it has no {name}" for name in missing]
    try:
        rows, record = rows_of(folder), json.loads((folder / "record.json").read_text())
        return [*check_record(rows, record), *(line for row in rows for line in check_row(row, rows[0]))]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return [f"it cannot be read: {type(error).__name__}: {error}"]


def check_record(rows: Sequence[dict[str, Any]], record: dict[str, Any]) -> list[str]:
    """Say what does not fit the log or the rules in a record as a whole."""
    mark, source, wrong = record["mark"], rows[0]["source"], []
    expected = json.loads(json.dumps(figures(rows, mark)))
    for name, value in expected.items():
        if record.get(name) != value:
            wrong.append(f"{name} is {record.get(name)}, the log gives {value}")
    if mark not in SEEDS:
        wrong.append(f"{mark:g} % is none of the marks {', '.join(map(str, SEEDS))}")
    elif sorted(row["seed"] for row in rows) != list(range(SEEDS[mark])):
        wrong.append(f"a record of {mark:g} % has the seeds 0 to {SEEDS[mark] - 1}, each once")
    if len({tuple(epoch["loss"] for epoch in row["epochs"]) for row in rows}) < len(rows):
        wrong.append("two seeds have the same losses: they are not different runs")
    if expected["p"] is None or not expected["p"] < LEVEL:
        wrong.append(f"p = {expected['p']}: a mean below {mark:g} % is not ruled out")
    if expected["timed"] < TIMED:
        wrong.append(f"{expected['timed']} of its runs had warm caches and the machine for itself, not {TIMED} or more")
    if record["command"] != (command := command_of(rows[0]["config"], record["recipe"])):
        wrong.append(f"the command is {record['command']}, the log's {command}")
    if record["source"] != source or not in_history(source):
        wrong.append(f"the source of the log, {source}, is not that of the record and of a commit")
    elif source == tree(PACKAGE) and record["recipe"] != recipe():
        wrong.append("its recipe is not that of its source")
    return wrong


def check_row(row: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """Say what does not fit the rules in one seed's row of a log, or differs from the first seed's."""
    config, epochs, wrong = row["config"], row["epochs"], []
    if missing := {"model", "epochs", "seed", *PLAIN} - set(config):
        return [f"seed {row['seed']}: settings are missing: {', '.join(sorted(missing))}"]
    shape = variant(config["model"])
    if not re.search(DEVICE, row["device"]):
        wrong.append(f"{row['device']} is not one H200")
    wrong += [
        f"another {key} than the first seed's" for key in ("device", "source", "versions") if row[key] != first[key]
    ]
    if row["pixels"] != PIXELS:
        wrong.append("its images are not those of CIFAR-10")
    if config["seed"] != row["seed"]:
        wrong.append(f"its config has seed {config['seed']}")
    settings = sorted({*first["config"], *config} - FREE)
    if changed := [key for key in settings if config.get(key, ...) != first["config"].get(key, ...)]:
        wrong.append(f"other settings than the first seed's: {', '.join(changed)}")
    wrong += [f"{key} is {config[key]}" for key, value in PLAIN.items() if config[key] != value]
    changed = [key for key, value in asdict(shape).items() if value != asdict(ViTConfig())[key]]
    if strange := sorted(set(changed) - SHAPE):
        wrong.append(f"{config['model']} is no plain ViT: {', '.join(strange)}")
    if [each["epoch"] for each in epochs] != list(range(1, config["epochs"] + 1)):
        wrong.append("the log does not have each epoch once")
    elif epochs[-1].get("test_top1") != row["top1"]:
        wrong.append("its accuracy is not that of the last epoch")
    hits = row["top1"] * TEST_IMAGES
    if not 0 <= row["top1"] <= 1 or abs(hits - round(hits)) > 1e-3:
        wrong.append(f"{row['top1']} is no share of {TEST_IMAGES:,} images")
    if any(name.startswith("test_") for each in epochs[:-1] for name in each):
        wrong.append("the test images were seen more than once")
    clock = [0.0, *(each["seconds"] for each in epochs), row["wall"]]
    if clock != sorted(clock) or not 0 <= row["ready"] <= row["wall"]:
        wrong.append("the clock shows less than the run itself")
    return [f"seed {row['seed']}: {line}" for line in wrong]


def table() -> str:
    """Write the table of all records that stand, the fastest of each mark first."""
    heads = ("mark", "seconds, warm (runs)", "cold", "mean (seeds)", "95 % interval", "p", "what", "date")
    lines = [f"| {' | '.join(heads)} |", "|--:|--:|--:|--:|---|--:|---|---|"]
    folders = [path.parent for path in PAGE.parent.glob("*/record.json") if not check(path.parent)]
    records = [(json.loads((folder / "record.json").read_text()), folder.name) for folder in folders]
    if not records:
        return "None yet."
    for record, name in sorted(records, key=lambda each: (each[0]["mark"], each[0]["seconds"])):
        low, high = record["interval"]
        cold = "–" if record["cold_seconds"] is None else f"{record['cold_seconds']:.0f}"
        cells = [f"{record['mark']:g} %", f"**{record['seconds']:.1f}** ({record['timed']})", cold]
        cells += [f"{record['mean']:.2f} % ({record['seeds']})", f"{low:.2f} to {high:.2f}", f"{record['p']:.2g}"]
        lines.append("| " + " | ".join([*cells, f"[{name}]({name}/): `{record['command']}`", record["date"]]) + " |")
    return "\n".join(lines)


def with_table() -> str:
    """The rules' page with its table made anew."""
    before, _, rest = PAGE.read_text().partition("<!-- records -->\n")
    _, _, after = rest.partition("<!-- end -->")
    return f"{before}<!-- records -->\n{table()}\n<!-- end -->{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("folder", type=Path)
    runner.add_argument("--mark", type=int, required=True, choices=SEEDS)
    runner.add_argument("--first", type=int, default=0, help="the first seed to run: a log may be continued")
    runner.add_argument("--seeds", type=int, help="how many to run now; by default all that the mark needs")
    runner.add_argument("--together", type=int, default=1)
    runner.add_argument("--data", default="cifar10")
    runner.add_argument("--caches", type=Path, help="a folder that keeps them for another call, which is warm then")
    commands.add_parser("check").add_argument("folders", type=Path, nargs="+")
    commands.add_parser("table")
    words, flags = sys.argv[1:], []
    if "--" in words:
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    given = parser.parse_args(words)
    if given.what == "run":
        seeds = range(given.first, SEEDS[given.mark] if given.seeds is None else given.first + given.seeds)
        run(given.folder, given.mark, seeds, given.data, flags, given.together, given.caches)
    elif given.what == "table":
        PAGE.write_text(with_table())
    else:
        wrong = {str(folder): check(folder) for folder in given.folders}
        for folder, lines in wrong.items():
            print(f"{folder}: {'does not stand' if lines else 'stands'}", *lines, sep="\n  ")
        sys.exit(any(wrong.values()))


if __name__ == "__main__":
    main()
