"""The scripts of `benchmarks/` are run by hand, some of them for hours: here, that what they import is there."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_the_names_that_a_benchmark_imports_exist(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vitreous":
            if node.module == "vitreous.speed.triton_kernels":  # needs Triton, which CUDA builds of torch bring
                pytest.importorskip("triton")
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_the_key_table_of_efficientnet_lite0_covers_timms_keys_one_to_one(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    table = importlib.import_module("efficientnet_lite0")
    statistics = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    layers = [(name, statistics if "bn" in name else ("weight",)) for name in table.WHOLE if name != "_fc"]
    for number in range(sum(table.STAGES)):
        names = table.OTHER if number else table.FIRST
        layers += [(f"_blocks.{number}.{name}", statistics if "bn" in name else ("weight",)) for name in names]
    keys = [f"{name}.{part}" for name, parts in [*layers, ("_fc", ("weight", "bias"))] for part in parts]
    theirs = pytest.importorskip("timm").create_model("tf_efficientnet_lite0").state_dict()
    assert sorted(map(table.timm_key, keys)) == sorted(theirs)


def test_the_maps_that_were_left_out_give_the_results_known_in_closed_form(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    importlib.import_module("more_maps").check()


@pytest.fixture
def records(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("records")


def test_the_records_kept_here_stand_and_their_table_is_current(records):
    folders = [path.parent for path in records.PAGE.parent.glob("*/record.json")]
    assert {folder.name: records.check(folder) for folder in folders} == {folder.name: [] for folder in folders}
    assert records.with_table() == records.PAGE.read_text(), "run `python benchmarks/records.py table`"


def test_a_folders_hash_is_gits(records, tmp_path):
    (tmp_path / "a/b/__pycache__").mkdir(parents=True)
    (tmp_path / "gone/__pycache__").mkdir(parents=True)
    (tmp_path / "gone/__pycache__/d.pyc").touch()  # git leaves it behind when a module moves
    for name in ("a/b.py", "a/b/c.py", "a/b-d.py", "run", "a/b/__pycache__/c.pyc"):
        (tmp_path / name).write_text(f"{name} ü")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / ".gitignore").write_text("__pycache__/")
    git = ["git", "-C", str(tmp_path), "-c", "core.fileMode=true"]
    kept = {**os.environ, "GIT_DIR": str(tmp_path.parent / f"{tmp_path.name}.git"), "GIT_WORK_TREE": str(tmp_path)}
    for words in (["init"], ["add", "."]):
        subprocess.run([*git, *words], check=True, capture_output=True, env=kept)
    written = subprocess.run([*git, "write-tree"], check=True, capture_output=True, text=True, env=kept).stdout.strip()
    assert records.tree(tmp_path) == written


@pytest.fixture
def record(records, tmp_path, monkeypatch):
    """A record of three seeds of two epochs, as `run` would write it, and a call that changes its log."""

    def row(seed):
        config = {**records.recipe(), "epochs": 2, "seed": seed, "data": f"folder-{seed}"}
        epochs = [{"epoch": 1, "loss": 2.0 - 0.01 * seed, "seconds": 5.0}, {"epoch": 2, "loss": 1.5, "seconds": 9.0}]
        epochs[1]["test_top1"] = round(0.941 + 0.001 * seed, 3)
        found = {"seed": seed, "top1": epochs[1]["test_top1"], "wall": 20.0 + seed, "ready": 4.0}
        found |= {"pixels": records.PIXELS, "device": "one H200", "source": "abc", "versions": {"torch": "2.11"}}
        return {**found, "config": config, "epochs": epochs, "alone": True, "cold": seed == 0}

    monkeypatch.setattr(records, "in_history", lambda source: source == "abc")
    monkeypatch.setattr(records, "tree", lambda folder: "abc")

    def write(change=lambda rows: None, mark=94, command="vitreous train cifar10-speedrun --epochs 2"):
        rows = [row(seed) for seed in range(records.SEEDS.get(mark, 3))]
        described = {"mark": mark, "command": command, "source": "abc", "recipe": records.recipe()}
        described["date"] = "2026-11-19"
        described |= records.figures(rows, mark)
        change(rows)
        (write.folder / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (write.folder / "record.json").write_text(json.dumps(described))
        return records.check(write.folder)

    write.folder = tmp_path / "record"
    write.folder.mkdir()
    return write


def test_a_record_that_fits_its_log_stands(record):
    assert record() == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda rows: rows[1].update(top1=0.95), "its accuracy is not that of the last epoch"),
        (lambda rows: rows[1].update(wall=30.0), "seconds is 25.0, the log gives 26"),
        (lambda rows: rows[2].update(seed=1), "has the seeds 0 to 9, each once"),
        (lambda rows: rows.pop(), "has the seeds 0 to 9, each once"),
        (lambda rows: rows[1].update(top1=1.5), "1.5 is no share of 10,000 images"),
        (lambda rows: rows[1].update(top1=0.94215), "is no share of 10,000 images"),
        (lambda rows: rows[1]["epochs"][0].update(loss=2.0), "two seeds have the same losses"),
        (lambda rows: rows[3].update(pixels={"50000": "0"}), "are not those of CIFAR-10"),
        (lambda rows: rows[3].update(device="another H200"), "another device than the first seed's"),
        (lambda rows: rows[3].update(source="def"), "another source than the first seed's"),
        (lambda rows: rows[3].update(versions={"torch": "2.15"}), "another versions than the first seed's"),
        (lambda rows: [row.update(source="def") for row in rows], "not that of the record and of a commit"),
        (lambda rows: [row.update(device="NVIDIA GH200 480GB") for row in rows], "GH200 480GB is not one H200"),
        (lambda rows: rows[3]["config"].update(readout="attention"), "readout is attention"),
        (lambda rows: rows[3]["config"].update(device="cuda:1"), "device is cuda:1"),
        (lambda rows: rows[3]["config"].update(model="resnet18_small"), "it cannot be read: ValueError"),
        (lambda rows: rows[3].pop("wall"), "it cannot be read: KeyError: 'wall'"),
        (lambda rows: rows[3]["config"].pop("clip"), "other settings than the first seed's: clip"),
        (lambda rows: rows[3]["config"].pop("teacher"), "settings are missing: teacher"),
        (lambda rows: [row["config"].update(clip=2.0) for row in rows], "the log's .* --epochs 2 .*--clip 2.0"),
        (lambda rows: rows[2]["config"].update(model="vit_micro_patch4_32:swiglu=true"), "no plain ViT: swiglu"),
        (lambda rows: rows[2]["config"].update(learning_rate=0.1), "other settings .*: learning_rate"),
        (lambda rows: rows[2]["config"].update(pretrained=True), "pretrained is True"),
        (lambda rows: rows[2]["config"].update(model="vit_micro_patch4_32:stem=r"), "is no plain ViT"),
        (lambda rows: rows[0]["epochs"].pop(0), "the log does not have each epoch once"),
        (lambda rows: rows[0]["epochs"][0].update(test_top1=0.5), "the test images were seen more than once"),
        (lambda rows: rows[0].update(wall=8.0), "the clock shows less than the run"),
        (lambda rows: rows[0].update(ready=30.0), "the clock shows less than the run"),
        (lambda rows: rows[0]["epochs"][0].update(seconds=10.0), "the clock shows less than the run"),
        (lambda rows: [row.update(alone=row["seed"] == 1) for row in rows], "1 of its runs had warm caches"),
    ],
)
def test_a_record_that_was_changed_does_not(record, change, found):
    assert any(re.search(found, line) for line in record(change)), record(change)


def test_the_command_names_every_setting_that_is_not_the_recipes(records, record, monkeypatch):
    changes = {"learning_rate": 3e-3, "compile": False, "seed": 7, "fused": False}
    command = "vitreous train cifar10-speedrun --learning-rate 0.003 --no-compile --no-fused"
    assert sorted(records.command_of(records.recipe() | changes, records.recipe()).split()) == sorted(command.split())
    assert any("the command is" in line for line in record(command="vitreous train cifar10-speedrun --epochs 7"))
    monkeypatch.setattr(records, "tree", lambda folder: "a later source")
    assert any("the command is" in line for line in record(command="vitreous train cifar10-speedrun"))
    assert record() == []


def test_a_record_keeps_the_recipe_of_its_source(records, record, monkeypatch):
    now = records.recipe()
    monkeypatch.setattr(records, "recipe", lambda: {**now, "clip": 5.0})
    command = "vitreous train cifar10-speedrun --epochs 2"
    assert record(command=command) == []
    kept = json.loads((record.folder / "record.json").read_text())
    (record.folder / "record.json").write_text(json.dumps({**kept, "recipe": now}))
    assert any("its recipe is not that of its source" in line for line in records.check(record.folder))


def test_a_log_of_one_seed_has_no_interval(records, record):
    found = record(lambda rows: rows.__delitem__(slice(1, None)))
    assert any("p = None: a mean below 94 % is not ruled out" in line for line in found)


def test_the_table_has_the_records_that_stand(records, record, monkeypatch):
    monkeypatch.setattr(records, "PAGE", record.folder.parent / "README.md")
    assert record() == []
    (record.folder.parent / "begun").mkdir(exist_ok=True)
    (record.folder.parent / "begun/record.json").write_text("{}")
    rows = [line for line in records.table().splitlines() if line.startswith("| 94")]
    assert len(rows) == 1
    assert "**25.0** (9)" in rows[0]


def test_the_images_of_a_run_are_known_by_their_pixels_in_any_order(records, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 4), dtype=np.uint8)
    found = []
    for name, array in (("a", images), ("b", images[::-1]), ("c", np.vstack([images[:5], images[:1]]))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "cache.npy", array)
        found.append(records.pixels(tmp_path / name))
    assert found[0] == found[1] != found[2]


def test_flags_of_a_run_follow_two_dashes(records, monkeypatch):
    found = []
    monkeypatch.setattr(records, "run", lambda *given: found.append(given))
    line = "records.py run results/records/94 --mark 94 --first 4 --seeds 2 --data here -- --epochs 90"
    monkeypatch.setattr("sys.argv", line.split())
    records.main()
    assert found == [(Path("results/records/94"), 94, range(4, 6), "here", ["--epochs", "90"], 1, None)]


def test_no_seed_is_begun_after_one_that_failed(records, monkeypatch, tmp_path):
    begun = []

    def one(runs, seed, *others):
        begun.append(seed)
        raise RuntimeError(f"seed {seed} failed")

    monkeypatch.setattr(records, "one", one)
    monkeypatch.setattr(records, "in_history", lambda source: True)
    with pytest.raises(RuntimeError, match="seed 0 failed"):
        records.run(tmp_path, 94, range(10), "here", [], 1, None)
    assert len(begun) <= 2  # the next may have begun while the first one's error was raised


def test_a_source_that_no_commit_has_is_not_run(records, monkeypatch, tmp_path):
    monkeypatch.setattr(records, "in_history", lambda source: False)
    with pytest.raises(RuntimeError, match="commit it first"):
        records.run(tmp_path / "record", 94, range(10), "here", [], 1, None)
    assert not (tmp_path / "record").exists()


def test_a_source_is_one_that_a_commit_has(records, monkeypatch):
    git = ["git", "-C", str(BENCHMARKS), "rev-parse", "--is-shallow-repository"]
    if subprocess.run(git, capture_output=True, text=True).stdout.strip() != "false":
        pytest.skip("here is no git, or not the whole history")
    words = ["git", "-C", str(BENCHMARKS.parent), "rev-parse", "HEAD:src/vitreous"]
    assert records.in_history(subprocess.run(words, capture_output=True, text=True).stdout.strip())
    assert not any(map(records.in_history, ("HEAD:src", "HEAD", "", "0" * 40)))
    words[-1] = "HEAD:docs"
    assert not records.in_history(subprocess.run(words, capture_output=True, text=True).stdout.strip())
    monkeypatch.setattr(records.shutil, "which", lambda name: None)
    assert records.in_history("0" * 40)


def test_a_source_is_found_where_only_a_merge_has_it(records, monkeypatch, tmp_path):
    if shutil.which("git") is None:
        pytest.skip("here is no git")

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "results/records").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    git("init", "-b", "main")
    for branch, name in (("main", "a"), ("side", "b"), ("main", "c")):
        git("checkout", *(["-B", branch] if name != "c" else [branch]))
        (tmp_path / "src" / name).write_text(name)
        git("add", ".")
        git("commit", "-m", name)
    git("merge", "side", "-m", "both")
    monkeypatch.setattr(records, "PACKAGE", tmp_path / "src")
    monkeypatch.setattr(records, "PAGE", tmp_path / "results/records/README.md")
    assert records.in_history(git("rev-parse", "HEAD:src"))
    assert not records.in_history("0" * 40)


def test_a_mean_that_chance_may_have_lifted_over_the_mark_is_no_record(record):
    assert any("p = " in line for line in record(mark=95))
    assert any("94.5 % is none of the marks" in line for line in record(mark=94.5))
