"""Jobs, as a source: claimable as they come in, or all of them at the end.

::

    EnqueueSource(engine, Email, rows, visible="at the end")

Until then their status is ``loading``, which no claim looks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Engine, select
from sqlalchemy.orm import Session

from ...dialects import database_of
from ...dialects.clock import as_utc, utc_now
from ...errors import ArgumentError
from ...model.mapping import mapping_of
from ...model.status import UNCLAIMED, status_word
from ...sessions.transactions import transaction
from ..source import Metadata
from .insert_batches import RowBatch
from .insert_source import BATCH_SIZE, InsertSource, OnExisting, connected
from .rows import Row

Visible = Literal["as inserted", "at the end"]

#: What a job is until its load is in.
LOADING = "loading"


class EnqueueSource(InsertSource):
    """Insert unclaimed jobs, batch by batch.

    Args:
        entity: a mapped class with JobMixin.
        priority: for the rows that do not say their own.
        run_at: aware; for the rows that do not say their own, by default now.
        visible: from when on they can be claimed. "at the end": when all are in.
        at_once: at the end in one transaction, whatever its size; else a batch at a time.

    The other arguments are those of :class:`InsertSource`.

    Raises:
        ArgumentError: `priority` or `run_at` without the mixin, or a naive time.
    """

    def __init__(
        self,
        engine: Engine,
        entity: type[Any],
        rows: Any,
        *,
        total: int | None = None,
        batch_size: int = BATCH_SIZE,
        on_existing: OnExisting = "error",
        copy: bool = True,
        priority: int | None = None,
        run_at: datetime | None = None,
        visible: Visible = "as inserted",
        at_once: bool = False,
    ) -> None:
        if visible not in get_args(Visible):
            raise ArgumentError(f"visible is one of {', '.join(get_args(Visible))}: {visible!r}")
        if on_existing == "update" and visible == "at the end":
            raise ArgumentError(
                "on_existing='update' would hide jobs that were there before until the end, from "
                "those who work on them: keep them, or make the new ones visible as inserted"
            )
        super().__init__(
            engine,
            entity,
            rows,
            total=total,
            batch_size=batch_size,
            on_existing=on_existing,
            copy=copy,
        )
        self.mapping = mapping_of(entity)
        self.visible: Visible = visible
        self.at_once = at_once
        self._common = self._given(priority=priority, run_at=run_at)
        self._now: datetime | None = None

    def metadata(self) -> Metadata:
        """Tell how many jobs there are, and when they can be claimed."""
        told = super().metadata()
        details = {**told.details, "visible": self.visible}
        return Metadata(total=told.total, batch_size=told.batch_size, details=details)

    def resume(self, metadata: Metadata) -> None:
        """Take back what the load began with."""
        super().resume(metadata)
        self.visible = metadata.details.get("visible", self.visible)

    def checked(self, rows: list[Row]) -> list[Row]:
        """Refuse naive times; return aware ones as UTC."""
        return [self._checked(dict(row)) for row in rows]

    def common(self) -> Mapping[str, Any]:
        """Return status, priority and time of new jobs: old ones keep theirs."""
        status = self.mapping.attributes["status"]
        word = LOADING if self.visible == "at the end" else self.mapping.word(UNCLAIMED)
        return {status: status_word(word), **self._common, **self._due()}

    def finish(self, batches: Iterator[RowBatch]) -> None:
        """Have the jobs seen, if they are not yet."""
        if self.visible != "at the end":
            return
        with connected(self.engine) as connection:
            if self.at_once:
                with transaction(connection):
                    for batch in batches:
                        self._show(connection, batch)
                return
            for batch in batches:
                with transaction(connection):
                    self._show(connection, batch)

    def _show(self, connection: Connection, batch: RowBatch) -> None:
        status = self.mapping.column("status")
        change = (
            database_of(connection)
            .update_by_key(self.mapping.table, self.target.keys)
            .where(self.mapping.has_status(LOADING))
            .values({status: self.mapping.word(UNCLAIMED)})
        )
        self.target.execute_by_key(connection, change, batch.keys)

    # -- rows -----------------------------------------------------------

    def _given(self, **given: Any) -> Mapping[str, Any]:
        mixins = {"priority": "PriorityMixin", "run_at": "ScheduleMixin"}
        wanted = {role: value for role, value in given.items() if value is not None}
        for role in wanted:
            if not self.mapping.has(role):
                raise ArgumentError(f"{self.target} has no {role}: add {mixins[role]}")
        return self._checked({self.mapping.attributes[role]: wanted[role] for role in wanted})

    def _due(self) -> Mapping[str, Any]:
        """Bind the time of a job that says none: a default in SQL keeps COPY out."""
        if not self.mapping.has("run_at"):
            return {}
        name = self.mapping.attributes["run_at"]
        if name in self._common:
            return {}
        if self._now is None:
            with Session(self.engine) as session:
                self._now = as_utc(session.execute(select(utc_now())).scalar_one())
        return {name: self._now}

    def _checked(self, row: dict[str, Any]) -> dict[str, Any]:
        for name in self.mapping.time_keys:
            value = row.get(name)
            if isinstance(value, datetime):
                if value.tzinfo is None:
                    raise ArgumentError(f"{name}={value!r} has no time zone; use an aware datetime")
                row[name] = as_utc(value)
        return row
