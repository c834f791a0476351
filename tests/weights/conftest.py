"""Folders, servers and locks that tests of weights share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from loopback_hub import LoopbackFiles, LoopbackHub

from vitreous.weights.safety import pickle_scan as pickle_scan


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cache, and the working folder, lie in the test's own folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for variable in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "http_proxy",
        "HTTP_PROXY",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with LoopbackHub() as server:
        server.patch_client(monkeypatch, tmp_path / "hub")
        yield server


@pytest.fixture
def files() -> Iterator[LoopbackFiles]:
    with LoopbackFiles() as server:
        yield server


@pytest.fixture
def unbuilt(monkeypatch):
    """Refusals must come before torch is asked to build anything."""

    def build(*_, **__):
        pytest.fail("torch.load was reached")

    monkeypatch.setattr(torch, "load", build)
