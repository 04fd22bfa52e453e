"""The indexes that claims and reapers walk, built while others go on writing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Index, Table
from sqlalchemy import inspect as sa_inspect

from ..dialects.ddl import OnlineIndex
from ..errors import ArgumentError
from ..indexes import index_name, index_of, index_serving, twin
from ..mapping import mapping_of
from ..queue import JobQueue
from .running import PATIENCE, Op, Runner, log
from .targets import AnyTable, key_of, queue_of

_LITERAL = re.compile(r"'((?:[^']|'')*)'")


def create_claim_index(
    op: Op,
    table: AnyTable | JobQueue[Any],
    *mixins: Any,
    online: bool = True,
    key: Sequence[str] | str | None = None,
    queue_args: Mapping[str, Any] | None = None,
    name: str | None = None,
    schema: str | None = None,
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
        patience: how long to try for the table's lock.

    Raises:
        ArgumentError: an index of this name is there, and is another one; or no
            index can serve the queue.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    if isinstance(table, JobQueue):
        index = _index_for(table, name=name)
    else:
        index = _index(
            runner, table, mixins, "claim", key=key, queue_args=queue_args, schema=schema
        )
    _create(runner, index, online=online)


def create_reap_index(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    online: bool = True,
    queue_args: Mapping[str, Any] | None = None,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Create the index that reapers walk: status and owner_date.

    Args:
        table, mixins, online, queue_args, schema, patience: as in
            :func:`create_claim_index`.

    Raises:
        ArgumentError: an index of this name is there, and is another one.
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    index = _index(runner, table, mixins, "reap", key="id", queue_args=queue_args, schema=schema)
    _create(runner, index, online=online)


def drop_claim_index(
    op: Op,
    table: AnyTable | JobQueue[Any],
    *,
    online: bool = True,
    name: str | None = None,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the index that claims walk, if it is there.

    Args:
        table, online, name, schema, patience: as in :func:`create_claim_index`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    if isinstance(table, JobQueue):
        index = _index_for(table, name=name)
    else:
        index = _index(runner, table, (), "claim", key="id", queue_args=None, schema=schema)
    _drop(runner, index, online=online)


def drop_reap_index(
    op: Op,
    table: AnyTable,
    *,
    online: bool = True,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the index that reapers walk, if it is there.

    Args:
        table, online, schema, patience: as in :func:`create_claim_index`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    index = _index(runner, table, (), "reap", key="id", queue_args=None, schema=schema)
    _drop(runner, index, online=online)


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
        real = mapping_of(table).table
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


# How it is built


def _create(runner: Runner, index: Index, *, online: bool) -> None:
    if not online:
        runner.run(OnlineIndex(index))
        return
    with runner.alone():
        if not runner.offline:
            _drop_broken(runner, index)
            if _is_there(runner, index):
                log.info("%s is there already", index.name)
                return
        _build(runner, index)


def _build(runner: Runner, index: Index) -> None:
    """Create an index without keeping writers out."""
    database = runner.database
    parts = runner.partitions_of(_table(index))
    for part in parts:
        _build_concurrently(runner, twin(index, name=_name_on(part, index), table=part))
    if database.concurrent_indexes and not parts:
        _build_concurrently(runner, index)
    else:  # of partitions: takes theirs, and builds none
        statement = OnlineIndex(index, ending=database.create_online)
        runner.change([statement], what=f"CREATE INDEX {index.name}")


def _build_concurrently(runner: Runner, index: Index) -> None:
    statement = OnlineIndex(twin(index, postgresql_concurrently=True))
    if runner.offline:
        runner.run(statement)
        return

    def build() -> None:
        _drop_broken(runner, index)  # what the last try has left
        if not _is_there(runner, index):
            runner.run(statement)

    runner.patiently(build, what=f"CREATE INDEX {index.name}")


def _name_on(part: Table, index: Index) -> str:
    """Return the name of a partition's own index."""
    return index_name(part, str(index.name).rpartition("_")[2][:20])


def _drop(runner: Runner, index: Index, *, online: bool) -> None:
    if not online:
        runner.run(OnlineIndex(index, drop=True))
        return
    with runner.alone():
        if runner.offline or _found(runner, index) is not None:
            _drop_online(runner, index)


def _drop_broken(runner: Runner, index: Index) -> None:
    """Drop what a CREATE INDEX CONCURRENTLY has left that did not come to its end.

    IF NOT EXISTS would take it for the index, and no claim could use it.
    """
    if runner.database.has_broken_index(runner.connection, index):
        log.info("%s is invalid: dropped, and built anew", index.name)
        _drop_online(runner, index)


def _drop_online(runner: Runner, index: Index) -> None:
    what, database = f"DROP INDEX {index.name}", runner.database
    if not database.concurrent_indexes or runner.partitions_of(_table(index)):
        statement = OnlineIndex(index, drop=True, ending=database.drop_online)
        runner.change([statement], what=what)
        return
    dropping = OnlineIndex(twin(index, postgresql_concurrently=True), drop=True)
    if runner.offline:
        runner.run(dropping)
    else:
        runner.patiently(lambda: runner.run(dropping), what=what)


def _is_there(runner: Runner, index: Index) -> bool:
    """Tell whether a run that was broken off has built the index.

    Raises:
        ArgumentError: there is another one of its name.
    """
    found = _found(runner, index)
    if found is None:
        return False
    wanted = [getattr(getattr(part, "element", part), "name", None) for part in index.expressions]
    columns = found["column_names"]
    words = _words(index, found)
    if (None not in (*wanted, *columns) and wanted != columns) or words:
        raise ArgumentError(
            f"{_table(index).description!r} has an index {index.name!r} already, which is not the "
            f"one that claims need ({', '.join(map(str, wanted))}; {words or 'the same statuses'})"
            ": drop it first, by drop_claim_index or drop_reap_index"
        )
    return True


def _found(runner: Runner, index: Index) -> Any:
    table = _table(index)
    there = sa_inspect(runner.connection).get_indexes(table.name, table.schema)
    return next((found for found in there if found["name"] == str(index.name)), None)


def _table(index: Index) -> Table:
    assert index.table is not None
    return index.table


def _words(index: Index, found: Any) -> str:
    """Say by which words the predicates of two partial indexes differ."""
    for option, has in found.get("dialect_options", {}).items():
        if option.endswith("_where"):
            wanted = index.dialect_kwargs.get(option)
            needs = "" if wanted is None else str(wanted)
            if _LITERAL.findall(str(has)) != _LITERAL.findall(needs):
                return f"where {needs}"
    return ""
