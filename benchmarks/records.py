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

from scipy import stats

import vitreous
from vitreous.benchmarking.run import environment
from vitreous.models.variants import variant
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.device import device_name, pick_device
from vitreous.training.config import TrainConfig
from vitreous.training.recipes import RECIPES

PAGE = Path(__file__).parents[1] / "results/records/README.md"
PACKAGE = Path(vitreous.__file__).parent
RECIPE = "cifar10-speedrun"
SEEDS = {94: 10, 95: 5, 96: 5, 97: 3}
"""Mark in per cent → the seeds of a record, counted from 0: nobody chooses them, or goes on until they suffice."""
LEVEL = 0.05
TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
DEVICE = "H200"
PLAIN = {"pretrained": False, "teacher": None, "stream": False, "validation": 0.0, "train_split": "train"}
"""What the rules say of a run: no pre-training, no teacher, all training images and no others."""
FREE = {"seed", "data", "device", "workers", "save_every", "keep", "snapshots"}
"""Settings in which the seeds of a record may differ; which images they saw stands in each row."""
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
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as runs, ThreadPoolExecutor(together) as pool:
        kept = Path(runs) / "caches" if caches is None else caches
        try:
            for each in [pool.submit(one, Path(runs), seed, data, flags, kept) for seed in seeds]:
                found = {**each.result(), "alone": together == 1}
                with (folder / "log.jsonl").open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(f"seed {found['seed']}: {found['top1']:.2%}, {found['wall']:.1f} s", flush=True)
        finally:  # after an error no other seed is begun
            pool.shutdown(cancel_futures=True)
    first = rows_of(folder)[0]
    described = {
        "mark": mark,
        "command": command_of(first["config"]),
        "source": first["source"],
        "date": time.strftime("%Y-%m-%d"),
    }
    machine = environment(pick_device("auto"))
    described |= {name: machine[name] for name in ("processor", "cores", "python", "versions")}
    write(folder, described)


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
    described = json.loads((output / "model/config.json").read_text())["vitreous"]
    row = {"seed": seed, "top1": result["top1"], "wall": round(wall, 2), "cold": cold, "ready": result["ready"]}
    row |= {"device": device_name(pick_device("auto")), "source": tree(PACKAGE)}
    row |= {"classes": list(described["class_names"]), "train_images": described["training"]["training_images"]}
    return row | {"images": result["images"], "config": config, "epochs": epochs}


def command_of(config: dict[str, Any]) -> str:
    """Write the command of a config: the recipe, and every setting in which it differs and seeds may not."""
    recipe, words = RECIPES[RECIPE].config.to_dict(), ["vitreous train", RECIPE]
    for name, value in TrainConfig.from_dict(config).to_dict().items():
        flag = name.replace("_", "-")
        if name in FREE or value == recipe[name]:
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
            name, mode, found = f"{path.name}/", "40000", tree(path)
        else:
            content = path.read_bytes()
            mode = "100755" if os.access(path, os.X_OK) else "100644"
            name, found = path.name, hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entries.append((name.encode(), f"{mode} {path.name}\0".encode() + bytes.fromhex(found)))
    body = b"".join(entry for _, entry in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body).hexdigest()


def in_history(source: str) -> bool:
    """Whether a commit of this checkout has a tree; true where nothing is known, without git or with few commits."""
    git = ["git", "-C", str(PACKAGE)]
    depth = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if depth.stdout.strip() != "false":
        return True
    log = [*git, "log", "-1", "--format=%H", "-t", f"--find-object={source}"]
    named = re.fullmatch("[0-9a-f]{40}", source) is not None
    return named and bool(subprocess.run(log, capture_output=True, text=True).stdout)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def figures(rows: Sequence[dict[str, Any]], mark: int) -> dict[str, Any]:
    """Compute mean, interval, p-value and times of a record from the rows of its log."""
    found = [100 * row["top1"] for row in rows]
    alone = [row["wall"] for row in rows if row["alone"] and not row["cold"]]
    cold = [row["wall"] for row in rows if row["alone"] and row["cold"]]
    test = stats.ttest_1samp(found, mark, alternative="greater")
    low, high = stats.ttest_1samp(found, mark).confidence_interval(0.95)
    return {
        "seeds": len(rows),
        "mean": round(statistics.mean(found), 3),
        "interval": [round(float(low), 3), round(float(high), 3)],
        "p": float(f"{test.pvalue:.2g}"),
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
    rows, record = rows_of(folder), json.loads((folder / "record.json").read_text())
    mark, wrong = record["mark"], []
    expected = json.loads(json.dumps(figures(rows, mark)))
    for name, value in expected.items():
        if record.get(name) != value:
            wrong.append(f"{name} is {record.get(name)}, the log gives {value}")
    if mark not in SEEDS:
        wrong.append(f"{mark:g} % is none of the marks {', '.join(map(str, SEEDS))}")
    elif sorted(row["seed"] for row in rows) != list(range(SEEDS[mark])):
        wrong.append(f"a record of {mark:g} % has the seeds 0 to {SEEDS[mark] - 1}, each once")
    if len({row["top1"] for row in rows}) == 1:
        wrong.append("all seeds have one accuracy: they are not different runs")
    if not expected["p"] < LEVEL:
        wrong.append(f"p = {expected['p']}: a mean below {mark:g} % is not ruled out")
    if not expected["timed"]:
        wrong.append("no run had the machine for itself")
    first, source = rows[0]["config"], rows[0]["source"]
    if source == tree(PACKAGE) and record["command"] != (
        command := command_of(first)
    ):  # else the recipe may be another
        wrong.append(f"the command is {record['command']}, the log's {command}")
    if record.get("source") != source or not in_history(source):
        wrong.append(f"the source of the log, {source}, is not that of the record and of a commit")
    for row in rows:
        config, epochs = row["config"], row["epochs"]
        name = f"seed {row['seed']}"
        if missing := {"model", "epochs", "seed", *PLAIN} - set(config):
            wrong.append(f"{name}: settings are missing: {', '.join(sorted(missing))}")
            continue
        shape = variant(config["model"])
        if DEVICE not in row["device"] or (row["device"], row["source"]) != (rows[0]["device"], rows[0]["source"]):
            wrong.append(
                f"{name}: {row['device']} with {row['source']}, where one {DEVICE} and one source are expected"
            )
        if row["classes"] != CLASSES or row["train_images"] != TRAIN_IMAGES:
            wrong.append(f"{name}: its {row['train_images']:,} images are not those of CIFAR-10")
        if config["seed"] != row["seed"]:
            wrong.append(f"{name}: its config has seed {config['seed']}")
        if changed := [key for key in sorted({*first, *config} - FREE) if config.get(key, ...) != first.get(key, ...)]:
            wrong.append(f"{name}: other settings than the first seed's: {', '.join(changed)}")
        wrong += [f"{name}: {key} is {config[key]}" for key, value in PLAIN.items() if config[key] != value]
        changed = [key for key, value in asdict(shape).items() if value != asdict(ViTConfig())[key]]
        if strange := sorted(set(changed) - SHAPE):
            wrong.append(f"{name}: {config['model']} is no plain ViT: {', '.join(strange)}")
        if [each["epoch"] for each in epochs] != list(range(1, config["epochs"] + 1)):
            wrong.append(f"{name}: the log does not have each epoch once")
        elif epochs[-1].get("test_top1") != row["top1"] or row["images"] != TEST_IMAGES:
            wrong.append(f"{name}: its accuracy is not that of the last epoch on {TEST_IMAGES:,} test images")
        if len([each for each in epochs if "test_top1" in each]) != 1:
            wrong.append(f"{name}: the test images were seen more than once")
        if not epochs[-1]["seconds"] <= row["wall"]:
            wrong.append(f"{name}: the clock shows less than the run itself")
    return wrong


def table() -> str:
    """Write the table of all records, the fastest of each mark first."""
    heads = ("mark", "seconds, warm", "cold", "mean of the seeds", "95 % interval", "p", "what", "date")
    lines = [f"| {' | '.join(heads)} |", "|--:|--:|--:|--:|---|--:|---|---|"]
    records = [(json.loads(path.read_text()), path.parent.name) for path in PAGE.parent.glob("*/record.json")]
    if not records:
        return "None yet."
    for record, name in sorted(records, key=lambda each: (each[0]["mark"], each[0]["seconds"])):
        low, high = record["interval"]
        cold = "–" if record["cold_seconds"] is None else f"{record['cold_seconds']:.0f}"
        cells = [f"{record['mark']:g} %", f"**{record['seconds']:.1f}**", cold]
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
            print(
                "\n".join(
                    [f"{folder}: {'stands' if not lines else 'does not stand'}", *(f"  {line}" for line in lines)]
                )
            )
        sys.exit(any(wrong.values()))


if __name__ == "__main__":
    main()
