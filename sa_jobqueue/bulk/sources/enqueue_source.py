"""Jobs as a source: claimable as soon as they are inserted, or all at the end.

::

    EnqueueSource(engine, Email, rows, visible="at the end")

Until the end their status is ``loading``, which no claim looks for.

Limits: workers that delete finished jobs may delete all jobs of a batch before a killed load
goes on. With a FileLog, the load then inserts a batch in doubt again. A DatabaseLog leaves no
batch in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Engine, select
from sqlalchemy.orm import Session

from ...dialects import database_of
from ...dialects.clock import as_utc, utc_now
from ...errors import ArgumentError
from ...model.mapping import mapping_of, word_of
from ...model.status import UNCLAIMED
from ...sessions.transactions import transaction
from ..source import Metadata
from .connections import connected
from .insert_source import BATCH_SIZE, InsertSource, OnExisting, check_option
from .row_writer import RowBatch
from .rows import Row

Visible = Literal["as inserted", "at the end"]

#: The status of a job until its load is complete.
LOADING = "loading"


class EnqueueSource(InsertSource):
    """Insert unclaimed jobs, batch by batch.

    Args:
        entity: a mapped class with JobMixin.
        priority: the priority of rows that do not give their own.
        run_at: the aware time of rows that do not give their own; by default now.
        visible: when jobs can be claimed: "as inserted", or "at the end", when all are
            in.
        at_once: make jobs claimable at the end in one transaction, whatever its size;
            otherwise a batch at a time.

    The other arguments are those of :class:`InsertSource`.

    Raises:
        ArgumentError: `priority` or `run_at` without its mixin, or a naive time.
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
        check_option("visible", visible, get_args(Visible))
        if on_existing == "update" and visible == "at the end":
            raise ArgumentError(
                "on_existing='update' would hide existing jobs from workers until the end of the "
                "load: use on_existing='keep', or visible='as inserted'"
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
        self._given_defaults = self._defaults_from(priority=priority, run_at=run_at)
        self._now: datetime | None = None

    def metadata(self) -> Metadata:
        """Return how many jobs there are, and when they can be claimed."""
        metadata = super().metadata()
        return replace(metadata, details={**metadata.details, "visible": self.visible})

    def resume(self, metadata: Metadata) -> None:
        """Accept the batch size and the visibility that the load began with."""
        super().resume(metadata)
        self.visible = metadata.details.get("visible", self.visible)

    def checked(self, rows: list[Row]) -> list[Row]:
        """Refuse naive times; convert aware times to UTC."""
        return [self._checked(dict(row)) for row in rows]

    def defaults(self) -> Mapping[str, Any]:
        """Return status, priority and time of new jobs; existing jobs keep theirs."""
        status = self.mapping.attributes["status"]
        word = LOADING if self.visible == "at the end" else self.mapping.word(UNCLAIMED)
        return {
            status: word_of(self.mapping, word),
            **self._given_defaults,
            **self._default_run_at(),
        }

    def finish(self, batches: Iterator[RowBatch]) -> None:
        """Make the jobs claimable that are not claimable yet; tell the planner of all of them."""
        rows = 0
        with connected(self.engine) as connection:
            with transaction(connection) if self.at_once else nullcontext():
                for batch in batches:
                    rows += len(batch.keys)
                    if self.visible == "at the end":
                        with nullcontext() if self.at_once else transaction(connection):
                            self._make_claimable(connection, batch)
            with transaction(connection):
                table = self.mapping.table
                database_of(connection).told_of_rows(connection, table, rows)

    def _make_claimable(self, connection: Connection, batch: RowBatch) -> None:
        status = self.mapping.column("status")
        change = (
            database_of(connection)
            .update_by_key(self.mapping.table, self.destination.keys)
            .where(self.mapping.has_status(LOADING))
            .values({status: self.mapping.literal(self.mapping.word(UNCLAIMED))})
        )
        self.destination.execute_by_key(connection, change, batch.keys)

    # -- rows -----------------------------------------------------------

    def _defaults_from(self, **given: Any) -> Mapping[str, Any]:
        mixins = {"priority": "PriorityMixin", "run_at": "ScheduleMixin"}
        wanted = {role: value for role, value in given.items() if value is not None}
        for role in wanted:
            if not self.mapping.has(role):
                raise ArgumentError(f"{self.destination} has no {role}: add {mixins[role]}")
        return self._checked({self.mapping.attributes[role]: wanted[role] for role in wanted})

    def _default_run_at(self) -> Mapping[str, Any]:
        """Bind the time as a value: COPY could not take a default in SQL."""
        if not self.mapping.has("run_at"):
            return {}
        name = self.mapping.attributes["run_at"]
        if name in self._given_defaults:
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
                    raise ArgumentError(
                        f"{name}={value!r} has no time zone: give an aware datetime"
                    )
                row[name] = as_utc(value)
        return row
