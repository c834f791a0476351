"""`TimedConnection`: the explorer's connections, bounded in number, each with a timeout for what it waits for.

uvicorn bounds how long a connection may be idle between two requests, and nothing else: a client that sends a request
one byte at a time, goes on sending a rejected body, or never reads the response would stay connected for ever.
"""

import asyncio
import contextlib
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST, RESPONSE, REJECTED_BODY, UNREAD = "sending a request", "responding", "sending a rejected body", "not reading"
TIMEOUTS = {REQUEST: 30.0, REJECTED_BODY: 2.0, UNREAD: 30.0}
"""Seconds that a connection may stay in a state; responding is bounded by `SecurityMiddleware` and `JobQueue`."""


def connection_limit() -> int:
    """Return how many connections the explorer keeps: 512, and at most half of the files that this process may open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 512
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 512 if files == resource.RLIM_INFINITY else max(16, min(512, files // 2))


class TimedConnection(H11Protocol):
    """uvicorn's connection with a timeout in every state; beyond `limit`, the longest-waiting client is dropped."""

    limit = connection_limit()
    timeouts = TIMEOUTS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.state, self.since = "", 0.0
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_state()
        if len(self.connections) > self.limit:
            self._drop_one()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_state()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_state()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_state()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_state()

    def send_400_response(self, msg: str) -> None:
        """Answer on a connection what is not HTTP, as JSON like other errors; the request under way is abandoned."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        body = json.dumps({"detail": msg}).encode()
        try:
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response has begun already
            self.transport.abort()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.state = "lost"
        if self.timer is not None:
            self.timer.cancel()

    def shutdown(self) -> None:
        """End a connection with the server; a request that has not arrived in full gets no response."""
        with contextlib.suppress(h11.LocalProtocolError):
            super().shutdown()
        if self.waits_for_client():
            self.transport.abort()

    def waits_for_client(self) -> bool:
        """Return whether the client, not the server, is the one that keeps this connection waiting."""
        return self.state != RESPONSE or self.cycle.more_body

    def _update_state(self) -> None:
        """Start a new timeout of a connection if its state has changed."""
        state = self._state()
        if state == self.state or self.state == "lost":
            return
        self.state, self.since = state, self.loop.time()
        if self.timer is not None:
            self.timer.cancel()
        timeout = self.timeouts.get(state)
        self.timer = None if timeout is None else self.loop.call_later(timeout, self.transport.abort)

    def _state(self) -> str:
        """Return what a connection waits for at this moment."""
        if self.flow.write_paused:
            return UNREAD
        if self.cycle is not None and not self.cycle.response_complete:
            return RESPONSE
        return REJECTED_BODY if self.conn.their_state is h11.SEND_BODY else REQUEST

    def _drop_one(self) -> None:
        """Drop the connection that has waited longest for its client."""
        others = [
            each
            for each in self.connections
            if isinstance(each, TimedConnection)
            and each is not self
            and not each.transport.is_closing()
            and each.waits_for_client()
        ]
        if others:
            min(others, key=lambda each: each.since).transport.abort()
