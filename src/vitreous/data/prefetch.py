"""Compute results ahead on threads, in order and bounded (`prefetch`), and group them into batches (`batched`)."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 0, waiting: int = 32
) -> Generator[Result, None, None]:
    """Yield `map(function, items)` in order, computed on threads at most `waiting` results ahead of the reader.

    >>> list(prefetch(str, [3, 1, 2]))
    ['3', '1', '2']
    """
    workers = workers or min(8, os.cpu_count() or 1)
    queue: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="vitreous-read") as pool:
        try:
            for item in items:
                queue.append(pool.submit(function, item))
                if len(queue) >= waiting:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:  # a reader that stops early waits for running calls, not for queued ones
            for future in queue:
                future.cancel()


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Group items, such as prefetched images, into lists of `size`, the last one shorter.

    >>> list(batched(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"a batch holds at least one image, got batch size {size!r:.60}")
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
