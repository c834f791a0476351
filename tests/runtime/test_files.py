"""Where our own downloads are kept, and arrays in files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from vitreous.runtime.files import cache_folder, check_writable_file, check_writable_folder, write_arrays


def test_the_cache_folder_is_the_argument_else_the_variable_else_the_platforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    assert cache_folder(tmp_path / "mine") == tmp_path / "mine"
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("VITREOUS_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    if os.name == "posix":
        assert cache_folder() == tmp_path / ".cache" / "vitreous"


@pytest.mark.parametrize("compressed", [True, False])
def test_arrays_are_read_back_from_the_very_name_they_were_written_under(tmp_path: Path, compressed: bool) -> None:
    path = write_arrays(tmp_path / "arrays", {"one": np.eye(40), "names": np.array(["a", "b"])}, compressed=compressed)
    assert [found.name for found in tmp_path.iterdir()] == [path.name] == ["arrays"]
    with np.load(path, allow_pickle=False) as held:
        assert held["one"].tolist() == np.eye(40).tolist()
        assert held["names"].tolist() == ["a", "b"]
    assert (path.stat().st_size < 8 * 40 * 40) == compressed


def test_neither_standard_output_nor_a_suffix_alone_is_a_file_or_a_folder_to_write(tmp_path: Path) -> None:
    for name, message in (("-", "standard output"), (".csv", "a suffix without a name: try .*out.csv")):
        for check in (check_writable_file, lambda path: check_writable_folder(path, "-o")):
            with pytest.raises(ValueError, match=message):
                check(tmp_path / name)
    (tmp_path / ".csv").mkdir()
    check_writable_folder(tmp_path / ".csv", "-o")  # it is there: it is meant


def test_the_name_of_a_file_is_not_made_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"result.json is the name of a file, expected a folder: try .*result with -o"):
        check_writable_folder(tmp_path / "result.json", "-o")
    check_writable_folder(tmp_path / "v0.5", "-o")
