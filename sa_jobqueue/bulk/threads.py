"""Threads that process items while the calling thread makes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

T = TypeVar("T")

#: Opens what one thread needs, by the thread's slot; yields the function that processes
#: an item.
OpenWorker = Callable[[int], AbstractContextManager[Callable[[T], None]]]


def process(items: Iterable[T], open_worker: OpenWorker[T], *, workers: int) -> None:
    """Process every item, and return when all are done.

    The first error ends it: items that are under way are finished, the rest is left.

    Args:
        items: iterated over in the calling thread, at most twice as many ahead as
            there are workers.
        workers: how many threads; 0: the calling thread processes the items.
    """
    if workers:
        _Pool(open_worker, workers).process(items)
        return
    with open_worker(0) as process_item:
        for item in items:
            process_item(item)


class _Pool(Generic[T]):
    def __init__(self, open_worker: OpenWorker[T], workers: int) -> None:
        self._open_worker = open_worker
        self._items: _Channel[T] = _Channel(workers)
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(slot,), name=f"bulk load {slot}")
            for slot in range(workers)
        ]

    def process(self, items: Iterable[T]) -> None:
        for thread in self._threads:
            thread.start()
        finished = False
        try:
            finished = all(map(self._items.put, items))
        finally:
            self._items.close(drop=not finished)
            for thread in self._threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, slot: int) -> None:
        try:
            with self._open_worker(slot) as process_item:
                for item in self._items:
                    process_item(item)
        except BaseException as error:
            self._errors.append(error)
            self._items.close(drop=True)


class _Channel(Generic[T]):
    """A short queue that either end can close."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Wait for room; return False where the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._length)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._items)
                if not self._items:
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def close(self, *, drop: bool) -> None:
        with self._changed:
            self._closed = True
            if drop:
                self._items.clear()
            self._changed.notify_all()
