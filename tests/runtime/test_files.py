"""Where our own downloads are kept, and arrays in files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from vitreous.runtime.files import cache_folder, write_arrays


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
