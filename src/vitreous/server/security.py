"""`SecurityMiddleware`: check token, host and origin of every request to the explorer, and bound its body (uploads).

The explorer listens on this machine, but any web page that its user visits could try to talk to it: under a name that
resolves to 127.0.0.1 (the `Host` header shows it), or by a form or a script (`Origin` and `Sec-Fetch-Site` show it).
starlette's TrustedHostMiddleware compares host names without ports and knows neither of the other two headers. Bodies
are bounded while they arrive, not after: in bytes, in seconds, and in the total of all of them.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 20 * 2**20
MAX_BODY_SECONDS = 30.0
MAX_TOTAL_BYTES = 256 * 2**20  # of all bodies at a time
ALWAYS_ACCEPTED_BYTES = 2**20  # of a body, even beyond that total: an ordinary image passes beside large ones
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
COOKIE = "vitreous"


class SecurityMiddleware:
    """ASGI middleware that rejects foreign requests. `hosts` are the `host:port` pairs under which the page is served.

    None allows any host, where a token protects the page: then a request's `Origin` has to equal its own `Host`.
    """

    def __init__(
        self,
        app: Application,
        hosts: frozenset[str] | None,
        token: str | None = None,
        max_bytes: int = MAX_BODY_BYTES,
        *,
        max_seconds: float = MAX_BODY_SECONDS,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        self.app, self.hosts, self.token = app, hosts, token
        self.max_bytes, self.max_seconds, self.max_total_bytes = max_bytes, max_seconds, max_total_bytes
        self.total_bytes = 0
        """Bytes of all bodies that are arriving, waiting or being worked on."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no web sockets
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if (rejection := self._check(scope, headers)) is not None:
            await send_error(send, *rejection)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = dict(HEADERS)
                if self.token is not None and self._token_in_query(scope) == self.token:
                    extra["set-cookie"] = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                present = {name.lower() for name, _ in message["headers"]}
                added = [(n.encode(), v.encode()) for n, v in extra.items() if n.encode() not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        body = LimitedBody(self, receive)
        try:
            await self.app(scope, body.receive, send_with_headers)
        finally:
            self.total_bytes -= body.size

    def _check(self, scope: Message, headers: dict[str, str]) -> tuple[int, str] | None:
        """Check a request for security: return status and message if it is rejected; None if it is allowed."""
        host = headers.get("host", "").lower()
        if self.hosts is not None and host not in self.hosts:
            return 421, "this address is not served here"
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] not in (self.hosts or {host}):
            return 403, "requests from other pages are not answered"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "requests from other pages are not answered"
        if self.token is not None and not self._has_token(scope, headers, self.token):
            return 401, "this explorer asks for the token that was printed when it was started: add ?token=… once"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return 400, "the length of a body is a number"
        if len(length) > 18 or int(length) > self.max_bytes:
            return 413, self.size_message()
        return None

    def size_message(self) -> str:
        """Word the security check's answer to a request that is too large: how large an image may be."""
        return f"an image may have {self.max_bytes / 2**20:g} MB at the most"

    def _token_in_query(self, scope: Message) -> str:
        """Read the security token from the address of a request to the explorer."""
        query: bytes = scope.get("query_string", b"")
        return parse_qs(query.decode("latin-1")).get("token", [""])[0]

    def _has_token(self, scope: Message, headers: dict[str, str], token: str) -> bool:
        """Return whether a request has the explorer's security token, in its cookie or its address."""
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except Exception:  # a foreign cookie may be anything
            cookie = None
        given = [
            self._token_in_query(scope),
            cookie.value if cookie else "",
            headers.get("authorization", "").removeprefix("Bearer "),
        ]
        return any(secrets.compare_digest(each.encode(), token.encode()) for each in given)


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """List the addresses to serve the explorer at, as `host:port`: the host, and this machine's usual names."""
    names = {host, "127.0.0.1", "localhost", "[::1]"}
    if ":" in host:
        names.add(f"[{host}]")
    return frozenset(f"{name}:{port}".lower() for name in names) | (frozenset(names) if port == 80 else frozenset())


class LimitedBody:
    """The body of one request, bounded while it arrives."""

    def __init__(self, limits: SecurityMiddleware, receive: Receive) -> None:
        self.limits, self.source = limits, receive
        self.size, self.more = 0, True
        self.end = asyncio.get_running_loop().time() + limits.max_seconds

    async def receive(self) -> Message:
        """Receive the next piece of a request's body, within the security limits on its bytes and seconds.

        The application turns what is raised here into a response.
        """
        limits = self.limits
        try:
            async with asyncio.timeout_at(self.end if self.more else None):
                message = await self.source()
        except TimeoutError as error:
            raise HTTPException(408, f"an image has {limits.max_seconds:g} s to come in") from error
        self.more = message.get("more_body", False)
        size = len(message.get("body", b""))
        self.size, limits.total_bytes = self.size + size, limits.total_bytes + size
        if self.size > limits.max_bytes:
            raise HTTPException(413, limits.size_message())
        if limits.total_bytes > limits.max_total_bytes and self.size > ALWAYS_ACCEPTED_BYTES:
            raise HTTPException(503, "busy: many large images are coming in; try again", headers={"Retry-After": "5"})
        return message


async def send_error(send: Send, status: int, text: str) -> None:
    """Reject a request for its security: send an error of one line, with all protective headers."""
    body = json.dumps({"detail": text}, ensure_ascii=False).encode()
    named = {"content-type": "application/json", "content-length": str(len(body)), **HEADERS}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
