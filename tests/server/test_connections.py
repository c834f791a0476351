"""A real server on loopback and clients that misbehave: they dawdle, send without end, never read, speak nonsense."""

import asyncio
import contextlib
import io
import json
import logging
import socket
import threading
import time
from typing import ClassVar

import pytest
from PIL import Image

from vitreous.pages.explanation import Explanation
from vitreous.server.app import create_app
from vitreous.server.connections import REJECTED_BODY, REQUEST, UNREAD, TimedConnection
from vitreous.server.jobs import JobQueue
from vitreous.server.page_parts import Parts, Question
from vitreous.server.security import SecurityMiddleware, allowed_hosts
from vitreous.server.serve import ExplorerServer, listen, settings

SOON = 0.4  # seconds, where a real explorer has 30


class Hasty(TimedConnection):
    limit = 12
    timeouts: ClassVar = {REQUEST: SOON, REJECTED_BODY: 0.2, UNREAD: SOON}


class Kept(logging.Handler):
    """What the server complains about on standard error."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.received = []

    def emit(self, record):
        self.received.append(record.getMessage())


@contextlib.contextmanager
def no_complaints():
    """Whatever clients do, it is no error of ours."""
    kept, loggers = Kept(), [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addHandler(kept)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(kept)
    assert kept.received == []


@contextlib.contextmanager
def running(model, **options):
    sockets = listen("127.0.0.1", 0)
    port, jobs = sockets[0].getsockname()[1], JobQueue()
    guard = SecurityMiddleware(create_app({"small": model}, jobs), allowed_hosts("127.0.0.1", port), **options)
    config = settings(guard)
    config.http = Hasty
    server = ExplorerServer(config, jobs)
    thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    with no_complaints():
        try:
            yield port, server, guard
        finally:
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def shared_port(model):
    with running(model, max_seconds=SOON) as (port, _, _):
        yield port


@pytest.fixture
def port(shared_port):
    """A server that many tests send their nonsense to: each must find it in order, and leave it so."""
    with no_complaints():
        yield shared_port


def send(port, *pieces, pause=0.0, patience=12.0):
    """Everything that comes back until the server ends the connection, and after how many seconds it did."""
    begun, received = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.01 + pause)
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                if pause:
                    with contextlib.suppress(TimeoutError):
                        received += (heard := connection.recv(65536))
                        if not heard:
                            return received, time.monotonic() - begun
        connection.settimeout(patience)
        with contextlib.suppress(ConnectionError):
            while heard := connection.recv(65536):
                received += heard
    return received, time.monotonic() - begun


def head(port, line="GET /api/models", *more):
    return "\r\n".join([f"{line} HTTP/1.1", f"Host: 127.0.0.1:{port}", *more, "", ""]).encode("latin-1")


def status(received):
    return int(received.split(None, 2)[1]) if received else None


UPLOAD = "POST /api/ablate?model=small"


def answers(port):
    received, _ = send(port, head(port, "GET /api/models", "Connection: close"))
    return status(received) == 200


@pytest.mark.slow
def test_a_body_that_dawdles_is_told_so_and_cut_off(port):
    received, took = send(port, head(port, UPLOAD, "Content-Length: 1000"), *[b"x"] * 40, pause=0.05)
    assert status(received) == 408
    assert took < 10
    assert answers(port)


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [[], [b"G"] * 40, [b"GET / HTTP/1.1\r\n", *[b"a"] * 40]])
def test_a_request_that_never_comes_whole_is_cut_off(port, pieces):
    received, took = send(port, *pieces, pause=0.05)
    assert status(received) is None
    assert SOON * 0.8 < took < 10


@pytest.mark.slow
def test_what_is_sent_after_a_refusal_is_not_read_for_ever(model):
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    with running(model, max_bytes=1000) as (port, _, _):
        for line, expected in ((UPLOAD, 413), ("GET /api/models", 200)):
            received, took = send(port, head(port, line, "Transfer-Encoding: chunked"), *[chunk] * 300, pause=0.01)
            assert status(received) == expected
            assert took < 10


def test_a_length_that_lies_gets_an_answer_for_each_half(port):
    received, _ = send(port, head(port, UPLOAD, "Content-Length: 5"), b"x" * 70_000)
    assert status(received) == 400
    assert b"500" not in received
    assert status(send(port, head(port, UPLOAD, "Content-Length: 99999999999"), b"x")[0]) == 413


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_given_up(model):
    with running(model) as (port, server, _), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(head(port, "GET /api/samples/coffee") * 20)
        until = time.monotonic() + 4
        seen = set()
        while time.monotonic() < until and (server.server_state.connections or not seen):
            seen |= {each.state for each in list(server.server_state.connections)}
            time.sleep(0.02)
        assert UNREAD in seen
        assert not server.server_state.connections


def test_those_who_dawdle_make_room_for_those_who_ask(model, monkeypatch):
    monkeypatch.setattr(Hasty, "timeouts", {})  # nobody is cut off by the clock
    with running(model) as (port, server, _), contextlib.ExitStack() as stack:
        for i in range(40):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head(port, UPLOAD, "Content-Length: 1000") if i % 2 else b"GET")
        time.sleep(0.2)
        assert len(server.server_state.connections) <= Hasty.limit
        assert all(answers(port) for _ in range(5))


@pytest.mark.slow
def test_large_bodies_hold_only_so_much_together_and_give_it_back(model):
    with running(model, max_total_bytes=3 * 2**20) as (port, _, guard), contextlib.ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head(port, UPLOAD, f"Content-Length: {2 * 2**20}") + b"x" * (2**20 + 2**19))
        time.sleep(0.2)
        assert guard.total_bytes == 3 * 2**20
        large, small = b"x" * (2**20 + 1), b"no image, but small"
        for body, expected in ((large, 503), (small, 400)):
            received, _ = send(port, head(port, UPLOAD, f"Content-Length: {len(body)}", "Connection: close"), body)
            assert status(received) == expected
        stack.close()
        time.sleep(0.2)
        assert guard.total_bytes == 0


def test_a_client_that_leaves_while_it_sends_is_no_error_of_ours(model):
    with running(model) as (port, _, guard):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head(port, UPLOAD, "Content-Length: 1000") + b"x" * 10)
            time.sleep(0.1)
        time.sleep(0.2)
        assert guard.total_bytes == 0


def test_the_server_ends_at_once_whatever_is_under_way(model):
    with running(model) as (port, server, _), contextlib.ExitStack() as stack:
        begun_bodies = head(port, UPLOAD, "Content-Length: 1000") + b"x"
        for beginning in (b"", b"GET", begun_bodies):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(beginning)
        endless = threading.Event()
        job = server.jobs.pool.submit(endless.wait, 1.0)  # the one thread is busy, so the next waits in line
        waiting = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        waiting.sendall(head(port, UPLOAD, "Content-Length: 1") + b"x")
        time.sleep(0.2)
        begun = time.monotonic()
        server.should_exit = True
        while server.server_state.connections:
            time.sleep(0.01)
            assert time.monotonic() - begun < 5
        endless.set()
        job.result(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),  # TLS at a port that speaks none
        (b"GET / HTTP/1.1\r\n\r\n", {400}),  # without a Host
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", {421}),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", {404}),
        (b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", {400}),
        (b"GET /assets/%00 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", {404}),
        (b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", {400, None}),
        (b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", {404}),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n" + b"A: b\r\n" * 300_000 + b"\r\n", {400, None}),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n" + b"A: b\r\n" * 5_000 + b"\r\n", {200}),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9" + b"9" * 5000 + b"\r\n\r\n", {400, 413}),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: -1\r\n\r\n", {400}),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", {400}),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", {400, 405}),
        (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", {404, 405}),
        (
            b"POST /api/ablate?model=small HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 1\r\n\r\nxG\r\n\r\n",
            {400},
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {421}),
        (
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            {200},  # the page, as if no socket had been asked for
        ),
    ],
)
def test_nonsense_gets_a_status_and_no_error(request_, expected, port):
    received, _ = send(port, request_.replace(b"{port}", str(port).encode()))
    assert status(received) in expected
    assert answers(port)


def test_what_is_no_http_is_refused_as_everything_else_is(port):
    received, _ = send(port, f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: -1\r\n\r\n".encode())
    headers, _, body = received.partition(b"\r\n\r\n")
    assert status(received) == 400
    assert b"content-type: application/json" in headers
    assert json.loads(body) == {"detail": "Invalid HTTP request received."}


@pytest.mark.slow
def test_two_explorers_run_beside_each_other_and_do_not_answer_for_each_other(model):
    with running(model) as (one, _, _), running(model) as (other, _, _):
        assert one != other
        assert answers(one)
        assert answers(other)
        assert status(send(one, head(other))[0]) == 421
        assert json.loads(send(one, head(one))[0].partition(b"\r\n\r\n")[2])[0]["name"] == "small"


@pytest.fixture
def endless(monkeypatch):
    """Views that take for ever, until their job is cancelled; `steps` counts the checks."""
    steps = []

    def fill(explanation, payload, progress):
        yield {"predictions": [], "views": []}
        while True:
            steps.append(1)
            progress("a view without end")
            time.sleep(0.01)

    monkeypatch.setattr(Explanation, "fill", fill)
    return steps


def staged(port, client):
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    connection = socket.create_connection(("127.0.0.1", port))
    line = f"POST /api/explain?model=small&stages=true&client={client}"
    connection.sendall(head(port, line, f"Content-Length: {len(file.getvalue())}") + file.getvalue())
    connection.settimeout(10)
    assert status(connection.recv(4096)) == 200  # the first part is on its way
    return connection


def until(condition, patience=10.0):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_client_that_leaves_between_two_parts_frees_its_work(model, endless):
    with running(model) as (port, server, guard):
        connection = staged(port, "a")
        until(lambda: endless and server.jobs.active)
        connection.close()
        until(lambda: not server.jobs.active and guard.total_bytes == 0)
        time.sleep(0.1)
        count = len(endless)
        time.sleep(0.1)
        assert len(endless) == count


def test_a_newer_image_of_a_page_ends_the_parts_of_the_older_one(model, endless):
    with running(model) as (port, server, _), staged(port, "a") as first:
        until(lambda: endless)
        with staged(port, "a"):
            heard = b""
            with contextlib.suppress(TimeoutError):
                while b"a newer request took its place" not in heard and (more := first.recv(4096)):
                    heard += more
            assert b"a newer request took its place" in heard
            assert len(server.jobs.active) <= 1


def test_the_server_ends_at_once_between_two_parts(model, endless):
    with running(model) as (port, server, _), staged(port, "a"):
        until(lambda: endless)
        begun = time.monotonic()
        server.should_exit = True
        until(lambda: not server.server_state.connections)
        assert time.monotonic() - begun < 5


def test_an_older_request_between_its_jobs_does_not_end_the_newer_one(model):
    async def ask():
        jobs, quick = JobQueue(), threading.Event()
        older, newer = (Parts(Question(model), b"", "image") for _ in range(2))
        jobs.newest["a"] = older
        stream = older.stream(b"first", jobs, "a")
        await anext(stream)
        jobs.newest["a"] = newer
        first = asyncio.ensure_future(jobs.run("a", lambda cancel: quick.wait(5) and cancel.event.is_set(), quick=True))
        await asyncio.sleep(0.05)
        rest = [part async for part in stream]
        quick.set()
        return rest, await first

    rest, cancelled = asyncio.run(ask())
    assert b"a newer request took its place" in rest[0]
    assert not cancelled
