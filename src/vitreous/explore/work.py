"""Inference off the event loop: so many at once, so many waiting, each only so long, and none for nobody.

A newer job of the same page cancels its older one, and a client that goes away cancels its own: the model looks at the
flag between layers.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor, nn

from vitreous.models.watch import watching

Result = TypeVar("Result")
LOOK = 0.25  # seconds between two looks whether the client is still there


class Busy(Exception):
    """Too many are waiting, or one has waited too long."""


class Cancelled(Exception):
    """Nobody wants the answer any more."""


class Flag:
    """Set when a job is no longer wanted. It also is a watcher of the forward pass, and ends it at the next value."""

    records = False

    def __init__(self) -> None:
        self.event = threading.Event()

    def set(self) -> None:
        self.event.set()

    def check(self, what: str = "") -> None:
        if self.event.is_set():
            raise Cancelled("a newer request took its place, or the client has gone")

    def see(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        self.check()
        return value

    def opens(self, module: nn.Module) -> bool:
        return False

    def beside(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        pass


class Work:
    """A queue in front of a few threads."""

    def __init__(self, *, threads: int = 1, waiting: int = 32, patience: float = 30.0) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="vitreous-explore")
        self.free = asyncio.Semaphore(threads)
        self.most, self.patience = waiting, patience
        self.waiting = 0
        self.latest: dict[str, Flag] = {}
        self.wanted: set[Flag] = set()

    async def run(
        self, client: str, function: Callable[[Flag], Result], gone: Callable[[], Awaitable[bool]] | None = None
    ) -> Result:
        """`function(flag)` on a thread; raises `Busy` or `Cancelled` where there will be no answer."""
        flag = Flag()
        if client and (older := self.latest.get(client)) is not None:
            older.set()
        if self.waiting >= self.most:
            raise Busy(f"{self.waiting} requests are waiting already")
        if client:
            self.latest[client] = flag
        self.wanted.add(flag)
        try:
            await self._turn(flag, gone)
            return await self._compute(function, flag, gone)
        finally:
            self.wanted.discard(flag)
            if self.latest.get(client) is flag:
                del self.latest[client]

    async def _turn(self, flag: Flag, gone: Callable[[], Awaitable[bool]] | None) -> None:
        self.waiting += 1
        try:
            end = asyncio.get_running_loop().time() + self.patience
            while True:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    raise Busy(f"no thread was free within {self.patience:.0f} s")
                try:
                    await asyncio.wait_for(self.free.acquire(), min(LOOK, left))
                    return
                except TimeoutError:
                    if gone is not None and await gone():
                        flag.set()
                    flag.check()
        finally:
            self.waiting -= 1

    async def _compute(
        self, function: Callable[[Flag], Result], flag: Flag, gone: Callable[[], Awaitable[bool]] | None
    ) -> Result:
        def work() -> Result:
            flag.check()
            with watching(flag):
                return function(flag)

        future = asyncio.get_running_loop().run_in_executor(self.pool, work)
        future.add_done_callback(lambda done: self.free.release())
        try:
            while True:
                done, _ = await asyncio.wait({future}, timeout=LOOK)
                if done:
                    return future.result()
                if gone is not None and await gone():
                    flag.set()
        except asyncio.CancelledError:
            flag.set()  # the thread ends at its next layer, and frees its place then
            raise

    def close(self) -> None:
        for flag in list(self.wanted):
            flag.set()
        self.pool.shutdown(wait=False, cancel_futures=True)
