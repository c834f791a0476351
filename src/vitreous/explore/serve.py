"""Start the explorer on this machine and say where it is."""

import ipaddress
import secrets
import socket
from collections.abc import Callable, Mapping

import uvicorn

from vitreous.explore.app import create_app
from vitreous.explore.guard import Guard
from vitreous.explore.work import Work
from vitreous.models.vit import ViT

KEEP_ALIVE = 5


def serve(
    models: Mapping[str, ViT],
    *,
    host: str = "127.0.0.1",
    port: int = 8137,
    say: Callable[[str], object] = print,
) -> None:
    """Serve until interrupted. Beyond this machine only with a token, which is printed."""
    token = None if is_loopback(host) else secrets.token_urlsafe(18)
    work = Work()
    app = Guard(create_app(models, work), None if is_any(host) else allowed_hosts(host, port), token)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        h11_max_incomplete_event_size=64 * 1024,
        limit_concurrency=512,
        timeout_graceful_shutdown=1,
    )
    shown = socket.gethostname() if is_any(host) else f"[{host}]" if ":" in host else host
    say(f"the explorer is at http://{shown}:{port}/{f'?token={token}' if token else ''} (end it with Ctrl-C)")
    try:
        uvicorn.Server(config).run()
    finally:
        work.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
