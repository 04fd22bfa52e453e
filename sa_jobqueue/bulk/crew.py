"""Several threads that work off what one makes, as it is made."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

T = TypeVar("T")

#: What opens a thread's own things, by its number, and gives what does the work.
AtWork = Callable[[int], AbstractContextManager[Callable[[T], None]]]


def work_off(items: Iterable[T], at_work: AtWork[T], *, workers: int) -> None:
    """Do something with every item, and return when all is done.

    The first error ends it: what is under way is done, the rest is left.

    Args:
        items: iterated over in the calling thread, at most twice as many ahead as
            there are workers.
        workers: how many threads; 0: the calling thread does it.
    """
    if workers:
        _Crew(at_work, workers).work_off(items)
        return
    with at_work(0) as do:
        for item in items:
            do(item)


class _Crew(Generic[T]):
    def __init__(self, at_work: AtWork[T], workers: int) -> None:
        self._at_work = at_work
        self._items: _Channel[T] = _Channel(workers)
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"bulk load {slot}")
            for slot in range(workers)
        ]

    def work_off(self, items: Iterable[T]) -> None:
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

    def _serve(self, slot: int) -> None:
        try:
            with self._at_work(slot) as do:
                for item in self._items:
                    do(item)
        except BaseException as error:
            self._errors.append(error)
            self._items.close(drop=True)


class _Channel(Generic[T]):
    """A short queue that can be closed from both ends."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._waiting: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Wait for room; tell whether anybody still takes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._length)
            if not self._closed:
                self._waiting.append(item)
                self._changed.notify_all()
            return not self._closed

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if not self._waiting:
                    return
                item = self._waiting.popleft()
                self._changed.notify_all()
            yield item

    def close(self, *, drop: bool) -> None:
        with self._changed:
            self._closed = True
            if drop:
                self._waiting.clear()
            self._changed.notify_all()
