"""Events in a few words."""

from __future__ import annotations

from collections.abc import Iterable

from sa_jobqueue.events import Event


def told(events: Iterable[Event]) -> list[tuple[str, str, int]]:
    """Return the name, the verb and the number of jobs of each event."""
    return [(event.name, event.verb, len(event.jobs)) for event in events]


def names(events: Iterable[Event]) -> list[str]:
    return [event.name for event in events]
