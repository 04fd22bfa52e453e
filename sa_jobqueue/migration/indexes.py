"""Create and drop the indexes of a queue, or any index, while others go on writing.

PostgreSQL does it CONCURRENTLY, outside of a transaction; when that fails, it leaves an
invalid index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from alembic.operations import ops
from sqlalchemy import Connection, Index, Table
from sqlalchemy import inspect as sa_inspect

from ..doctor.examination import IndexColumn, ServerIndex, examination_of
from ..doctor.index_checks import WantedIndex, name_of, same_predicate
from ..errors import ArgumentError
from ..model.indexes import index_serving, job_indexes, shortened, twin
from ..queue import JobQueue
from .changes import online_index
from .runner import PATIENCE, AnyTable, Op, Runner, log, mapping_for

#: PostgreSQL cuts names after this number of bytes.
_NAME_LENGTH = 63


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
        _build_or_replace(runner, index, replace=replace)


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
        _drop_all(runner, index)


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
    _build_or_replace(Runner(op, patience=patience), index, replace=replace)


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
    _drop_all(Runner(op, patience=patience), index)


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
        queue, spec = table.mapping, table.plan.spec
        order, ready = spec.order_by or queue.order, spec.ready if queue.is_queue else None
        return [index_serving(queue, spec.where, order=order, ready=ready, name=name)]
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    mapping = mapping_for(runner, table, mixins, queue_args, schema, columns)
    found = job_indexes(mapping.table).values()
    if not found:
        raise ArgumentError(
            f"{table!r} has no index for claims: its claim order has columns of another table, or "
            "its mixins have no status column"
        )
    return list(found)


def _primary_key(runner: Runner, name: str, schema: str | None) -> Sequence[str]:
    inspector = None if runner.offline else sa_inspect(runner.connection)
    found = inspector and inspector.get_pk_constraint(name, schema)["constrained_columns"]
    if not found:
        raise ArgumentError(
            f"no primary key of {name!r} is known, and a --sql script cannot look for it: name it, "
            'or other unique columns, as in key="id" or key=("tenant", "id")'
        )
    return found


# -- as wanted ------------------------------------------------------------


def _build_or_replace(runner: Runner, index: Index, *, replace: bool = False) -> None:
    """Create an index unless it exists.

    Args:
        replace: a different index of the same name makes way, when the new one is built.

    Raises:
        ArgumentError: a different index of the same name exists, and `replace` is False.
        LockTimeout: others kept the table locked.
    """
    with runner.outside_transaction():
        if not runner.offline:
            if _is_there(runner, index, replace=replace):
                log.info("%s exists already", index.name)
                return
            replace = replace and _existing(runner, index) is not None
        if replace:
            _replace(runner, index)
        else:
            _build(runner, index)


def _drop_all(runner: Runner, index: Index) -> None:
    """Drop an index if it exists, and what an interrupted replacement has built beside it.

    Raises:
        LockTimeout: others kept the table locked.
    """
    with runner.outside_transaction():
        if runner.offline:
            _drop(runner, index)
            return
        for each in (index, _beside(runner, index)):
            if _existing(runner, each) is not None:
                _drop(runner, each)


# -- how it is built ------------------------------------------------------


def _build(runner: Runner, index: Index) -> None:
    """Create an index without locking writers out, but those of partitions that lack it."""
    if runner.changes.concurrently(_connection(runner), _table_of(index)):
        _change_concurrently(runner, index)
    else:
        statement = online_index(index, ending=runner.changes.create_online)
        runner.change([statement], what=f"CREATE INDEX {index.name}")


def _replace(runner: Runner, index: Index) -> None:
    """Build the wanted index beside the one that it replaces, then swap them in a moment.

    So claims have the old index until they have the new one.
    """
    what, changes = f"replace INDEX {index.name}", runner.changes
    if not changes.builds_beside:
        runner.change([online_index(index, drop=True), online_index(index)], what=what)
        return
    built = _beside(runner, index)
    if runner.offline or not _is_there(runner, built, replace=True):
        if not runner.offline and _existing(runner, built) is not None:
            _drop(runner, built)
        _build(runner, built)
    runner.change(changes.swap(index, built, _connection(runner)), what=what)


def _drop(runner: Runner, index: Index) -> None:
    changes, connection = runner.changes, _connection(runner)
    if changes.concurrently(connection, _table_of(index)):
        _change_concurrently(runner, index, drop=True)
    else:
        statement = changes.drop_index(index, connection)
        runner.change([statement], what=f"DROP INDEX {index.name}")


def _change_concurrently(runner: Runner, index: Index, *, drop: bool = False) -> None:
    """Run CREATE or DROP INDEX CONCURRENTLY.

    It waits for locks in one go: nobody queues behind it, and a retry would lose what is built.
    """
    statement = online_index(twin(index, postgresql_concurrently=True), drop=drop)
    if runner.offline:
        runner.run(statement)
        return

    def attempt() -> None:
        there = _existing(runner, index) is not None if drop else _is_there(runner, index)
        if there is drop:
            with runner.database.waiting_at_most(runner.connection, runner.patience):
                runner.run(statement)

    runner.retry_while_locked(
        attempt,
        what=f"{'DROP' if drop else 'CREATE'} INDEX {index.name}",
        at_most=runner.patience,
        leaves=(
            f"{index.name} may be there and invalid: it serves no query and makes writes slower, "
            "until the migration runs again, which drops it first."
        ),
    )


def _beside(runner: Runner, index: Index) -> Index:
    """Return the index that is built beside the one that it replaces."""
    name = f"{name_of(index, runner.context.dialect)}_new_of_sa_jobqueue"
    return twin(index, name=shortened(name, _NAME_LENGTH))


def _connection(runner: Runner) -> Connection | None:
    return None if runner.offline else runner.connection


# -- what is there --------------------------------------------------------


def _is_there(runner: Runner, index: Index, *, replace: bool = False) -> bool:
    """Tell whether the index exists, for instance from an interrupted run.

    An invalid one that CREATE INDEX CONCURRENTLY has left is dropped: no claim could use it.
    Databases print an expression in words of their own. An index of expressions is taken for
    the wanted one, unless it is to be replaced: then it is built anew.

    Raises:
        ArgumentError: a different index of the same name exists, and `replace` is False.
    """
    found = _existing(runner, index)
    if found is None:
        return False
    if found.unusable and runner.changes.concurrently(runner.connection, _table_of(index)):
        log.info("%s is invalid: it is dropped and built again", index.name)
        _drop(runner, index)
        return False
    wanted = WantedIndex(index)
    predicate = wanted.predicate(runner.database, runner.context.dialect)
    columns = wanted.order
    if columns is not None and not runner.database.descending_indexes:
        columns = [IndexColumn(column.name) for column in columns]
    fits = (
        bool(index.unique) == found.unique
        and same_predicate(found.predicate, predicate)
        and (not replace if columns is None else columns == [*found.columns])
    )
    if fits or replace:
        return fits
    unique, there = ("UNIQUE " if each.unique else "" for each in (index, found))
    where = f" WHERE {predicate}" if predicate else ""
    raise ArgumentError(
        f"{_table_of(index).description!r} has a different index of this name already, "
        f"{there}{found}, but claims and reapers need {unique}{wanted}{where}: "
        "replace=True builds the wanted index, and then drops the one that is there"
    )


def _existing(runner: Runner, index: Index) -> ServerIndex | None:
    """Return the index of this name in the database."""
    there = examination_of(runner.database).indexes(runner.connection, _table_of(index))
    name = name_of(index, runner.context.dialect)
    return next((found for found in there if found.name == name), None)


def _table_of(index: Index) -> Table:
    assert index.table is not None
    return index.table
