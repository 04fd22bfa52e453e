"""Listeners that stop listening when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sa_jobqueue.events import EVENTS, Event, listen, remove

Hear = Callable[..., list[Event]]


@pytest.fixture
def hear() -> Iterator[Hear]:
    """Collect the events of a class or a queue, by default all of them."""
    listening: list[tuple[Any, str, Any]] = []

    def collect(target: Any, *names: str) -> list[Event]:
        heard: list[Event] = []
        for name in names or EVENTS:
            listen(target, name, heard.append)
            listening.append((target, name, heard.append))
        return heard

    yield collect
    for target, name, function in listening:
        remove(target, name, function)
