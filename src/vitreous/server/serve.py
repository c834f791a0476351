"""Start the explorer on this machine and say where it is."""

import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Mapping

import uvicorn

from vitreous.models.vit import ViT
from vitreous.runtime.network import is_loopback
from vitreous.server.app import create_app
from vitreous.server.connection import Connection
from vitreous.server.jobs import Work
from vitreous.server.memory import share_heap
from vitreous.server.security import Guard

KEEP_ALIVE = 5


def serve(
    models: Mapping[str, ViT],
    *,
    host: str = "127.0.0.1",
    port: int = 8137,
    say: Callable[[str], object] = print,
) -> None:
    """Serve until interrupted. Beyond this machine only with a token, which is printed. Port 0 takes a free one."""
    sockets = listen(host, port)
    port = sockets[0].getsockname()[1]
    token = None if is_loopback(host) else secrets.token_urlsafe(18)
    share_heap()  # before the threads that it is for
    work = Work()
    app = Guard(create_app(models, work), None if is_any(host) else allowed_hosts(host, port), token)
    shown = socket.gethostname() if is_any(host) else f"[{host}]" if ":" in host else host
    if token is not None:
        say(
            f"beware: with --host {host} other machines can reach the explorer, and what is sent can be read on the "
            "way; whoever has the token below can use it. Leave --host out to keep it to this machine"
        )
    say(f"the explorer is at http://{shown}:{port}/{f'?token={token}' if token else ''} (end it with Ctrl-C)")
    try:
        Server(settings(app), work).run(sockets)
    finally:
        work.close()


def settings(app: Guard) -> uvicorn.Config:
    """uvicorn with our own connections, no web sockets, and silent about what clients do wrong."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        h11_max_incomplete_event_size=64 * 1024,
        limit_concurrency=2 * Connection.most,
        timeout_graceful_shutdown=1,
    )


class Server(uvicorn.Server):
    """Ends what is being worked on before it waits for its connections, not after."""

    def __init__(self, config: uvicorn.Config, work: Work) -> None:
        super().__init__(config)
        self.work = work

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.work.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address that `host` stands for, all on one port; a `ValueError` says why there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ValueError(f"no address is known for --host {host}: try 127.0.0.1, ::1 or 0.0.0.0") from error
    sockets: list[socket.socket] = []
    failed: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        place = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":  # a port that was ours a moment ago may be ours again
                place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken = sockets[0].getsockname()[1] if sockets else port
            place.bind((address[0], taken, *address[2:]))
            place.listen(2048)
            sockets.append(place)
        except OSError as error:
            place.close()
            failed = error
            if error.errno == errno.EADDRNOTAVAIL:  # such as ::1 for localhost on a machine without IPv6
                continue
            break
    if failed is not None and (not sockets or failed.errno != errno.EADDRNOTAVAIL):
        for place in sockets:
            place.close()
        raise ValueError(_why(failed, host, port)) from failed
    return sockets


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use, perhaps by another explorer: try --port 0, which takes a free one"
    if error.errno == errno.EACCES:
        return f"port {port} is not for everyone: try --port 8137, or any from 1024 on"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: try 127.0.0.1, ::1 or 0.0.0.0"
    return f"cannot listen on port {port} of {host}: {error.strerror}"


def is_any(host: str) -> bool:
    """Whether it stands for every address of this machine: by which name it is asked for cannot be foreseen."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """What a browser may call this server: `host:port`, and this machine's usual names."""
    names = {host, "127.0.0.1", "localhost", "[::1]"}
    if ":" in host:
        names.add(f"[{host}]")
    return frozenset(f"{name}:{port}".lower() for name in names) | (frozenset(names) if port == 80 else frozenset())
