"""Create and drop the indexes of claims and reapers, for a table, a class or a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Index, Table

from ..errors import ArgumentError
from ..model.indexes import index_of, index_serving, key_indexes
from ..model.mapping import any_mapping_of
from ..queue import JobQueue
from .build_index import build_index, drop_index
from .runner import PATIENCE, Op, Runner
from .tables import AnyTable, mapping_for, primary_key_of

T = TypeVar("T")


def create_claim_index(
    op: Op,
    table: AnyTable | JobQueue[Any],
    *mixins: Any,
    online: bool = True,
    replace: bool = False,
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
        replace: whether a different index of this name makes way, as after a change of
            ``equality``: the new one is built beside it, then they are swapped in a moment.
        key: the primary key's columns, which end the index; needed for --sql only.
        queue_args: the model's ``__queue_args__``, where `table` is a name.
        name: the index's name, where it is not the model's, for a JobQueue.
        partitions: the names of the table's partitions, for --sql on PostgreSQL only;
            None: it has no partitions.
        patience: how long to wait in all for locks that others hold; the time to build
            the index does not count.

    Raises:
        ArgumentError: a different index of this name exists, and `replace` is False; or no
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
    build_index(runner, index, online=online, replace=replace)


def create_reap_index(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    online: bool = True,
    replace: bool = False,
    queue_args: Mapping[str, Any] | None = None,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Create the index that reapers walk: status and owner_date.

    Args:
        table, mixins, online, replace, queue_args, schema, partitions, patience: as in
            :func:`create_claim_index`.

    Raises:
        ArgumentError: a different index of this name exists.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    index = _index(runner, table, mixins, "reap", key="id", queue_args=queue_args, schema=schema)
    build_index(runner, index, online=online, replace=replace)


def create_key_index(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    online: bool = True,
    replace: bool = False,
    key: Sequence[str] | str | None = None,
    queue_args: Mapping[str, Any] | None = None,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Create the indexes of ``per_key``, by which claims with ``serial_by`` find the next keys.

    ::

        create_key_index(op, "orders", JobMixin, queue_args={"per_key": "account_id"})

    Args:
        queue_args: the model's ``__queue_args__`` with its ``per_key``, where `table` is a
            name; one index is made for each key that it names.
        table, mixins, online, replace, key, schema, partitions, patience: as in
            :func:`create_claim_index`.

    Raises:
        ArgumentError: the model names no keys; or a different index of this name exists.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    for index in _key_indexes(runner, table, mixins, key=key, queue_args=queue_args, schema=schema):
        build_index(runner, index, online=online, replace=replace)


def drop_key_index(
    op: Op,
    table: AnyTable,
    *,
    online: bool = True,
    queue_args: Mapping[str, Any] | None = None,
    schema: str | None = None,
    partitions: Sequence[str] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the indexes of ``per_key``, those that exist.

    Args:
        table, online, queue_args, schema, partitions, patience: as in
            :func:`create_key_index`.

    Raises:
        ArgumentError: the model names no keys.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience, partitions=partitions)
    for index in _key_indexes(runner, table, (), key="id", queue_args=queue_args, schema=schema):
        drop_index(runner, index, online=online, with_replacement=True)


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
    drop_index(runner, index, online=online, with_replacement=True)


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
    drop_index(runner, index, online=online, with_replacement=True)


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
    index = _found_in(
        table,
        runner,
        mixins,
        key=key,
        queue_args=queue_args,
        schema=schema,
        find=lambda of: index_of(of, purpose),
    )
    if index is None:
        raise ArgumentError(
            f"{table!r} has no {purpose} index: its claim order has columns of another table, or "
            "its mixins have no status column"
        )
    return index


def _key_indexes(
    runner: Runner,
    table: AnyTable,
    mixins: Sequence[Any],
    *,
    key: Sequence[str] | str | None,
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
) -> list[Index]:
    """Return the indexes of keys that the model declares, or would declare."""
    found = _found_in(
        table, runner, mixins, key=key, queue_args=queue_args, schema=schema, find=key_indexes
    )
    if not found:
        raise ArgumentError(
            f"{table!r} has no keys: name them, as in queue_args={{'per_key': 'account_id'}}, or "
            "in the model's __queue_args__"
        )
    return found


def _found_in(
    table: AnyTable,
    runner: Runner,
    mixins: Sequence[Any],
    *,
    key: Sequence[str] | str | None,
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
    find: Callable[[Table], T],
) -> T:
    """Find something in the model's table, or else in that of a model with these mixins."""
    real = table if isinstance(table, Table) else None
    if isinstance(table, type):
        real = any_mapping_of(table).table
    found = None if real is None else find(real)
    if found:
        return found
    columns = primary_key_of(runner, table, key=key, schema=schema)
    return find(
        mapping_for(runner, table, mixins, queue_args=queue_args, schema=schema, key=columns).table
    )


def _index_for(queue: JobQueue[Any], *, name: str | None) -> Index:
    spec = queue.plan.spec
    return index_serving(
        queue.mapping,
        spec.where,
        order=spec.order_by or queue.mapping.order,
        ready=spec.ready if queue.mapping.is_queue else None,
        name=name,
    )
