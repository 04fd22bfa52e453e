"""The indexes that claims and reapers walk: which they are, by table, class or queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Index, Table

from ..errors import ArgumentError
from ..model.indexes import index_of, index_serving
from ..model.mapping import any_mapping_of
from ..queue import JobQueue
from .building import build, drop
from .running import PATIENCE, Op, Runner
from .targets import AnyTable, key_of, queue_of


def create_claim_index(
    op: Op,
    table: AnyTable | JobQueue[Any],
    *mixins: Any,
    online: bool = True,
    key: Sequence[str] | str | None = None,
    queue_args: Mapping[str, Any] | None = None,
    name: str | None = None,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Create the index that claims walk, the very one that the model declares.

    Online, it commits by itself: what the migration did before it is committed,
    too. Broken off, it may be run again.

    Args:
        table: its name; or a Table, or a mapped class. Or a JobQueue: then the
            index serves that queue's predicate and order, for a class without a
            mixin too.
        mixins: those of the model, where its name alone is given.
        online: writers go on meanwhile. Otherwise a plain CREATE INDEX, in the
            migration's own transaction.
        key: the primary key's columns, which end the index; asked for by --sql only.
        queue_args: the model's ``__queue_args__``, where its name alone is given.
        name: another name than the model gives it, for a JobQueue.
        partitions: what the table is divided into, for PostgreSQL by --sql only; None:
            it is not divided.
        patience: how long to wait in all for locks that others have; the time that
            it takes to build does not count.

    Raises:
        ArgumentError: an index of this name is there, and is another one; or no
            index can serve the queue.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    if isinstance(table, JobQueue):
        index = _index_for(table, name=name)
    else:
        index = _index(
            runner, table, mixins, "claim", key=key, queue_args=queue_args, schema=schema
        )
    build(runner, index, online=online)


def create_reap_index(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    online: bool = True,
    queue_args: Mapping[str, Any] | None = None,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Create the index that reapers walk: status and owner_date.

    Args:
        table, mixins, online, queue_args, schema, partitions, patience: as in
            :func:`create_claim_index`.

    Raises:
        ArgumentError: an index of this name is there, and is another one.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    index = _index(runner, table, mixins, "reap", key="id", queue_args=queue_args, schema=schema)
    build(runner, index, online=online)


def drop_claim_index(
    op: Op,
    table: AnyTable | JobQueue[Any],
    *,
    online: bool = True,
    name: str | None = None,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the index that claims walk, if it is there.

    Args:
        table, online, name, schema, partitions, patience: as in :func:`create_claim_index`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    if isinstance(table, JobQueue):
        index = _index_for(table, name=name)
    else:
        index = _index(runner, table, (), "claim", key="id", queue_args=None, schema=schema)
    drop(runner, index, online=online)


def drop_reap_index(
    op: Op,
    table: AnyTable,
    *,
    online: bool = True,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the index that reapers walk, if it is there.

    Args:
        table, online, schema, partitions, patience: as in :func:`create_claim_index`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    index = _index(runner, table, (), "reap", key="id", queue_args=None, schema=schema)
    drop(runner, index, online=online)


# Which index


def _index(
    runner: Runner,
    table: AnyTable,
    mixins: Sequence[Any],
    purpose: str,
    *,
    key: Sequence[str] | str | None,
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
) -> Index:
    """Return the index that the model has, or would have."""
    real = table if isinstance(table, Table) else None
    if isinstance(table, type):
        real = any_mapping_of(table).table
    index = None if real is None else index_of(real, purpose)
    if index is None:
        columns = key_of(runner, table, key=key, schema=schema)
        queue = queue_of(runner, table, mixins, queue_args=queue_args, schema=schema, key=columns)
        index = index_of(queue.table, purpose)
    if index is None:
        raise ArgumentError(
            f"{table!r} has no {purpose} index: its claim order is by columns of another table, "
            "or its mixins have no status"
        )
    return index


def _index_for(queue: JobQueue[Any], *, name: str | None) -> Index:
    spec = queue.plan.spec
    return index_serving(
        queue.mapping,
        spec.where,
        order=spec.order_by or queue.mapping.order,
        ready=spec.ready if queue.mapping.is_queue else None,
        name=name,
    )
