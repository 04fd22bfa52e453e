"""Threads that process items while another thread makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sa_jobqueue.bulk.threads import process

from .fakes import Killed


def test_after_an_error_running_batches_are_finished_and_the_rest_is_left() -> None:
    full = threading.Event()
    fails: list[threading.Thread] = []
    done: list[int] = []

    def items() -> Iterator[int]:
        yield from range(4)  # two that run, and two that wait
        full.set()

    def do(item: int) -> None:
        if item == 0:
            fails.append(threading.current_thread())
            assert full.wait(20)
            raise Killed
        assert full.wait(20)
        fails[0].join(20)
        done.append(item)

    @contextmanager
    def open_worker(slot: int) -> Iterator[Callable[[int], None]]:
        yield do

    with pytest.raises(Killed):
        process(items(), open_worker, workers=2)

    assert done == [1]


def test_the_first_error_is_the_one_that_is_raised() -> None:
    both = threading.Barrier(2, timeout=20)
    fails: list[threading.Thread] = []

    def do(item: int) -> None:
        if item == 0:
            fails.append(threading.current_thread())
            both.wait()
            raise Killed("first")
        both.wait()
        fails[0].join(20)
        raise Killed("second")

    @contextmanager
    def open_worker(slot: int) -> Iterator[Callable[[int], None]]:
        yield do

    with pytest.raises(Killed, match="first"):
        process(range(2), open_worker, workers=2)
