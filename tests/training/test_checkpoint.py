"""Checkpoints: whole or not at all, proven by their hash, rotated."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from vitreous.training import checkpoint
from vitreous.training.checkpoint import RunPosition, latest, write
from vitreous.training.config import TrainConfig
from vitreous.training.run_folder import RunFolder
from vitreous.weights import save


class Held:
    """As much of a `State` as is written."""

    def __init__(self, update):
        self.update = update

    def copy(self):
        return {"weight": torch.full((50,), float(self.update))}


def put(folder, update, keep=2):
    return write(folder, Held(update), RunPosition(update, update // 10, update % 10, 1.5), keep)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def flip_a_byte(path, offset=-20):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_what_was_written_comes_back(tmp_path):
    put(tmp_path, 123)
    position, path, problems = latest(tmp_path)
    assert position == RunPosition(123, 12, 3, 1.5)
    assert torch.equal(load_file(path)["weight"], torch.full((50,), 123.0))
    assert problems == []


def test_no_checkpoint_is_no_error(tmp_path):
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None


def test_the_newest_are_kept(tmp_path):
    for update in (9, 10, 100):
        put(tmp_path, update)
    assert names(tmp_path) == [f"step-{n:09d}.{end}" for n in (10, 100) for end in ("json", "safetensors")]


@pytest.mark.parametrize("offset", [-1, -20, 0, 9, 60])
def test_one_flipped_bit_is_found_and_the_one_before_taken(tmp_path, offset):
    put(tmp_path, 1)
    flip_a_byte(put(tmp_path, 2), offset)
    position, path, problems = latest(tmp_path)
    assert position.update == 1
    assert load_file(path)["weight"][0] == 1
    assert len(problems) == 1
    assert "step-000000002.safetensors is damaged" in problems[0]
    assert "using an older one" in problems[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"update": 2}', "null"])
def test_a_damaged_description_is_passed_over_too(tmp_path, text):
    put(tmp_path, 1)
    put(tmp_path, 2).with_suffix(".json").write_text(text)
    position, _, problems = latest(tmp_path)
    assert position.update == 1
    assert "step-000000002" in problems[0]


def test_a_missing_file_is_passed_over(tmp_path):
    put(tmp_path, 1)
    put(tmp_path, 2).unlink()
    assert latest(tmp_path)[0].update == 1


def test_nothing_whole_is_an_error_that_names_all_and_says_what_to_do(tmp_path):
    for update in (1, 2):
        flip_a_byte(put(tmp_path, update))
    with pytest.raises(ValueError, match=r"every checkpoint .* is damaged.*000000002.*000000001.*Delete the folder"):
        latest(tmp_path)


def test_what_a_killed_process_left_is_ignored_and_swept(tmp_path):
    put(tmp_path, 1)
    (tmp_path / ".step-000000002.safetensors.abcdefgh").write_bytes(b"half")
    (tmp_path / "step-000000002.safetensors").write_bytes(b"its .json was never written")
    assert latest(tmp_path)[0].update == 1
    put(tmp_path, 3)
    assert names(tmp_path) == [f"step-{n:09d}.{end}" for n in (1, 3) for end in ("json", "safetensors")]


def test_a_file_that_a_library_makes_beside_its_own_is_swept_too(tmp_path, monkeypatch):
    """safetensors 0.8 writes a file `.tmpXXXXXX` and moves it; a process killed meanwhile leaves both."""
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    real = save.save_file

    def save_file(tensors, path, metadata):
        path.with_name(".tmpeqr0yx").write_bytes(b"half")
        shutil.copytree(whole.path, killed.path, dirs_exist_ok=True)
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(save, "save_file", save_file)
    put(whole.checkpoints, 1)
    save.write_safetensors(whole.model / "model.safetensors", {"weight": torch.zeros(2)})
    assert len(list(killed.path.rglob(".tmpeqr0yx"))) == 2  # what was copied is what the kill leaves
    checkpoint.remove_incomplete(killed.checkpoints)
    killed.begin(TrainConfig(model="vit_femto_patch4_32", data="digits"))
    assert [path.name for path in killed.path.rglob(".*")] == []


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_does_not_take_the_place_of_a_good_one(tmp_path, keep):
    put(tmp_path, 10, keep)
    flip_a_byte(put(tmp_path, 20, 2))
    put(tmp_path, 15, keep)  # the run goes on from 10, and is saved before it comes to 20 again
    position, _, problems = latest(tmp_path)
    assert position.update == 15
    assert problems == []
    assert len(names(tmp_path)) == 2 * keep


@pytest.mark.parametrize("fails", ["write_safetensors", "write_json"])
def test_a_failed_write_leaves_the_one_before(tmp_path, fails, monkeypatch):
    put(tmp_path, 1)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, fails, full)
    with pytest.raises(OSError, match="No space"):
        put(tmp_path, 2)
    monkeypatch.undo()
    assert latest(tmp_path)[0].update == 1
    put(tmp_path, 3)
    assert [json.loads((tmp_path / name).read_text())["update"] for name in names(tmp_path) if "json" in name] == [1, 3]
