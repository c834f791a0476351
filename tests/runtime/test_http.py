"""Reads of the web: bounded in bytes and time, redirects checked, errors in one line. The server is on loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import Request

import pytest
from loopback_hub import LoopbackFiles

from vitreous.runtime import http
from vitreous.runtime.http import CheckedRedirects, is_private, read_address

DATA = bytes(range(256)) * 8


@pytest.fixture
def files() -> Iterator[LoopbackFiles]:
    with LoopbackFiles({"/cat.jpg": DATA, "/my cät.jpg": DATA}) as files:
        yield files


def read(url: str, limit: int = 1 << 20, seconds: float = 10.0) -> bytes:
    return read_address(url, limit=limit, seconds=seconds, expected="the image")


def test_an_address_is_read_whole(files):
    assert read(f"{files.url}/cat.jpg") == DATA
    assert read(f"{files.url}/my cät.jpg") == DATA
    files.redirects["/moved.jpg"] = "/cat.jpg"
    assert read(f"{files.url}/moved.jpg?size=3") == DATA


def test_more_bytes_than_allowed_are_refused(files):
    assert read(f"{files.url}/cat.jpg", limit=len(DATA)) == DATA
    with pytest.raises(ValueError, match="larger than 0 MiB: download it first"):
        read(f"{files.url}/cat.jpg", limit=len(DATA) - 1)


class Dripping(BaseHTTPRequestHandler):
    """Announces no length, and sends for ever."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 100)
                time.sleep(0.02)
        except OSError:
            pass

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def dripping() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/x.jpg"
    server.shutdown()
    server.server_close()


def test_an_answer_that_never_ends_is_cut_by_bytes_and_by_time(dripping):
    with pytest.raises(ValueError, match="larger than"):
        read(dripping, limit=500)
    begun = time.monotonic()
    with pytest.raises(ConnectionError, match=r"took longer than 0\.3 s: download it first"):
        read(dripping, seconds=0.3)
    assert time.monotonic() - begun < 5


def test_errors_are_one_line(files):
    with pytest.raises(FileNotFoundError, match="there is no file at"):
        read(f"{files.url}/dog.jpg")
    files.refused.add("/cat.jpg")
    with pytest.raises(PermissionError, match="answered 403 Forbidden: check the name"):
        read(f"{files.url}/cat.jpg")
    files.refused.clear()
    files.broken.add("/cat.jpg")
    with pytest.raises(ConnectionError, match="broke off: expected 2,048 bytes, got 1,024"):
        read(f"{files.url}/cat.jpg")
    files.headers["Content-Type"] = "text/html"
    with pytest.raises(ValueError, match="answered with a web page: expected the image itself"):
        read(f"{files.url}/cat.jpg")
    files.close()
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        read(f"{files.url}/cat.jpg")
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        read("http://127.0.0.1:1/cat.jpg")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("https://example.org/a", "http://example.org/b", "not encrypted"),
        ("http://example.org/a", "http://127.0.0.1/b", "an address of this network"),
        ("http://example.org/a", "http://169.254.169.254/latest", "an address of this network"),
        ("https://example.org/a", "https://localhost/b", "an address of this network"),
        ("http://example.org/a", "ftp://example.org/b", "not encrypted"),
        ("http://example.org/a", "file:///etc/hostname", "not encrypted"),
    ],
)
def test_a_redirect_to_somewhere_less_safe_is_refused(old, new, reason):
    with pytest.raises(ValueError, match=reason):
        CheckedRedirects(plain=True).redirect_request(Request(old), None, 302, "Found", {}, new)


def test_a_redirect_to_somewhere_as_safe_is_followed():
    for old, new in (
        ("http://example.org/a", "https://example.com/b"),
        ("http://127.0.0.1/a", "http://192.168.0.7/b"),
    ):
        assert CheckedRedirects(plain=True).redirect_request(Request(old), None, 302, "Found", {}, new) is not None


def test_which_addresses_are_private():
    assert all(is_private(host) for host in ("10.0.0.1", "::1", "fe80::1", "169.254.169.254", "a.localhost"))
    assert not any(is_private(host) for host in ("8.8.8.8", "example.org"))


def read_public(url: str) -> bytes:
    return read_address(url, limit=1 << 20, seconds=10, expected="the image", public=True)


def test_this_machine_and_its_network_are_not_fetched_for_a_page(files, monkeypatch):
    with pytest.raises(ValueError, match="127.0.0.1 is an address of this machine or its network"):
        read_public(f"{files.url}/cat.jpg")

    for url in ("file:///etc/passwd", "ftp://example.org/cat.jpg", "https:///cat.jpg", "cat.jpg"):
        with pytest.raises(ValueError, match="begins with https:// or http://"):
            read_public(url)


def test_a_name_is_looked_up_once_and_all_its_addresses_are_checked(files, monkeypatch):
    answers = [["93.184.215.14", "10.0.0.1"], ["192.168.0.7"], ["::1"]]
    looked_up = []

    def look_up(host, port, **options):
        looked_up.append(host)
        return [
            (http.socket.AF_INET, http.socket.SOCK_STREAM, 6, "", (each, port)) for each in answers[len(looked_up) - 1]
        ]

    monkeypatch.setattr(http.socket, "getaddrinfo", look_up)
    for count in (1, 2, 3):
        with pytest.raises(ValueError, match="cats.example is an address of this machine or its network"):
            read_public("http://cats.example/cat.jpg")
        assert len(looked_up) == count


def test_a_redirect_is_checked_again_when_it_is_connected_to(files, monkeypatch):
    monkeypatch.setattr(http, "is_public", lambda address: address == "127.0.0.1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy would reach whatever it likes
    assert read_public(f"{files.url}/cat.jpg") == DATA
    files.redirects["/moved.jpg"] = f"{files.url}/cat.jpg".replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(ValueError, match="127.0.0.2 is an address of this machine or its network"):
        read_public(f"{files.url}/moved.jpg")
