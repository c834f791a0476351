"""`RunningExplorer`: warm the explorer up and serve it from a background thread; its sockets and ports."""

import contextlib
import errno
import html
import ipaddress
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Self

import uvicorn

from vitreous.models.vit import ViT
from vitreous.predict.words import TwoTowers
from vitreous.runtime.http import is_loopback
from vitreous.runtime.memory import share_heap
from vitreous.server.app import create_app, encoded_samples
from vitreous.server.connections import TimedConnection
from vitreous.server.jobs import CancelToken, JobQueue
from vitreous.server.page_parts import Parts, Question
from vitreous.server.security import SecurityMiddleware, allowed_hosts

KEEP_ALIVE = 5


class RunningExplorer:
    """The explorer, served from a background thread until `stop()` or the end of a `with` block.

    Beyond this machine it is served with a token only, which is part of `url`. Port 0 takes a free one.
    """

    def __init__(
        self,
        models: Mapping[str, ViT],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        texts: Mapping[str, TwoTowers] | None = None,
    ) -> None:
        sockets = listen(host, port)
        port = sockets[0].getsockname()[1]
        self.models = dict(models)
        self.token = None if is_loopback(host) else secrets.token_urlsafe(18)
        shown = socket.gethostname() if is_any(host) else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}/{f'?token={self.token}' if self.token else ''}"
        share_heap()  # before the threads that share it
        jobs = JobQueue()
        hosts = None if is_any(host) else allowed_hosts(host, port)
        app = create_app(models, jobs, texts=texts, fetches=self.token is None)
        self._server = ExplorerServer(settings(SecurityMiddleware(app, hosts, self.token)), jobs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(sockets,), name="vitreous-server", daemon=True)
        self._thread.start()
        while not (self._server.started or self._ended.is_set()):
            time.sleep(0.01)
        jobs.quick.pool.submit(warm_up, self.models)  # the first answer does not wait for what only the first pays

    def _run(self, sockets: list[socket.socket]) -> None:
        """Serve the explorer in its thread."""
        try:
            self._server.run(sockets)
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Wait until the explorer is not served any more; Ctrl-C interrupts it.

        Not by `Thread.join`: before Python 3.13, an interrupted one takes a running thread for a finished one.
        """
        while not self._ended.wait(0.5):
            pass

    def stop(self) -> None:
        """Stop serving the explorer: cancel running jobs, close all connections and free the port."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"RunningExplorer({self.url}, models: {', '.join(self.models)})"

    def _repr_html_(self) -> str:
        """Show a link to the explorer that is served: the page forbids other pages to embed it."""
        url = html.escape(self.url)
        return f'vitreous explorer: <a href="{url}" target="_blank" rel="noopener">{url}</a>'


def warm_up(models: Mapping[str, ViT]) -> None:
    """Do before serving what the first visitor would wait for: encode the samples, and let each model answer once."""
    body = next(iter(encoded_samples().values()))
    for model in models.values():
        with contextlib.suppress(ValueError):  # whoever asks such a model gets the error
            Parts(Question(model), body, "").first(CancelToken())


def settings(app: SecurityMiddleware) -> uvicorn.Config:
    """Configure uvicorn for the explorer: our own connections, no web sockets, no log of what clients do wrong."""
    return uvicorn.Config(
        app,
        http=TimedConnection,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        h11_max_incomplete_event_size=64 * 1024,
        limit_concurrency=2 * TimedConnection.limit,
        timeout_graceful_shutdown=1,
    )


class ExplorerServer(uvicorn.Server):
    """uvicorn's server, which cancels running jobs before it waits for its connections, not after."""

    def __init__(self, config: uvicorn.Config, jobs: JobQueue) -> None:
        super().__init__(config)
        self.jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.jobs.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> list[socket.socket]:
    """Open a socket to serve on for each address of `host`, all on one port; a `ValueError` says why that failed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ValueError(f"no address is known for --host {host}: try 127.0.0.1, ::1 or 0.0.0.0") from error
    sockets: list[socket.socket] = []
    failed: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        opened = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":  # a port that we have just left can be taken again
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken = sockets[0].getsockname()[1] if sockets else port
            opened.bind((address[0], taken, *address[2:]))
            opened.listen(2048)
            sockets.append(opened)
        except OSError as error:
            opened.close()
            failed = error
            if error.errno == errno.EADDRNOTAVAIL:  # such as ::1 for localhost on a machine without IPv6
                continue
            break
    if failed is not None and (not sockets or failed.errno != errno.EADDRNOTAVAIL):
        for opened in sockets:
            opened.close()
        raise ValueError(_reason(failed, host, port)) from failed
    return sockets


def _reason(error: OSError, host: str, port: int) -> str:
    """Write why the explorer cannot open its port."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use, perhaps by another explorer: try --port 0, which takes a free one"
    if error.errno == errno.EACCES:
        return f"port {port} needs administrator rights: try --port 8137, or any from 1024 on"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: try 127.0.0.1, ::1 or 0.0.0.0"
    return f"cannot listen on port {port} of {host}: {error.strerror}"


def is_any(host: str) -> bool:
    """Return whether serving on `host` opens a socket on every address of this machine: its names cannot be listed."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
