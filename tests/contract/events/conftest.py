"""Listeners that stop listening when their test ends, and their events in a few words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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


def told(events: Iterable[Event]) -> list[tuple[str, str, int]]:
    """Return the name, the verb and the number of jobs of each event."""
    return [(event.name, event.verb, len(event.jobs)) for event in events]


def names(events: Iterable[Event]) -> list[str]:
    return [event.name for event in events]
