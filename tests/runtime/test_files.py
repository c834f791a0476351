"""Where our own downloads are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitreous.runtime.files import cache_folder


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
