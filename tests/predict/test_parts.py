"""A folder of parts: each image exactly once, whoever writes, whoever is killed, however often it is begun again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.cli.main import main
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.parts import MANIFEST, TOKEN_BYTES, PartsFolder, token_part_size
from vitreous.runtime.distributed import Rank

SCHEMA = pyarrow.schema([("image", pyarrow.string()), ("length", pyarrow.int32()), ("error", pyarrow.string())])
ALONE = Rank()
ABOUT = {"command": "measure", "model": "ruler", "fingerprint": "0", "precision": "fp32"}


def columns(rows):
    return {"length": rows, "error": [None if row else "no name" for row in rows]}


def work(parts, rank=ALONE, stop=10**9):
    """Do this process's share, or as much of it as a process does that is killed after `stop` images."""
    for done in parts.fill(parts.begin(rank), lambda names: map(len, names), columns):
        if done > stop:
            return


def parts_of(folder, count=10, size=3, **changes):
    return PartsFolder(Path(folder), [f"{i}.png" for i in range(count)], size, SCHEMA, ABOUT | changes)


def rows(folder):
    return pyarrow.parquet.read_table(folder).to_pylist()


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 4), st.integers(0, 12), st.integers(1, 4))
def test_each_image_is_there_exactly_once_and_in_order(tmp_path_factory, count, size, ranks, stop, later):
    parts = parts_of(tmp_path_factory.mktemp("parts"), count, size)
    for rank in range(ranks):
        work(parts, Rank(rank, ranks), stop)
    for rank in range(later):  # and goes on with another number of processes
        work(parts, Rank(rank, later))
    assert [row["image"] for row in rows(parts.folder)] == parts.names
    assert parts.wait(range(len(parts)), patience=0) == []


def test_parts_that_are_there_are_not_made_again(tmp_path):
    work(parts_of(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(before) == 1 + 4
    assert parts_of(tmp_path).begin(Rank()) == []
    work(parts_of(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("keep", [0, 4, 300])
def test_a_damaged_part_is_noticed_and_made_again(tmp_path, keep):
    work(parts_of(tmp_path))
    whole, path = rows(tmp_path), parts_of(tmp_path).path(2)
    path.write_bytes(path.read_bytes()[:keep])
    assert parts_of(tmp_path).begin(Rank()) == [2]
    work(parts_of(tmp_path))
    assert rows(tmp_path) == whole


def test_what_a_kill_left_half_written_is_swept_by_the_process_that_owns_it(tmp_path):
    parts = parts_of(tmp_path)
    work(parts, Rank(0, 2))
    for name in (".part-000001.parquet.x1", ".part-000002.parquet.x2", f".{MANIFEST}.x3", ".mine"):
        (tmp_path / name).touch()
    parts.begin(Rank(1, 2))
    assert not (tmp_path / ".part-000001.parquet.x1").exists()
    assert (tmp_path / ".part-000002.parquet.x2").exists()  # the other process may just be writing it
    parts.begin(Rank(0, 2))
    assert {path.name for path in tmp_path.glob(".*")} == {".mine"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": 11}, r"another number of images \(10 then, 11 now\)"),
        ({"size": 4}, r"another part size \(3 then, 4 now\)"),
        ({"model": "tape"}, r"another model \('ruler' then, 'tape' now\)"),
        ({"fingerprint": "1"}, "other weights or another preprocessing"),
        ({"precision": "bf16"}, "another precision"),
        ({"merge": "8"}, "another --merge"),
    ],
)
def test_a_folder_that_was_begun_otherwise_is_refused(tmp_path, changed, message):
    work(parts_of(tmp_path))
    with pytest.raises(ValueError, match=message + ".*give another folder with -o"):
        work(parts_of(tmp_path, **changed))
    with pytest.raises(ValueError, match=message):
        work(parts_of(tmp_path, **changed), Rank(1, 2))


def test_as_many_images_of_other_names_are_refused(tmp_path):
    work(parts_of(tmp_path))
    other = PartsFolder(tmp_path, [f"{i}.jpg" for i in range(10)], 3, SCHEMA, ABOUT)
    with pytest.raises(ValueError, match="images of other names"):
        work(other)


def test_images_that_changed_under_their_names_are_refused(tmp_path):
    images = [tmp_path / f"{i}.png" for i in range(4)]
    for image in images:
        image.write_bytes(b"four")
    names = [*map(str, images), "photos.zip/a.png", "https://example.org/b.png"]
    parts = PartsFolder(tmp_path / "parts", names, 3, SCHEMA, ABOUT)
    work(parts)
    work(parts)
    images[2].write_bytes(b"other")
    with pytest.raises(ValueError, match="image files of other sizes: give another folder"):
        work(parts)
    assert parts.begin(Rank(1, 2)) == []  # the first process says so for all


def test_a_folder_of_other_parquet_files_is_refused(tmp_path):
    (tmp_path / "mine.parquet").touch()
    with pytest.raises(ValueError, match="holds Parquet files and no _parts.json"):
        work(parts_of(tmp_path))
    (tmp_path / "mine.parquet").rename(tmp_path / MANIFEST)
    with pytest.raises(ValueError, match="damaged"):
        work(parts_of(tmp_path))


def test_nothing_is_written_before_the_first_process_has_begun(tmp_path):
    with pytest.raises(TimeoutError, match="first process"):
        parts_of(tmp_path).begin(Rank(1, 2), patience=0.1)
    assert not list(tmp_path.iterdir())


def test_the_first_process_tells_which_parts_are_left_to_others(tmp_path):
    work(parts_of(tmp_path), Rank(0, 2))
    assert parts_of(tmp_path).wait(range(4), patience=0.2) == [1, 3]


# --- the commands ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(small_folder):
    return str(small_folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for i in range(40):
        Image.fromarray(draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def test_embed_to_a_folder_equals_embed_to_a_file(model, images, tmp_path, capsys):
    main(["embed", str(images), "--model", model, "-o", str(tmp_path / "one.parquet")])
    main(["embed", str(images), "--model", model, "-o", str(tmp_path / "parts"), "--part-size", "16"])
    assert "40 images in 3 parts" in capsys.readouterr().out
    one, many = (pyarrow.parquet.read_table(tmp_path / name) for name in ("one.parquet", "parts"))
    assert many.column_names == ["image", "features", "error"]
    assert many.schema.field("features").type == pyarrow.list_(pyarrow.float32())  # a part may hold missing ones
    assert many.schema.metadata == one.schema.metadata
    assert many["error"].null_count == 40
    for name in ("image", "features"):
        assert many[name].to_pylist() == one[name].to_pylist()


def test_patch_features_in_a_folder_equal_those_in_a_file(model, images, tmp_path, capsys):
    words = ["embed", str(images), "--model", model, "--tokens"]
    main([*words, "-o", str(tmp_path / "one.npy")])
    assert "40 images × 4×4 patches × 48 features" in capsys.readouterr().out
    main([*words, "-o", str(tmp_path / "parts"), "--part-size", "16"])
    main([*words, "-o", str(tmp_path / "usual"), "--precision", "fp16"])
    capsys.readouterr()
    one, many = np.load(tmp_path / "one.npy"), pyarrow.parquet.read_table(tmp_path / "parts")
    assert many.column_names == ["image", "rows", "columns", "features", "error"]
    assert json.loads(many.schema.metadata[b"vitreous.shape"]) == [4, 4, 48]
    assert many["image"].to_pylist() == json.loads((tmp_path / "one.npy.json").read_text())["images"]
    assert np.array_equal(np.array(many["features"].to_pylist(), np.float32).reshape(one.shape), one)
    assert rows(tmp_path / "parts")[7]["rows"] == rows(tmp_path / "parts")[7]["columns"] == 4
    usual = pyarrow.parquet.read_table(tmp_path / "usual")
    assert len(list((tmp_path / "usual").glob("part-*"))) == 1
    assert usual.schema.field("features").type == pyarrow.list_(pyarrow.float16())
    with pytest.raises(SystemExit):
        main([*words[:-1], "-o", str(tmp_path / "parts"), "--part-size", "16"])
    assert "another command ('embed --tokens' then, 'embed' now)" in capsys.readouterr().err


def test_a_part_of_patch_features_fits_memory():
    for image_size, width, wanted in ((32, 48, 1024), (224, 768, 256), (518, 1536, 16)):
        with torch.device("meta"):
            big = ViT(ViTConfig(image_size=image_size, patch_size=16 if image_size < 500 else 14, width=width, depth=1))
        found = token_part_size(big, "fp32")
        assert found == wanted
        assert found == 1024 or TOKEN_BYTES // 2 < found * 4 * big.layout.patches * width <= TOKEN_BYTES
        assert token_part_size(big, "fp16") == min(1024, 2 * wanted)


def test_pandas_reads_the_folder(model, images, tmp_path):
    pandas = pytest.importorskip("pandas")
    main(["embed", str(images), "--model", model, "-o", str(tmp_path / "parts"), "--part-size", "16"])
    assert len(pandas.read_parquet(tmp_path / "parts")) == 40


def test_classify_writes_the_answers_that_it_prints(model, images, tmp_path, capsys):
    words = ["classify", str(images), "--model", model, "--top", "3"]
    main([*words, "--json"])
    said = json.loads(capsys.readouterr().out)
    main([*words, "-o", str(tmp_path / "three"), "--part-size", "16"])
    for row, answer in zip(rows(tmp_path / "three"), said, strict=True):
        best = answer["predictions"]
        assert row["image"] == answer["image"]
        assert (row["class_name"], row["index"]) == (best[0]["class_name"], best[0]["index"])
        assert row["probability"] == pytest.approx(best[0]["probability"])
        assert row["class_names"] == [p["class_name"] for p in best]
        assert row["probabilities"] == pytest.approx([p["probability"] for p in best])
    main(["classify", str(images), "--model", model, "--top", "1", "-o", str(tmp_path / "one")])
    assert list(rows(tmp_path / "one")[0]) == ["image", "class_name", "index", "probability", "error"]


@pytest.mark.parametrize("command", ["embed", "embed --tokens", "classify"])
def test_an_unreadable_image_is_a_row_with_its_error(command, model, tmp_path, capsys):
    album = tmp_path / "album"
    album.mkdir()
    Image.new("RGB", (9, 9), "teal").save(album / "1.png")
    (album / "2.png").touch()
    (album / os.fsdecode(b"caf\xe9.png")).touch()  # a name that is no text
    words = [*command.split(), str(album), "--model", model, "-o", str(tmp_path / "parts"), "--part-size", "1"]
    for _ in range(2):  # told again by a run that has nothing left to do
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert "2.png: empty file" in error
        assert "2 of 3 images could not be read" in error
    good, *bad = rows(tmp_path / "parts")
    assert good["error"] is None
    for row in bad:
        assert row.pop("error") == "empty file (0 bytes): copy or download it again"
        assert Path(row.pop("image")).name in ("2.png", r"caf\udce9.png")
        assert set(row.values()) == {None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["embed", "-o", "all.parquet"], "say -o all"),
        (["embed", "--tokens", "-o", "all.npy"], "say -o all"),
        (["classify"], "name it with -o"),
        (["classify", "-o", "all.csv"], "a folder"),
    ],
)
def test_several_processes_want_a_folder(words, message, images, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as stop:
        main([words[0], str(images), *words[1:]])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vitreous: rank 0: ")
    assert message in line
    assert not list(tmp_path.iterdir())


# --- killed -------------------------------------------------------------------------------------------


def start(*words, processes):
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launch, "-m", "vitreous", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def family(pid):
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = children.read_text().split() if children.exists() else []
    return [pid, *(one for child in found for one in family(int(child)))]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_embed_killed_on_two_processes_and_resumed_gives_each_image_once(model, images, tmp_path):
    album = tmp_path / "album"
    album.mkdir()
    for i in range(1500):
        (album / f"{i}.png").symlink_to(images / f"{i % 40}.png")
    words = ["embed", str(album), "--model", model, "--part-size", "16", "--device", "cpu"]
    main([*words, "-o", str(tmp_path / "whole")])
    whole = rows(tmp_path / "whole")
    assert [row["image"] for row in whole] == [str(album / f"{i}.png") for i in range(1500)]
    parts = tmp_path / "parts"
    for processes in (2, 2, 1):
        before = len(list(parts.glob("part-*")))
        process = start(*words, "-o", str(parts), processes=processes)
        if processes == 2:
            while process.poll() is None and len(list(parts.glob("part-*"))) < before + 4:
                time.sleep(0.002)
            for pid in family(process.pid):
                os.kill(pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
        if processes == 2:
            assert before + 4 <= len(list(parts.glob("part-*"))) < 94, said  # neither before the work nor after it
    assert "1,500 images in 94 parts" in said
    assert rows(parts) == whole  # the same names and the same bits
    assert not list(parts.glob(".*"))
