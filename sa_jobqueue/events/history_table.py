"""The history as a table of the user's own database, written in the verbs' own transactions.

::

    history = history_table(Base.metadata)           # before create_all(), or a migration
    HistoryTable(history).listen(Email)

Who had row 7 at 14:03, under which fence?

.. code-block:: sql

    SELECT event, owner, owner_date, noted_at FROM job_history
    WHERE queue_table = 'email' AND job_key = '[7]' AND noted_at <= '2026-05-01 14:03'
    ORDER BY id DESC LIMIT 1

A row is there if and only if its verb was committed. It takes one INSERT for each event: the rows
of a claim are inserted together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    select,
)
from sqlalchemy.dialects import sqlite

from ..databases.clock import as_utc, utc_now
from ..model.columns import OWNER_LENGTH, timestamp_type
from ..model.keys import HISTORY, key_json, mapping_of_queue
from ..model.mapping import any_mapping_of
from ..model.status import LONGEST_WORD
from ..sessions.writer import Writer
from .event import Event
from .listeners import add_listener, remove

#: The longest text of a primary key, such as ``[7]``; a longer one is cut.
KEY_LENGTH = 100


def history_table(metadata: MetaData, name: str = "job_history") -> Table:
    """Add the table of the history to a MetaData."""
    metadata.info[HISTORY] = made = Table(
        name,
        metadata,
        # SQLite numbers INTEGER keys alone.
        Column("id", BigInteger().with_variant(sqlite.INTEGER(), "sqlite"), primary_key=True),
        Column("noted_at", timestamp_type(), nullable=False),
        Column("queue_table", String(64), nullable=False),
        Column("job_key", String(KEY_LENGTH), nullable=False),
        Column("event", String(20), nullable=False),
        Column("verb", String(20), nullable=False),
        Column("status", String(LONGEST_WORD)),
        Column("owner", String(OWNER_LENGTH)),
        Column("owner_date", timestamp_type()),
        Column("attempts", Integer),
        Column("error", Text),
        Index(f"{name}_job", "queue_table", "job_key", "id"),
    )
    return made


@dataclass(frozen=True)
class JobRecord:
    """A row of the history, about one job."""

    noted_at: datetime
    event: str
    verb: str
    status: str | None
    owner: str | None
    attempts: int | None
    error: str | None


def job_records(
    connection: Connection, table: Table, queue: Any, key: tuple[Any, ...], *, limit: int
) -> list[JobRecord]:
    """Read what the history knows of a job by its index, the newest first.

    Args:
        table: what :func:`history_table` has returned.
        queue: a mapped class, a JobQueue or a workflow's step.
        limit: the most records to read.
    """
    columns = [table.c[field.name] for field in fields(JobRecord)]
    found = select(*columns).where(
        table.c.queue_table == mapping_of_queue(queue).table.fullname,
        table.c.job_key == key_json(key)[:KEY_LENGTH],
    )
    rows = connection.execute(found.order_by(table.c.id.desc()).limit(limit))
    return [JobRecord(**{**row._asdict(), "noted_at": as_utc(row.noted_at)}) for row in rows]


class HistoryTable:
    """Record the events of classes and queues as rows.

    Events without a transaction, such as after_start, are not recorded.

    Args:
        table: what :func:`history_table` has returned.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def listen(self, *targets: Any) -> HistoryTable:
        """Record the events of mapped classes, or of JobQueues, from now on."""
        for target in targets:
            add_listener(target, self._note, None)
        return self

    def remove(self, *targets: Any) -> None:
        """Stop recording the events of targets."""
        for target in targets:
            remove(target, None, self._note)

    def _note(self, event: Event, writer: Writer | None) -> None:
        """Insert a row for each job, in the transaction of the verb."""
        if writer is None or not event.jobs:
            return
        mapping = any_mapping_of(event.entity)
        row = {
            "queue_table": mapping.table.fullname,
            "event": event.name,
            "verb": event.verb,
            "error": event.error,
        }
        copied = ("status", "owner", "owner_date", "attempts")
        rows = [
            {
                **row,
                "job_key": key_json(job.key)[:KEY_LENGTH],
                **{name: getattr(job, name) for name in copied},
            }
            for job in event.jobs
        ]
        writer.connection.execute(insert(self.table).values(noted_at=utc_now()), rows)
