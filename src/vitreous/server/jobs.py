"""Inference off the event loop: so many at once, so many waiting, each only so long, and none for nobody.

A newer job of the same page cancels its older one, and a client that goes away cancels its own: the model looks at the
flag between layers. Once nobody has asked for a while, the memory that the last ones took goes back to the system.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import Tensor, nn

from vitreous.models.hooks import activate
from vitreous.server.memory import give_back

Result = TypeVar("Result")
LOOK = 0.25  # seconds between two looks whether the client is still there
REST = 5.0  # seconds without work before memory goes back: the next page has to ask for it again


class Busy(Exception):
    """Too many are waiting, or one has waited too long."""


class Cancelled(Exception):
    """Nobody wants the answer any more."""


class Flag:
    """Set when a job is no longer wanted. It is also a hook of the forward pass, and ends it at the next value."""

    records = False

    def __init__(self) -> None:
        self.event = threading.Event()
        self.doing = ""
        """What is being worked out now, in words."""

    def set(self) -> None:
        self.event.set()

    def check(self, what: str = "") -> None:
        self.doing = what or self.doing
        if self.event.is_set():
            raise Cancelled("a newer request took its place, or the client has gone")

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        self.check()
        return value

    def changes_attention(self, module: nn.Module) -> bool:
        return False

    def on_attention(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        pass


class Work:
    """A queue in front of a few threads."""

    def __init__(self, *, threads: int = 1, waiting: int = 32, patience: float = 30.0, rest: float = REST) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="vitreous-explore")
        self.free = asyncio.Semaphore(threads)
        self.most, self.patience, self.rest = waiting, patience, rest
        self.timer: asyncio.TimerHandle | None = None
        """Rings when nobody has asked for `rest` seconds."""
        self.line: list[Flag] = []
        """Who waits, the first in front."""
        self.latest: dict[str, Flag] = {}
        self.wanted: set[Flag] = set()
        self.closed = False

    async def run(
        self, client: str, function: Callable[[Flag], Result], gone: Callable[[], Awaitable[bool]] | None = None
    ) -> Result:
        """`function(flag)` on a thread; raises `Busy` or `Cancelled` where there will be no answer."""
        flag = Flag()
        if client and (older := self.latest.get(client)) is not None:
            older.set()
        self.refuse_if_full()
        if client:
            self.latest[client] = flag
        self.wanted.add(flag)
        self._stir()
        try:
            await self._turn(flag, gone)
            return await self._compute(function, flag, gone)
        finally:
            self.wanted.discard(flag)
            if self.latest.get(client) is flag:
                del self.latest[client]
            if not self.wanted and not self.closed:
                self.timer = asyncio.get_running_loop().call_later(self.rest, self.pool.submit, give_back)

    def refuse_if_full(self) -> None:
        """Raise `Busy` where there is no place in the line: worth asking before a large body is read."""
        if self.closed:
            raise Busy("the explorer is ending")
        if len(self.line) >= self.most:
            raise Busy(f"{len(self.line)} requests are waiting already")

    def progress(self, client: str) -> dict[str, int | str]:
        """How a client's newest job fares: how many are `before` it, or what it is `doing`; {} where there is none."""
        flag = self.latest.get(client)
        if flag is None:
            return {}
        if flag in self.line:
            return {"before": self.line.index(flag) + len(self.wanted) - len(self.line)}
        return {"doing": flag.doing}

    async def _turn(self, flag: Flag, gone: Callable[[], Awaitable[bool]] | None) -> None:
        """Wait in line for a thread; those who came first are served first."""
        self.line.append(flag)
        turn = asyncio.ensure_future(self.free.acquire())
        end = asyncio.get_running_loop().time() + self.patience
        try:
            while True:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    raise Busy(f"no thread was free within {self.patience:.0f} s")
                done, _ = await asyncio.wait({turn}, timeout=min(LOOK, left))
                if gone is not None and not done and await gone():
                    flag.set()
                flag.check()
                if done:
                    return
        except BaseException:
            if not turn.cancel():  # it was our turn already: let the next one have it
                self.free.release()
            raise
        finally:
            self.line.remove(flag)

    async def _compute(
        self, function: Callable[[Flag], Result], flag: Flag, gone: Callable[[], Awaitable[bool]] | None
    ) -> Result:
        def work() -> Result:
            flag.check()
            with activate(flag):
                return function(flag)

        future = asyncio.get_running_loop().run_in_executor(self.pool, work)
        future.add_done_callback(self._free)
        try:
            while True:
                await asyncio.wait({future}, timeout=LOOK)
                if future.done():
                    if future.cancelled():  # it had not begun when the explorer was ended
                        raise Cancelled("the explorer is ending")
                    return future.result()
                flag.check()  # nobody waits for a thread that has yet to notice
                if gone is not None and await gone():
                    flag.set()
        except asyncio.CancelledError:
            flag.set()  # the thread ends at its next layer, and frees its place then
            raise
        finally:
            del future  # its error knows this frame: a circle that would keep the image and all that was made of it

    def _free(self, done: "asyncio.Future[Any]") -> None:
        self.free.release()
        if not done.cancelled():
            done.exception()  # seen, even where nobody waits for it any more

    def _stir(self) -> None:
        """Somebody asks: memory is needed again."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        """Whoever waits is told at once; a thread ends at its next layer."""
        self.closed = True
        self._stir()
        for flag in list(self.wanted):
            flag.set()
        self.pool.shutdown(wait=False, cancel_futures=True)
