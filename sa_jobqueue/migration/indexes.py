"""Create and drop the indexes of a queue, or any index, while others go on writing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from alembic.operations import ops
from sqlalchemy import Index
from sqlalchemy import inspect as sa_inspect

from ..errors import ArgumentError
from ..model.indexes import index_serving, job_indexes
from ..queue import JobQueue
from .build_index import build_index, drop_index
from .runner import PATIENCE, Op, Runner
from .tables import AnyTable, mapping_for


def create_job_indexes(
    op: Op,
    table: AnyTable | JobQueue[Any],
    *mixins: Any,
    replace: bool = False,
    key: Sequence[str] | str | None = None,
    queue_args: Mapping[str, Any] | None = None,
    name: str | None = None,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Create the indexes of a queue as the model declares them, while others go on writing.

    These are the indexes of claims and of reaps, those of ``per_key``, and that of
    ``failed_index``. This commits by itself, and with it whatever the migration did
    before. After an interruption it may be run again.

    Args:
        table: a table's name, or a mapped class; or a JobQueue: then one index is made, which
            serves that queue's predicate and order, also for a class without a mixin.
        mixins: the model's mixins, where `table` is a name.
        replace: whether a different index of the same name makes way, as after a change of
            ``equality``. The new one is built beside it, then they are swapped in a moment.
        key: the primary key's columns, which end the index; needed for --sql only.
        queue_args: the model's ``__queue_args__``, where `table` is a name.
        name: the index's name, where it is not the model's, for a JobQueue.
        patience: how long to wait in all for locks that others hold; the time to build
            the index does not count.

    Raises:
        ArgumentError: a different index of the same name exists, and `replace` is False; or no
            index can serve the queue.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    if isinstance(table, str):
        key = key or _primary_key(runner, table, schema)
    for index in _indexes(runner, table, mixins, queue_args, schema, key, name):
        build_index(runner, index, replace=replace)


def drop_job_indexes(
    op: Op,
    table: AnyTable | JobQueue[Any],
    *,
    queue_args: Mapping[str, Any] | None = None,
    name: str | None = None,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the indexes of a queue, those that exist.

    Args:
        table, name, schema, patience: as in :func:`create_job_indexes`.
        queue_args: the model's ``__queue_args__``, where `table` is a name, and these name a
            ``per_key`` or the ``failed_index``.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    for index in _indexes(runner, table, (), queue_args, schema, "id", name):
        drop_index(runner, index)


def create_index_online(
    op: Op,
    index_name: str | None,
    table_name: str,
    columns: Sequence[Any],
    *,
    replace: bool = False,
    patience: timedelta = PATIENCE,
    **options: Any,
) -> None:
    """Create an index as ``op.create_index`` does, while others go on writing.

    It commits by itself, and with it whatever the migration did before. After an interruption
    it may be run again.

    Args:
        index_name, table_name, columns, options: as of ``op.create_index``.
        replace, patience: as in :func:`create_job_indexes`.

    Raises:
        ArgumentError: a different index of this name exists, and `replace` is False.
        LockTimeout: others kept the table locked.
    """
    index = ops.CreateIndexOp(index_name, table_name, columns, **options).to_index()
    build_index(Runner(op, patience=patience), index, replace=replace)


def drop_index_online(
    op: Op, index_name: str, table_name: str, *, patience: timedelta = PATIENCE, **options: Any
) -> None:
    """Drop an index as ``op.drop_index`` does, while others go on writing; it may be gone already.

    Args:
        index_name, table_name, options: as of ``op.drop_index``.
        patience: as in :func:`create_job_indexes`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    index = ops.DropIndexOp(index_name, table_name, **options).to_index()
    drop_index(Runner(op, patience=patience), index)


def _indexes(
    runner: Runner,
    table: AnyTable | JobQueue[Any],
    mixins: Sequence[Any],
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
    key: Sequence[str] | str | None,
    name: str | None,
) -> list[Index]:
    """Return the indexes that the model declares, or would declare; or that of a queue."""
    if isinstance(table, JobQueue):
        return [_index_serving(table, name)]
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    mapping = mapping_for(runner, table, mixins, queue_args, schema, columns)
    found = job_indexes(mapping.table)
    if not found:
        raise ArgumentError(
            f"{table!r} has no index for claims: its claim order has columns of another table, or "
            "its mixins have no status column"
        )
    return found


def _index_serving(queue: JobQueue[Any], name: str | None) -> Index:
    spec = queue.plan.spec
    return index_serving(
        queue.mapping,
        spec.where,
        order=spec.order_by or queue.mapping.order,
        ready=spec.ready if queue.mapping.is_queue else None,
        name=name,
    )


def _primary_key(runner: Runner, name: str, schema: str | None) -> Sequence[str]:
    if runner.offline:
        raise ArgumentError(
            f"without a database the primary key of {name!r} is not known: name it, as in "
            'key="id" or key=("tenant", "id")'
        )
    found = sa_inspect(runner.connection).get_pk_constraint(name, schema)["constrained_columns"]
    if not found:
        raise ArgumentError(f"{name!r} has no primary key: name unique columns as key=")
    return found
