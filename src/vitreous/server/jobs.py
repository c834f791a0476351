"""`JobQueue`: run inference off the event loop, a few jobs at once, bounded queues, cancelled if the client is gone.

Quick jobs (one forward pass) have a queue and a thread of their own: an answer neither waits for somebody else's maps
nor is rejected because many wait for theirs. Long jobs have turns: a page is begun before another one is completed.
A newer job of the same page cancels its older one, and a client that disconnects cancels its own: the forward pass
checks a cancel token between layers. After some idle seconds, freed memory is returned to the system.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from torch import Tensor, nn

from vitreous.models.hooks import Hook, activate
from vitreous.runtime.memory import give_back

Output = TypeVar("Output")
Disconnected = Callable[[], Awaitable[bool]] | None
POLL_SECONDS = 0.25  # between two checks whether the client is still connected
QUICK_WAITING = 128  # quick jobs that may wait: some seconds of work
IDLE_SECONDS = 5.0  # without jobs before memory is returned: the next page has to ask for it again


class ServerBusy(Exception):
    """The explorer is busy: too many jobs are waiting, or one has waited too long."""


class JobCancelled(Exception):
    """A job of the explorer was cancelled: nobody waits for its result any more."""


class CancelToken(Hook):
    """Set when a job is cancelled. As a hook of the forward pass, it ends the pass at the next value."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.doing = ""
        """The step that is being computed, in words."""
        self.gives_way: Callable[[], bool] = lambda: False
        """Whether another job should have the thread now."""

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


class Job:
    """One request's work on a lane: one turn of a thread, or several with the turns of others between."""

    def __init__(self, client: str, cancel: CancelToken) -> None:
        self.client, self.cancel = client, cancel
        self.rank = 0
        """Jobs with the smallest rank go first."""
        self.started = False
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Lane:
    """A few threads, and the jobs that wait for one, fair to clients (start-time fair queueing).

    A job's rank is one more than that of the job that got a thread last, and than that of its client's last job: those
    who came first go first, and a client that asks for many things at once gets one turn a round, like everyone else.
    """

    def __init__(self, threads: int, max_waiting: int, max_started: int) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="vitreous-explore")
        self.free, self.max_waiting, self.max_started = threads, max_waiting, max_started
        self.waiting: list[Job] = []
        """Jobs without a thread, in the order in which they came."""
        self.started: set[Job] = set()
        """Jobs that had a turn and are not done: they hold what they have computed so far."""
        self.ranks: dict[str, int] = {}
        self.now = 0
        """The rank of the job that got a thread last."""

    def rank(self, client: str) -> int:
        """Return the rank of a client's next job in the queue."""
        return max(self.now, self.ranks.get(client, 0)) + 1

    def last(self) -> Job | None:
        """Return the job that gives way in a full queue; None while there is room."""
        unstarted = [job for job in self.waiting if not job.started]
        return max(unstarted, key=lambda job: job.rank, default=None) if len(unstarted) >= self.max_waiting else None

    def is_full(self, client: str) -> bool:
        """Return whether the queue of jobs has no room for a client; if another has more than its share, there is."""
        waiting = [job.rank for job in self.waiting if not job.started]
        return len(waiting) >= self.max_waiting and max(waiting, default=0) <= self.rank(client)

    def enter(self, job: Job) -> None:
        """Let a job wait for its next turn."""
        if not job.started:
            if (last := self.last()) is not None:
                last.turn.set_exception(ServerBusy("others were waiting for their first turn"))
                self.waiting.remove(last)
            job.rank = self.ranks[job.client] = self.rank(job.client)
        job.turn = asyncio.get_running_loop().create_future()
        self.waiting.append(job)
        self.assign()

    def key(self, job: Job) -> tuple[bool, int]:
        """Return what jobs are sorted by: first turns come before others, unless too many jobs have begun already."""
        return job.started == (len(self.started) < self.max_started), job.rank

    def order(self) -> list[Job]:
        """List the waiting jobs, the next one first."""
        return sorted(self.waiting, key=self.key)

    def gives_way(self, job: Job) -> bool:
        """Return whether a job that has a thread should let another one have it."""
        return any(self.key(other) < self.key(job) for other in self.waiting)

    def assign(self) -> None:
        """Give free threads to the jobs whose turn it is."""
        while self.free and self.waiting:
            job = self.order()[0]
            if not job.started and len(self.started) >= self.max_started:
                return
            self.waiting.remove(job)
            self.now, self.free, job.started = job.rank, self.free - 1, True
            self.started.add(job)
            job.turn.set_result(None)
            self.ranks = {client: rank for client, rank in self.ranks.items() if rank > self.now}

    def release(self) -> None:
        """Take a job's thread back."""
        self.free += 1
        self.assign()

    def leave(self, job: Job) -> None:
        """Forget a job that is done, or is not waited for any more."""
        self.started.discard(job)
        if job in self.waiting:
            self.waiting.remove(job)
        self.assign()


class JobQueue:
    """A bounded queue of jobs in front of a few threads, and another one for quick jobs."""

    def __init__(
        self,
        *,
        threads: int = 1,
        max_waiting: int = 32,
        max_started: int = 8,
        max_wait: float = 60.0,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.lane, self.quick = Lane(threads, max_waiting, max_started), Lane(1, QUICK_WAITING, max_started)
        self.pool = self.lane.pool
        self.max_wait, self.idle_seconds = max_wait, idle_seconds
        self.timer: asyncio.TimerHandle | None = None
        """Fires when there has been no job for `idle_seconds`."""
        self.latest: dict[str, Job] = {}
        """The newest job of each client."""
        self.newest: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """The newest request of each client, which may take several jobs: only its own next job is run."""
        self.active: set[Job] = set()
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
        """Run a job, `function(cancel)`, on a thread; raise `ServerBusy` or `JobCancelled` if there is no result."""
        lane = self.quick if quick else self.lane
        with self._job(client, lane) as job:
            return await self._turn(lane, job, function, disconnected)

    async def run_in_turns(
        self, client: str, function: Callable[[CancelToken], bool], disconnected: Disconnected = None
    ) -> None:
        """Run a job in turns: call `function(cancel)` until it returns True; False if `cancel.gives_way()` says so."""
        with self._job(client, self.lane) as job:
            while not await self._turn(self.lane, job, function, disconnected):
                pass

    @contextmanager
    def _job(self, client: str, lane: Lane) -> Iterator[Job]:
        """Enter a client's newest job, which cancels its older one."""
        if client and (older := self.latest.get(client)) is not None:
            older.cancel.set()
        self.check_capacity(client, quick=lane is self.quick)
        job = Job(client, CancelToken())
        job.cancel.gives_way = partial(lane.gives_way, job)
        if client:
            self.latest[client] = job
        self.active.add(job)
        self._stop_timer()
        try:
            yield job
        finally:
            lane.leave(job)
            self.active.discard(job)
            if self.latest.get(client) is job:
                del self.latest[client]
            if not self.active and not self.closed:
                self.timer = asyncio.get_running_loop().call_later(self.idle_seconds, self.pool.submit, give_back)

    def check_capacity(self, client: str = "", *, quick: bool = False) -> None:
        """Raise `ServerBusy` if the queue of jobs is full; worth a call before a large body is read."""
        lane = self.quick if quick else self.lane
        if self.closed:
            raise ServerBusy("the explorer is ending")
        if lane.is_full(client):
            raise ServerBusy(f"{len(lane.waiting)} requests are waiting already")

    def progress(self, client: str) -> dict[str, int | str]:
        """Return how many jobs are `before` a client's newest one, or what it is `doing`; {} if there is none."""
        job = self.latest.get(client)
        if job is None:
            return {}
        for lane in (self.quick, self.lane):
            if job in lane.waiting and not job.started:
                return {"before": lane.order().index(job) + len(lane.started)}
        return {"doing": job.cancel.doing}

    async def _turn(
        self, lane: Lane, job: Job, function: Callable[[CancelToken], Output], disconnected: Disconnected
    ) -> Output:
        """Run one turn of a job."""
        await self._wait_for_thread(lane, job, disconnected)
        return await self._compute(lane, function, job.cancel, disconnected)

    async def _wait_for_thread(self, lane: Lane, job: Job, disconnected: Disconnected) -> None:
        """Let a job wait for a free thread; only for its first turn it may wait too long."""
        end = math.inf if job.started else asyncio.get_running_loop().time() + self.max_wait
        lane.enter(job)
        try:
            while True:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    raise ServerBusy(f"no thread was free within {self.max_wait:.0f} s")
                done, _ = await asyncio.wait({job.turn}, timeout=min(POLL_SECONDS, left))
                if disconnected is not None and not done and await disconnected():
                    job.cancel.set()
                job.cancel.check()
                if done:
                    return job.turn.result()
        except BaseException:
            if job.turn.done() and job.turn.exception() is None:  # the thread was ours already: pass it on
                lane.release()
            raise

    async def _compute(
        self, lane: Lane, function: Callable[[CancelToken], Output], cancel: CancelToken, disconnected: Disconnected
    ) -> Output:
        """Run a job on a thread, and cancel it if its client disconnects."""

        def job() -> Output:
            cancel.check()
            with activate(cancel):
                return function(cancel)

        def release(done: "asyncio.Future[Output]") -> None:
            lane.release()
            if not done.cancelled():
                done.exception()  # retrieved, even if nobody waits for it any more

        future = asyncio.get_running_loop().run_in_executor(lane.pool, job)
        future.add_done_callback(release)
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
        """Stop the timer of the explorer's queue of jobs."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        """Reject waiting jobs at once; a running one ends at its next layer."""
        self.closed = True
        self._stop_timer()
        for job in list(self.active):
            job.cancel.set()
        for lane in (self.lane, self.quick):
            lane.pool.shutdown(wait=False, cancel_futures=True)
