"""Jobs that this process has made claimable wake its own workers, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ..events.flushed import watch_flushes
from ..model.mapping import QueueMapping, any_mapping_of

_one_at_a_time = threading.Lock()


@contextmanager
def woken_by_verbs(mappings: Iterable[QueueMapping], wake: Callable[[], None]) -> Iterator[None]:
    """Have a function called after each commit that makes jobs of these classes claimable."""
    # All of them before any gets the call: a new mapping takes those of its parent.
    found = {
        any_mapping_of(mapper)
        for mapping in mappings
        for mapper in mapping.mapper.self_and_descendants
    }
    for mapping in found:
        watch_flushes(mapping.mapper)
    _change(found, lambda calls: (*calls, wake))
    try:
        yield
    finally:
        _change(found, lambda calls: tuple(call for call in calls if call is not wake))


_Calls = tuple[Callable[[], None], ...]


def _change(mappings: Iterable[QueueMapping], changed: Callable[[_Calls], _Calls]) -> None:
    with _one_at_a_time:
        for mapping in mappings:
            mapping.wake_calls = changed(mapping.wake_calls)
            mapping.wakes = mapping.args.notify or bool(mapping.wake_calls)
