"""Lock the next ready rows: SELECT .. FOR UPDATE SKIP LOCKED in claim order."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Select

from ...dialects import Database, is_missing_index
from ...model.indexes import claim_index
from ...sessions.writer import Writer
from ..spec import Request
from .job_reads import LockingRead
from .ready_rows import ReadyRows

log = logging.getLogger("sa_jobqueue.claim")


def refusal_without_skip_locked(database: Database) -> str | None:
    """Return why a database cannot pass over locked rows; None if it can."""
    return None if database.skip_locked else "it has no SELECT .. FOR UPDATE SKIP LOCKED"


class ReadyLock:
    """The locking read of ready rows, bound to the claim index where an optimizer may stray."""

    def __init__(self, ready: ReadyRows, *, marks: bool) -> None:
        self._ready = ready
        self.read = LockingRead(ready, self._build, marks=marks)
        self.read_from_start = LockingRead(ready, self._build_from_start, marks=marks)
        self._without_index = False

    def lock(self, writer: Writer, request: Request) -> list[Any]:
        """Lock up to ``request.limit`` ready rows in claim order, level by level."""
        return self._ready.levels.collect(
            writer,
            request.limit,
            lambda **parameters: self._lock_some(writer, request, parameters),
        )

    def _lock_some(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        try:
            return self._read_for(writer).run(writer, request, parameters)
        except Exception as error:  # a handle_error listener may raise what it likes
            if self._without_index or not is_missing_index(error):
                raise
        log.warning(
            "%s has no claim index; claims may lock more than they take", self._ready.mapping
        )
        self._without_index = True
        self.read.forget()
        self.read_from_start.forget()
        return self._lock_some(writer, request, parameters)

    def _read_for(self, writer: Writer) -> LockingRead:
        """Choose the read: one that begins at the first ready row must see all commits."""
        misses_commits = not writer.begun_by_verb
        return self.read_from_start if misses_commits and self._ready.from_first else self.read

    def _build(self, *columns: Any) -> Select[Any]:
        read = self._build_from_start(*columns)
        return read if self._without_index else read.where(*self._ready.from_first)

    def _build_from_start(self, *columns: Any) -> Select[Any]:
        read = self._ready.locked(self._ready.select(*columns))
        return read if self._without_index else self._by_claim_index(read)

    def _by_claim_index(self, read: Select[Any]) -> Select[Any]:
        """Bind the read by a hint, else by FORCE INDEX, which is an error without the index."""
        ready = self._ready
        index = claim_index(ready.mapping)
        if index is None or ready.spec.order_by:
            return read
        if ready.claim_index_hint:
            return ready.by_claim_index(read)
        words = ready.database.forced_index(index)
        return read if words is None else read.with_hint(ready.mapping.table, words)
