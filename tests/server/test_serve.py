"""Starting and ending: which port, which addresses, what is printed, and Ctrl-C."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from conftest import SMALL
from vitreous.cli.main import main
from vitreous.runtime.http import is_loopback
from vitreous.server import serve as module
from vitreous.server.jobs import JobQueue
from vitreous.server.security import allowed_hosts
from vitreous.server.serve import listen


def close(sockets):
    for each in sockets:
        each.close()


def explore_once(monkeypatch, capsys, *words):
    """What `vitreous explore` prints until it would wait for Ctrl-C, and the page's address."""
    pages = []
    monkeypatch.setattr(module.RunningExplorer, "wait", lambda page: pages.append(page))
    main(["explore", *SMALL, "--device", "cpu", *words])
    return capsys.readouterr().err.splitlines(), pages[0].url


def test_port_0_takes_a_free_one_and_says_which(monkeypatch, capsys):
    lines, url = explore_once(monkeypatch, capsys, "--port", "0")
    port = int(re.fullmatch(r"http://127.0.0.1:(\d+)/", url)[1])
    assert port > 0
    assert lines == [f"the explorer is at http://127.0.0.1:{port}/ (end it with Ctrl-C)"]


def test_threads_share_a_heap_before_the_first_one_begins(monkeypatch):
    done = []
    monkeypatch.setattr(module, "share_heap", lambda: done.append("heap"))
    monkeypatch.setattr(module, "JobQueue", lambda: done.append("jobs") or JobQueue())
    with module.RunningExplorer({}):
        assert done == ["heap", "jobs"]


@pytest.mark.slow
def test_a_port_in_use_is_said_before_an_address_is(capsys):
    taken = listen("127.0.0.1", 0)
    port = taken[0].getsockname()[1]
    with pytest.raises(SystemExit, match="2"):
        main(["explore", *SMALL, "--device", "cpu", "--port", str(port)])
    close(taken)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"port {port} of 127.0.0.1 is in use.*try --port 0", line)
    close(listen("127.0.0.1", port))  # what was left behind does not keep it


def test_a_stopped_page_frees_its_port_and_its_thread():
    before = threading.active_count()
    page = module.RunningExplorer({})
    port = int(re.search(r":(\d+)/", page.url)[1])
    assert page.url in repr(page)
    assert f'href="{page.url}"' in page._repr_html_()
    page.stop()
    page.stop()
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:  # what was begun at start-up is finished
        time.sleep(0.05)
    assert threading.active_count() <= before
    close(listen("127.0.0.1", port))


@pytest.mark.parametrize(
    ("host", "why"), [("nowhere.invalid", "no address is known"), ("192.0.2.1", "no address of this")]
)
def test_an_address_of_somebody_else_is_refused_in_one_line(host, why):
    with pytest.raises(ValueError, match=why) as caught:
        listen(host, 0)
    assert "127.0.0.1" in str(caught.value)


def test_ipv6_loopback_needs_no_token_and_localhost_is_one_port():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    sockets = listen("::1", 0)
    assert sockets[0].family == socket.AF_INET6
    assert is_loopback("::1")
    assert f"[::1]:{sockets[0].getsockname()[1]}" in allowed_hosts("::1", sockets[0].getsockname()[1])
    close(sockets)
    sockets = listen("localhost", 0)
    assert len({each.getsockname()[1] for each in sockets}) == 1
    assert all(is_loopback(each.getsockname()[0]) for each in sockets)
    close(sockets)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_for_everyone_comes_with_a_warning_and_a_token(monkeypatch, capsys, host):
    try:
        close(listen(host, 0))
    except ValueError:
        pytest.skip(f"{host} is not available on this machine")
    lines, _ = explore_once(monkeypatch, capsys, "--host", host, "--port", "0")
    assert f"beware: with --host {host} other machines can reach" in lines[0]
    assert re.search(r"\?token=\S{24} ", lines[1])


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_ends_it_at_once_with_requests_under_way(tmp_path):
    words = [sys.executable, "-m", "vitreous", "explore", *SMALL, "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        port = next(int(found[1]) for line in process.stderr if (found := re.search(r":(\d+)/", line)))
        image = tmp_path / "noise.png"
        pixels = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(image, compress_level=1)
        body, begun = image.read_bytes(), threading.Barrier(5)

        def ask(number):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.connect()
            begun.wait()
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", f"/api/explain?model=packaged:cifar10&client={number}", body)
                connection.getresponse().read()

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        slow = socket.create_connection(("127.0.0.1", port))
        line = "POST /api/explain?model=packaged:cifar10 HTTP/1.1"
        slow.sendall(f"{line}\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9\r\n\r\nx".encode())
        begun.wait()
        until = time.monotonic() + 10
        while time.monotonic() < until:  # until one is being worked on
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/api/progress?client=0")
            if json.loads(connection.getresponse().read()):
                break
        pressed = time.monotonic()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):
            while True:  # until nobody listens there any more
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                assert time.monotonic() - pressed < 3
                time.sleep(0.01)
        for thread in threads:
            thread.join(3)  # waiting clients got an answer, and not after the work was done
        assert not any(thread.is_alive() for thread in threads)
        left = process.stderr.read()
        assert process.wait(30) == 130  # Python takes its own time to put torch away
        assert "Traceback" not in left
        slow.close()
