"""Who may ask: checks before any request is answered, and headers that keep the page to itself.

The explorer listens on this machine, but any web page that its user visits could try to talk to it: by a name that
resolves to 127.0.0.1 (the `Host` header tells), or by a form or a script (`Origin` tells). Bodies are bounded while
they come in, not after.
"""

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

MOST_BYTES = 20 * 2**20
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


class Guard:
    """ASGI middleware. `hosts` are the `host:port` pairs under which the page may be asked for.

    None stands for any, where a token guards the page: then a request's `Origin` has to be its own `Host`.
    """

    def __init__(
        self, app: Application, hosts: frozenset[str] | None, token: str | None = None, most: int = MOST_BYTES
    ) -> None:
        self.app, self.hosts, self.token, self.most = app, hosts, token, most

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no web sockets here
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if (refusal := self._refuse(scope, headers)) is not None:
            await answer(send, *refusal)
            return

        async def decorated(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = dict(HEADERS)
                if self.token is not None and self._given(scope) == self.token:
                    extra["set-cookie"] = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                present = {name.lower() for name, _ in message["headers"]}
                added = [(n.encode(), v.encode()) for n, v in extra.items() if n.encode() not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, self._bounded(receive), decorated)

    def _refuse(self, scope: Message, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "").lower()
        if self.hosts is not None and host not in self.hosts:
            return 421, "this address is not served here"
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] not in (self.hosts or {host}):
            return 403, "requests from other pages are not answered"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "requests from other pages are not answered"
        if self.token is not None and not self._known(scope, headers):
            return 401, "this explorer asks for the token that was printed when it was started: add ?token=… once"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.most:
            return 413, self._limit()
        return None

    def _limit(self) -> str:
        return f"a picture may have {self.most / 2**20:g} MB at the most"

    def _given(self, scope: Message) -> str:
        return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]

    def _known(self, scope: Message, headers: dict[str, str]) -> bool:
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except Exception:  # a cookie of somebody else may be anything
            held = None
        given = [
            self._given(scope),
            held.value if held else "",
            headers.get("authorization", "").removeprefix("Bearer "),
        ]
        assert self.token is not None
        return any(secrets.compare_digest(each.encode(), self.token.encode()) for each in given)

    def _bounded(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(413, self._limit())  # the application answers it
            return message

        return counted


async def answer(send: Send, status: int, text: str) -> None:
    """One line, with all headers that protect."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *((n.encode(), v.encode()) for n, v in HEADERS.items())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
