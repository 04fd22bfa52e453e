"""Create and drop the indexes of claims and reapers, for a table, a class or a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Index, Table

from ..errors import ArgumentError
from ..model.indexes import index_of, index_serving
from ..model.mapping import any_mapping_of
from ..queue import JobQueue
from .build_index import build_index, drop_index
from .runner import PATIENCE, Op, Runner
from .tables import AnyTable, mapping_for, primary_key_of


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
    """Create the index that claims walk, the same as the model declares.

    Online, it commits by itself, and with it whatever the migration did before. After
    an interruption it may be run again.

    Args:
        table: a table's name, a Table or a mapped class; or a JobQueue: then the index
            serves that queue's predicate and order, also for a class without a mixin.
        mixins: the model's mixins, where `table` is a name.
        online: whether others can write meanwhile. Otherwise a plain CREATE INDEX, in
            the migration's own transaction.
        key: the primary key's columns, which end the index; needed for --sql only.
        queue_args: the model's ``__queue_args__``, where `table` is a name.
        name: the index's name, where it is not the model's, for a JobQueue.
        partitions: the names of the table's partitions, for --sql on PostgreSQL only;
            None: it has no partitions.
        patience: how long to wait in all for locks that others hold; the time to build
            the index does not count.

    Raises:
        ArgumentError: a different index of this name exists; or no index can serve the
            queue.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    if isinstance(table, JobQueue):
        index = _index_for(table, name=name)
    else:
        index = _index(
            runner, table, mixins, "claim", key=key, queue_args=queue_args, schema=schema
        )
    build_index(runner, index, online=online)


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
        ArgumentError: a different index of this name exists.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    index = _index(runner, table, mixins, "reap", key="id", queue_args=queue_args, schema=schema)
    build_index(runner, index, online=online)


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
    """Drop the index that claims walk, if it exists.

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
    drop_index(runner, index, online=online)


def drop_reap_index(
    op: Op,
    table: AnyTable,
    *,
    online: bool = True,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the index that reapers walk, if it exists.

    Args:
        table, online, schema, partitions, patience: as in :func:`create_claim_index`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    index = _index(runner, table, (), "reap", key="id", queue_args=None, schema=schema)
    drop_index(runner, index, online=online)


# -- which index ----------------------------------------------------------


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
    """Return the index that the model declares, or would declare."""
    real = table if isinstance(table, Table) else None
    if isinstance(table, type):
        real = any_mapping_of(table).table
    index = None if real is None else index_of(real, purpose)
    if index is None:
        columns = primary_key_of(runner, table, key=key, schema=schema)
        queue = mapping_for(
            runner, table, mixins, queue_args=queue_args, schema=schema, key=columns
        )
        index = index_of(queue.table, purpose)
    if index is None:
        raise ArgumentError(
            f"{table!r} has no {purpose} index: its claim order has columns of another table, or "
            "its mixins have no status column"
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
