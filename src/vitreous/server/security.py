"""Who may ask: checks before any request is answered, and headers that keep the page to itself.

The explorer listens on this machine, but any web page that its user visits could try to talk to it: by a name that
resolves to 127.0.0.1 (the `Host` header tells), or by a form or a script (`Origin` tells). Bodies are bounded while
they come in, not after: in bytes, in seconds, and in what all of them hold together.
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

MOST_BYTES = 20 * 2**20
MOST_SECONDS = 30.0  # for a body to come in
MOST_HELD = 256 * 2**20  # bytes of all bodies at a time
ALWAYS_HELD = 2**20  # bytes of a body that are taken even then: an everyday image passes beside large ones
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
        self,
        app: Application,
        hosts: frozenset[str] | None,
        token: str | None = None,
        most: int = MOST_BYTES,
        *,
        seconds: float = MOST_SECONDS,
        most_held: int = MOST_HELD,
    ) -> None:
        self.app, self.hosts, self.token, self.most = app, hosts, token, most
        self.seconds, self.most_held = seconds, most_held
        self.held = 0
        """Bytes of all bodies that are coming in, waiting or being worked on."""

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

        body = Body(self, receive)
        try:
            await self.app(scope, body.receive, decorated)
        finally:
            self.held -= body.seen

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
        if not (length.isascii() and length.isdigit()):
            return 400, "the length of a body is a number"
        if len(length) > 18 or int(length) > self.most:
            return 413, self.limit()
        return None

    def limit(self) -> str:
        return f"an image may have {self.most / 2**20:g} MB at the most"

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


class Body:
    """The body of one request, as it comes in."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self.guard, self.source = guard, receive
        self.seen, self.more = 0, True
        self.end = asyncio.get_running_loop().time() + guard.seconds

    async def receive(self) -> Message:
        """The next piece; the application answers what is raised here."""
        guard = self.guard
        try:
            async with asyncio.timeout_at(self.end if self.more else None):
                message = await self.source()
        except TimeoutError as error:
            raise HTTPException(408, f"an image has {guard.seconds:g} s to come in") from error
        self.more = message.get("more_body", False)
        size = len(message.get("body", b""))
        self.seen, guard.held = self.seen + size, guard.held + size
        if self.seen > guard.most:
            raise HTTPException(413, guard.limit())
        if guard.held > guard.most_held and self.seen > ALWAYS_HELD:
            raise HTTPException(503, "busy: many large images are coming in; try again", headers={"Retry-After": "5"})
        return message


async def answer(send: Send, status: int, text: str) -> None:
    """One line, as the application answers too, with all headers that protect."""
    body = json.dumps({"detail": text}, ensure_ascii=False).encode()
    told = {"content-type": "application/json", "content-length": str(len(body)), **HEADERS}
    headers = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
