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
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import Engine, select

from ..dialects import database_of
from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.mapping import mapping_of, word_of
from ..model.status import UNCLAIMED
from ..sessions.transactions import transaction
from .insert_source import BATCH_SIZE, InsertSource, OnExisting, check_option
from .row_writer import RowBatch, connected
from .source import Metadata

Visible = Literal["as inserted", "at the end"]

#: The status of a job until its load is complete.
LOADING = "loading"


class EnqueueSource(InsertSource):
    """Insert unclaimed jobs, batch by batch.

    Args:
        entity: a mapped class with JobMixin.
        visible: when jobs can be claimed: "as inserted", or "at the end", when all are
            in; then they become claimable a batch at a time.

    The other arguments are those of :class:`InsertSource`. Rows without ``run_at`` become due
    when the load begins.

    Raises:
        ArgumentError: an argument cannot work, or a row has a naive time.
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
        visible: Visible = "as inserted",
    ) -> None:
        check_option("visible", visible, get_args(Visible))
        super().__init__(
            engine, entity, rows, total=total, batch_size=batch_size, on_existing=on_existing
        )
        self.mapping = mapping_of(entity)
        self.visible: Visible = visible

    def metadata(self) -> Metadata:
        """Return how many jobs there are, and when they can be claimed."""
        metadata = super().metadata()
        return replace(metadata, details={**metadata.details, "visible": self.visible})

    def resume(self, metadata: Metadata) -> None:
        """Accept the batch size and the visibility that the load began with."""
        super().resume(metadata)
        self.visible = metadata.details["visible"]

    def checked(self, row: dict[str, Any]) -> dict[str, Any]:
        """Refuse naive times; convert aware times to UTC."""
        for name in self.mapping.time_keys:
            value = row.get(name)
            if isinstance(value, datetime):
                if value.tzinfo is None:
                    raise ArgumentError(
                        f"{name}={value!r} has no time zone: give an aware datetime"
                    )
                row[name] = as_utc(value)
        return row

    def defaults(self) -> Mapping[str, Any]:
        """Return status and time of new jobs."""
        names = self.mapping.attributes
        word = LOADING if self.visible == "at the end" else self.mapping.word(UNCLAIMED)
        defaults: dict[str, Any] = {names["status"]: word_of(self.mapping, word)}
        if self.mapping.has("run_at"):
            # Bound as a value: COPY could not take a default in SQL.
            with self.engine.connect() as connection:
                defaults[names["run_at"]] = as_utc(
                    connection.execute(select(utc_now())).scalar_one()
                )
        return defaults

    def finish(self, batches: Iterator[RowBatch]) -> None:
        """Make the jobs claimable that are not claimable yet; tell the planner of all of them."""
        mapping = self.mapping
        rows, keys, table = 0, self.destination.keys, mapping.table
        with connected(self.engine) as connection:
            database = database_of(connection)
            change = (
                database.update_by_key(table, keys)
                .where(mapping.has_status(LOADING))
                .values({mapping.column("status"): mapping.literal(mapping.word(UNCLAIMED))})
            )
            for batch in batches:
                rows += len(batch.keys)
                if self.visible == "at the end":
                    with transaction(connection):
                        self.destination.execute_by_key(connection, change, keys, batch.keys)
            with transaction(connection):
                database.told_of_rows(connection, table, rows)
