"""Downloads from a URL and from the Hub: complete and checked, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from urllib.request import Request

import pytest
from loopback_hub import Answer, LoopbackFiles, LoopbackHub, leftovers

from vitreous.runtime import progress
from vitreous.runtime.http import CheckedRedirects, is_loopback
from vitreous.weights import download as downloading
from vitreous.weights.fetch import fetch

pytestmark = pytest.mark.usefixtures("own_folders")


WEIGHTS = bytes(range(256)) * 40


def test_a_broken_download_leaves_nothing_and_a_retry_succeeds(files: LoopbackFiles, tmp_path: Path) -> None:
    files.files["/vit.pth"] = WEIGHTS
    files.broken.add("/vit.pth")
    half = len(WEIGHTS) // 2
    with pytest.raises(ConnectionError, match=f"broke off: expected {len(WEIGHTS):,} bytes, got {half:,}"):
        fetch(f"{files.url}/vit.pth")
    assert leftovers(tmp_path / "cache") == []
    files.broken.clear()
    assert fetch(f"{files.url}/vit.pth").weights[0].read_bytes() == WEIGHTS


def test_an_interrupted_download_leaves_nothing(
    files: LoopbackFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    files.files["/vit.pth"] = WEIGHTS
    monkeypatch.setattr(downloading.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(f"{files.url}/vit.pth")
    assert leftovers(tmp_path / "cache") == []


def test_a_silent_server_times_out(files: LoopbackFiles, tmp_path: Path) -> None:
    silent = threading.Event()

    def wait(path: str) -> Answer:
        silent.wait(5)
        return Answer(404)

    files.answer = wait  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="timed out"):
        downloading.download(f"{files.url}/vit.pth", tmp_path / "vit.pth", timeout=0.2)
    silent.set()
    assert not (tmp_path / "vit.pth").exists()


def test_a_web_page_is_not_a_weights_file(files: LoopbackFiles, tmp_path: Path) -> None:
    files.files["/vit.pth"] = b"<html>please log in</html>"
    files.headers["Content-Type"] = "text/html; charset=utf-8"
    with pytest.raises(ValueError, match="answered with a web page: expected the weights file itself"):
        fetch(f"{files.url}/vit.pth")
    assert leftovers(tmp_path / "cache") == []


def test_a_redirect_may_not_leave_for_an_unencrypted_address(files: LoopbackFiles) -> None:
    files.files["/vit.pth"] = WEIGHTS
    files.redirects["/moved.pth"] = "/vit.pth"
    files.redirects["/away.pth"] = "http://example.org/vit.pth"
    files.redirects["/file.pth"] = "file:///etc/hostname"
    assert fetch(f"{files.url}/moved.pth").weights[0].read_bytes() == WEIGHTS
    with pytest.raises(ValueError, match=r"http://example.org/vit.pth is not encrypted"):
        fetch(f"{files.url}/away.pth")
    with pytest.raises((ValueError, ConnectionError)):
        fetch(f"{files.url}/file.pth")
    encrypted, plain = Request("https://example.org/vit.pth"), "http://127.0.0.1/vit.pth"
    with pytest.raises(ValueError, match=r"redirects to http://127\.0\.0\.1/vit\.pth, which is not encrypted"):
        CheckedRedirects().redirect_request(encrypted, None, 302, "Found", {}, plain)


def test_a_progress_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for watched, show, drawn in [(True, True, True), (True, False, False), (False, True, False)]:
        monkeypatch.setattr("sys.stderr.isatty", lambda watched=watched: watched)
        if not drawn:
            monkeypatch.setitem(sys.modules, "rich.progress", None)  # not even imported
        with downloading._bar("vit.pth", 10, show=show) as advance:
            advance(10)
        assert ("vit.pth" in capsys.readouterr().err) is drawn


def test_a_log_gets_a_line_of_a_download_now_and_then(
    files: LoopbackFiles, tmp_path: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.0)
    files.files["/vit.pth"] = WEIGHTS
    downloading.download(f"{files.url}/vit.pth", tmp_path / "vit.pth")
    assert capsys.readouterr().err.startswith("downloading vit.pth: 0 of 0 MB, about ")
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    fetch("tiny/vit")
    assert capsys.readouterr().err.startswith("downloading ")


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Hub client try again at once rather than after a second."""
    from huggingface_hub import file_download

    monkeypatch.setattr(file_download, "time", types.SimpleNamespace(sleep=lambda seconds: None))


def test_a_broken_hub_download_leaves_nothing_and_a_retry_succeeds(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    hub.broken.add("/tiny/vit/resolve/main/model.safetensors")
    with pytest.raises(ConnectionError, match=r"tiny/vit/model\.safetensors.*cannot be reached") as caught:
        fetch("tiny/vit")
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path / "hub") == []
    hub.broken.clear()
    assert fetch("tiny/vit").weights[0].read_bytes() == WEIGHTS


def test_hub_bytes_of_another_length_are_refused(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    hub.wrong["/tiny/vit/resolve/main/model.safetensors"] = b"short"
    message = rf"tiny/vit/model\.safetensors could not be downloaded: .*size {len(WEIGHTS)} but has size 5"
    with pytest.raises(OSError, match=message) as caught:
        fetch("tiny/vit")
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path / "hub") == []


@pytest.mark.slow
def test_the_users_own_hub_settings_are_kept(tmp_path: Path) -> None:
    code = "from vitreous.weights.fetch import fetch; print(fetch('tiny/vit').weights[0].read_text())"
    with LoopbackHub() as hub:
        hub.add("tiny/vit", {"model.safetensors": b"from the mirror"})
        environment = {**os.environ, **hub.environment(tmp_path / "home")}
        for _ in ("online", "offline"):
            answer = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
            )
            assert answer.stdout.strip() == "from the mirror", answer.stderr
            environment["HF_HUB_OFFLINE"] = "1"
            hub.close()
    assert (tmp_path / "home" / "hub" / "models--tiny--vit").is_dir()


def test_no_progress_leaves_the_clients_bars_as_they_were(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.utils import are_progress_bars_disabled

    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    original, seen = huggingface_hub.hf_hub_download, []

    def spy(*arguments, **options):
        seen.append(are_progress_bars_disabled())
        return original(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", spy)
    before = are_progress_bars_disabled()
    fetch("tiny/vit", progress=False)
    assert set(seen) == {True}
    assert are_progress_bars_disabled() == before


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_addresses_of_this_very_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", "localhost.example.org", "127.1", ""])
def test_addresses_that_others_can_reach_or_that_lie_elsewhere(host):
    assert not is_loopback(host)
