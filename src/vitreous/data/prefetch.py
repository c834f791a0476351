"""Work done ahead on other threads, in order and within bounds: images are decoded while the model computes."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 0, waiting: int = 32
) -> Generator[Result, None, None]:
    """`map(function, items)` on threads, in order, never more than `waiting` results ahead of the reader.

    >>> list(ahead(str, [3, 1, 2]))
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
        finally:  # a reader that stops early waits for what runs, not for what is queued
            for future in queue:
                future.cancel()


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one shorter.

    >>> list(batches(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """
    if size < 1:
        raise ValueError(f"a batch holds at least one image, got batch size {size}")
    batch: list[Item] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
