"""Rates: how many jobs may begin in a time, of all workers together, kept by the database.

::

    rate_table(Base.metadata)                    # before create_all(), or a migration

    JobQueue(Email, rate=Rate(10, per=timedelta(seconds=1)))
    JobQueue(Email, rate=Rate(100, per=timedelta(hours=1), burst=5), rate_by=Email.customer_id)

A rate has a bucket, with `rate_by` one for each key. A bucket holds `burst` tokens at most; each
claimed job takes one, and they come back evenly. The table has one time for a bucket: when it will
be full again. A bucket without a row is full. docs/limits.md has the limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, MetaData, String, Table, bindparam, delete, select

from .databases.clock import utc_now
from .errors import ArgumentError
from .model.columns import timestamp_type
from .model.keys import RATES, beside, mapping_of_queue
from .model.mapping import QueueMapping
from .sessions.transactions import missing_tables_named
from .sessions.writer import AnySession, writing

__all__ = ["Rate", "prune_rates", "rate_table"]

#: The longest name of a rate: by default a table's schema and name, and a status.
NAME_LENGTH = 150

#: The longest text that stands for a key.
BUCKET_LENGTH = 64

#: What comes back in this time may be taken at once by default: claims come late by less.
SPREAD = timedelta(milliseconds=100)

#: The longest time in which an empty bucket fills.
LONGEST = timedelta(days=36_500)

#: For how long a bucket is full before its row is deleted.
FULL_FOR = timedelta(minutes=1)

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Rate:
    """At most so many jobs begin in a time; in any time `t`, ``count * t / per + burst`` at most.

    Attributes:
        count: how many jobs.
        per: in which time.
        burst: how many may begin at once after a pause; by default one more than come back in a
            tenth of a second, so the jobs are spread evenly.
        name: queues whose rates have one name share its buckets; by default the queue's table, and
            its `ready` status if that is its own.

    Raises:
        ArgumentError: a number below 1, a time that is not longer than zero, or a bucket that
            would take more than a hundred years to fill.
    """

    count: int
    per: timedelta = field(kw_only=True)
    burst: int = field(default=0, kw_only=True)
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.per, timedelta) or self.per <= timedelta(0):
            raise ArgumentError(f"per= takes a timedelta longer than zero, not {self.per!r}")
        if self.burst == 0 and _is_number(self.count):
            object.__setattr__(
                self, "burst", 1 + self.count * (SPREAD // _MICROSECOND) // self._per
            )
        if not (_is_number(self.count) and _is_number(self.burst)):
            raise ArgumentError(f"a rate and its burst are numbers of jobs, at least 1: {self!r}")
        if self.burst * self._per // self.count > LONGEST // _MICROSECOND:
            raise ArgumentError(f"a bucket fills within a hundred years at most: {self!r}")
        if len(self.name) > NAME_LENGTH:
            raise ArgumentError(f"the name of a rate has at most {NAME_LENGTH} characters")

    # In whole microseconds; rounded so that no job begins too soon.

    @property
    def _per(self) -> int:
        return self.per // _MICROSECOND

    def cost(self, jobs: int) -> timedelta:
        """Return by how much later the bucket is full after so many jobs."""
        return -(-jobs * self._per // self.count) * _MICROSECOND

    @property
    def room(self) -> timedelta:
        """How long a bucket may take to be full while it holds a token."""
        return (self.burst - 1) * self._per // self.count * _MICROSECOND

    def tokens(self, full_in: timedelta) -> int:
        """Return how many tokens a bucket holds that is full in this time."""
        missing = max(0, full_in // _MICROSECOND) * self.count
        return max(0, (self.burst * self._per - missing) // self._per)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def rate_table(metadata: MetaData, *, name: str = "job_rates", schema: str | None = None) -> Table:
    """Add the table of buckets to a MetaData, once, and return it.

    Args:
        schema: by default that of the metadata.
    """
    if RATES in metadata.info:
        found: Table = metadata.info[RATES]
        return found
    metadata.info[RATES] = table = Table(
        name,
        metadata,
        Column("rate", String(NAME_LENGTH), primary_key=True),
        Column("bucket", String(BUCKET_LENGTH), primary_key=True),
        Column("full_at", timestamp_type(), nullable=False),
        schema=schema,
    )
    return table


def rate_table_of(mapping: QueueMapping) -> Table:
    """Return the table of buckets in a queue's metadata.

    Raises:
        ArgumentError: there is none.
    """
    found: Table | None = beside(mapping, RATES)
    if found is None:
        raise ArgumentError(
            f"rate= keeps its buckets in a table, and the metadata of {mapping} has none: call "
            "rate_table(metadata) with the metadata of its table, before the tables are created"
        )
    return found


def prune_rates(session: AnySession, queue: Any, *, limit: int = 1_000) -> int:
    """Delete buckets that have been full for a minute, of all rates; a worker does so by itself.

    Buckets that a claim has locked are left alone, and no claim waits.

    Args:
        queue: a queue beside the table of buckets.
        limit: the most rows to delete.

    Returns:
        how many were deleted.

    Raises:
        ArgumentError: no queue, or its metadata has no table of buckets.
        MissingTable: the database does not have it.
    """
    mapping = mapping_of_queue(queue)
    table = rate_table_of(mapping)
    is_full = table.c.full_at < utc_now(-(FULL_FOR // _MICROSECOND))
    found = select(table.c.rate, table.c.bucket).where(is_full).limit(limit)
    with missing_tables_named(lambda: [table]), writing(session, mapping) as writer:
        writer.lock_writes(table)
        found = found.with_for_update(skip_locked=writer.database.skip_locked)
        rows: Any = writer.core(found).all()
        full = [{"of_rate": row.rate, "of_bucket": row.bucket} for row in rows]
        same = [table.c.rate == bindparam("of_rate"), table.c.bucket == bindparam("of_bucket")]
        if full:
            writer.core(delete(table).where(*same), full)
        return len(full)
