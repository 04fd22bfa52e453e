"""Wake-ups: an idle worker learns of a new job at once, and does not only look now and then.

A worker is woken by other threads of its process, and by a watcher, which has a source: what its
database tells of changes, or a look for due jobs now and then. A source that is away or wrong
costs time only: the worker claims at least once in each `poll`, whatever it hears; in 10 seconds,
if that is longer, where the watcher looks in each `poll`. Here is Wakeups: all that wakes one
worker.

======================  =====================================================
``watcher``             the thread, or task, that waits for a source, and how often it looks;
                        the alarm: it pauses after a ring that was for nothing
``source``              what it waits for, and the plain read for due jobs
``listening``           PostgreSQL: LISTEN
======================  =====================================================

What the verbs do for it is in ``events/notes.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Engine

from ..dialects import Database
from ..events.listeners import watch_flushes
from ..events.notes import channel_of
from ..model.mapping import QueueMapping, any_mapping_of
from ..process import Runtime
from ..strategies import ClaimSpec
from .listening import Listening
from .source import DataVersion, Look, Looking
from .watcher import Alarm, Watcher

__all__ = ["Wakeups"]

#: How long after a ring a look for due times comes, if the worker is still idle then.
AFTER_CLAIM = timedelta(milliseconds=100)


class Wakeups:
    """What wakes a worker, inside of the block of its ``with``.

    Args:
        specs: what its queues claim.
        wake: has the worker claim at a time, by time.monotonic(); any thread may call it.
        poll: the longest pause between two looks.
        shared: other connections see the database: it is not in memory.
    """

    def __init__(
        self,
        engine: Engine,
        database: Database,
        specs: Sequence[ClaimSpec],
        wake: Callable[[float], None],
        *,
        runtime: Runtime,
        poll: timedelta,
        shared: bool,
    ) -> None:
        self._engine, self._database, self._specs = engine, database, specs
        self._shared = shared
        self._runtime = runtime
        self._alarm = Alarm(wake)
        self._in_process = woken_by_verbs([spec.mapping for spec in specs], self._hear)
        look = Look(specs, database, engine.get_execution_options())
        self._watcher = Watcher(self._alarm, look, poll=poll)

    def __enter__(self) -> Wakeups:
        self._in_process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runtime.run_blocking(self._watcher.end)
        finally:
            self._in_process.__exit__(None, None, None)

    @property
    def healthy(self) -> bool:
        """Whether a new job wakes the worker, so that it need not claim often by itself."""
        return self._watcher.healthy and (self._source.tells or self._source.often)

    @property
    def looks(self) -> bool:
        """Whether the watcher looks for due jobs again and again, since nothing tells of them."""
        return self._source.often and not self._source.tells

    def claimed(self, *, found: bool) -> None:
        """Note a claim of the worker, and whether it found jobs."""
        was_idle = self._alarm.idle
        self._alarm.claimed(found=found)
        if found or was_idle or not self._shared:
            return
        if not self._watcher.started:
            self._source = self._new_source()
            self._watcher.start(self._source)
        self._watcher.look_soon()

    def _hear(self) -> None:
        """Ring; a job that is not due yet is found by a look after the claim."""
        self._alarm.ring()
        if self._watcher.started:
            self._watcher.look_soon(AFTER_CLAIM.total_seconds())

    def _new_source(self) -> Looking:
        if self._database.tells_changes:
            return DataVersion(self._engine)
        mappings = [spec.mapping for spec in self._specs]
        tables = {mapping.table for mapping in mappings if mapping.args.notify}
        if not (tables and self._database.notifies):
            return Looking(self._engine)
        return Listening(
            self._engine,
            self._database,
            sorted(map(channel_of, tables)),
            tells=all(mapping.args.notify for mapping in mappings),
            heard=self._hear,
            noticed=self._watcher.notice,
        )


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
