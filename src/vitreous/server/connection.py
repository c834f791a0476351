"""One client's connection: how long it may take over each step, and who has to go when there are too many.

uvicorn bounds how long a connection may be idle between two requests, and nothing else: who sends a request one byte
at a time, goes on sending a body that was refused, or never reads the answer, would keep its place for ever.
"""

import asyncio
import contextlib
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ASKING, ANSWERED, LEFT_OVER, NOT_READ = "asking", "being answered", "sending what nobody reads", "not reading"
SECONDS = {ASKING: 30.0, LEFT_OVER: 2.0, NOT_READ: 30.0}
"""How long a connection may stay in a state; one that is being answered is bounded by the guard and by the work."""


def room() -> int:
    """So many connections, and no more than half the files that this process may open."""
    try:
        import resource
    except ImportError:  # Windows knows no such limit
        return 512
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 512 if files == resource.RLIM_INFINITY else max(16, min(512, files // 2))


class Connection(H11Protocol):
    """uvicorn's own, with a time limit in every state; beyond `most`, the one that has dawdled longest is ended."""

    most = room()
    seconds = SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.state, self.since = "", 0.0
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()
        if len(self.connections) > self.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """What follows is no HTTP: whoever works on this request need not answer it as well."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]  # as every other refusal
        body = json.dumps({"detail": msg}).encode()
        try:
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # it has been answered already
            self.transport.abort()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.state = "lost"
        if self.timer is not None:
            self.timer.cancel()

    def shutdown(self) -> None:
        """The server ends: what has not been asked in full will not be answered."""
        with contextlib.suppress(h11.LocalProtocolError):
            super().shutdown()
        if self.dawdles():
            self.transport.abort()

    def dawdles(self) -> bool:
        """Whether it is the client that keeps this connection waiting."""
        return self.state != ANSWERED or self.cycle.more_body

    def _look(self) -> None:
        """Begin a new time limit where the state is a new one."""
        state = self._state()
        if state == self.state or self.state == "lost":
            return
        self.state, self.since = state, self.loop.time()
        if self.timer is not None:
            self.timer.cancel()
        limit = self.seconds.get(state)
        self.timer = None if limit is None else self.loop.call_later(limit, self.transport.abort)

    def _state(self) -> str:
        if self.flow.write_paused:
            return NOT_READ
        if self.cycle is not None and not self.cycle.response_complete:
            return ANSWERED
        return LEFT_OVER if self.conn.their_state is h11.SEND_BODY else ASKING

    def _make_room(self) -> None:
        others = [
            each
            for each in self.connections
            if isinstance(each, Connection) and each is not self and not each.transport.is_closing() and each.dawdles()
        ]
        if others:
            min(others, key=lambda each: each.since).transport.abort()
