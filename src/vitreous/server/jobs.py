"""`JobQueue`: run inference off the event loop, a few jobs at once, a bounded queue, cancelled if the client is gone.

Quick jobs (one forward pass) have a thread of their own, so that an answer does not wait for somebody else's maps.
A newer job of the same page cancels its older one, and a client that disconnects cancels its own: the forward pass
checks a cancel token between layers. After some idle seconds, freed memory is returned to the system.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from torch import Tensor, nn

from vitreous.models.hooks import Hook, activate
from vitreous.server.memory import give_back

Output = TypeVar("Output")
Disconnected = Callable[[], Awaitable[bool]] | None
POLL_SECONDS = 0.25  # between two checks whether the client is still connected
IDLE_SECONDS = 5.0  # without jobs before memory is returned: the next page has to ask for it again


class ServerBusy(Exception):
    """Too many jobs are waiting, or one has waited too long."""


class JobCancelled(Exception):
    """The job was cancelled: nobody waits for its result any more."""


class CancelToken(Hook):
    """Set when a job is cancelled. As a hook of the forward pass, it ends the pass at the next value."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.doing = ""
        """The step that is being computed, in words."""

    def set(self) -> None:
        """Cancel a job."""
        self.event.set()

    def check(self, step: str = "") -> None:
        """Raise `JobCancelled` if the job is cancelled; otherwise note the step that begins."""
        self.doing = step or self.doing
        if self.event.is_set():
            raise JobCancelled("a newer request took its place, or the client has gone")

    def on_value(self, module: nn.Module, name: str, value: Tensor) -> Tensor:
        self.check()
        return value


class Lane:
    """A few threads, and how many of them are free."""

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="vitreous-explore")
        self.free = asyncio.Semaphore(threads)

    def release(self, done: "asyncio.Future[Any]") -> None:
        """Free a thread after its job."""
        self.free.release()
        if not done.cancelled():
            done.exception()  # retrieved, even if nobody waits for it any more


class JobQueue:
    """A bounded queue of jobs in front of a few threads."""

    def __init__(
        self, *, threads: int = 1, max_waiting: int = 32, max_wait: float = 30.0, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self.lane, self.quick = Lane(threads), Lane(1)
        self.pool = self.lane.pool
        self.max_waiting, self.max_wait, self.idle_seconds = max_waiting, max_wait, idle_seconds
        self.timer: asyncio.TimerHandle | None = None
        """Fires when there has been no job for `idle_seconds`."""
        self.waiting: list[CancelToken] = []
        """Jobs without a thread, the oldest first."""
        self.latest: dict[str, CancelToken] = {}
        """The newest job of each client."""
        self.newest: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """The newest request of each client, which may take several jobs: only its own next job is run."""
        self.active: set[CancelToken] = set()
        """All jobs, waiting or running."""
        self.closed = False

    async def run(
        self,
        client: str,
        function: Callable[[CancelToken], Output],
        disconnected: Disconnected = None,
        *,
        quick: bool = False,
    ) -> Output:
        """Run `function(cancel)` on a thread; raise `ServerBusy` or `JobCancelled` if there is no result."""
        cancel, lane = CancelToken(), self.quick if quick else self.lane
        if client and (older := self.latest.get(client)) is not None:
            older.set()
        self.check_capacity()
        if client:
            self.latest[client] = cancel
        self.active.add(cancel)
        self._stop_timer()
        try:
            await self._wait_for_thread(lane, cancel, disconnected)
            return await self._compute(lane, function, cancel, disconnected)
        finally:
            self.active.discard(cancel)
            if self.latest.get(client) is cancel:
                del self.latest[client]
            if not self.active and not self.closed:
                self.timer = asyncio.get_running_loop().call_later(self.idle_seconds, self.pool.submit, give_back)

    def check_capacity(self) -> None:
        """Raise `ServerBusy` if the queue is full; worth a call before a large body is read."""
        if self.closed:
            raise ServerBusy("the explorer is ending")
        if len(self.waiting) >= self.max_waiting:
            raise ServerBusy(f"{len(self.waiting)} requests are waiting already")

    def progress(self, client: str) -> dict[str, int | str]:
        """Return how many jobs are `before` a client's newest one, or what it is `doing`; {} if there is none."""
        cancel = self.latest.get(client)
        if cancel is None:
            return {}
        if cancel in self.waiting:
            return {"before": self.waiting.index(cancel) + len(self.active) - len(self.waiting)}
        return {"doing": cancel.doing}

    async def _wait_for_thread(self, lane: Lane, cancel: CancelToken, disconnected: Disconnected) -> None:
        """Let a job wait for a free thread, first come, first served."""
        self.waiting.append(cancel)
        turn = asyncio.ensure_future(lane.free.acquire())
        end = asyncio.get_running_loop().time() + self.max_wait
        try:
            while True:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    raise ServerBusy(f"no thread was free within {self.max_wait:.0f} s")
                done, _ = await asyncio.wait({turn}, timeout=min(POLL_SECONDS, left))
                if disconnected is not None and not done and await disconnected():
                    cancel.set()
                cancel.check()
                if done:
                    return
        except BaseException:
            if not turn.cancel():  # the thread was ours already: pass it on
                lane.free.release()
            raise
        finally:
            self.waiting.remove(cancel)

    async def _compute(
        self, lane: Lane, function: Callable[[CancelToken], Output], cancel: CancelToken, disconnected: Disconnected
    ) -> Output:
        """Run a job on a thread, and cancel it if its client disconnects."""

        def job() -> Output:
            cancel.check()
            with activate(cancel):
                return function(cancel)

        future = asyncio.get_running_loop().run_in_executor(lane.pool, job)
        future.add_done_callback(lane.release)
        try:
            while True:
                await asyncio.wait({future}, timeout=POLL_SECONDS)
                if future.done():
                    if future.cancelled():  # it had not started when the explorer ended
                        raise JobCancelled("the explorer is ending")
                    return future.result()
                cancel.check()  # do not wait until the thread notices
                if disconnected is not None and await disconnected():
                    cancel.set()
        except asyncio.CancelledError:
            cancel.set()  # the thread ends at its next layer, and is free then
            raise
        finally:
            del future  # its error refers to this frame: a cycle that would keep the image and everything made of it

    def _stop_timer(self) -> None:
        """Stop the timer of the explorer's queue."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        """Reject waiting jobs at once; a running one ends at its next layer."""
        self.closed = True
        self._stop_timer()
        for cancel in list(self.active):
            cancel.set()
        for lane in (self.lane, self.quick):
            lane.pool.shutdown(wait=False, cancel_futures=True)
