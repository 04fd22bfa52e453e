"""Create and drop an index while others go on writing, whatever an earlier run has left.

PostgreSQL does it CONCURRENTLY, outside of a transaction; when that fails, it leaves an
invalid index. Each partition of a table gets its own index in this way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Column, Index, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import desc_op

from ..dialects.ddl import OnlineIndex
from ..dialects.examination import IndexColumn, ServerIndex, normalised
from ..errors import ArgumentError
from ..model.indexes import twin
from .runner import NOTHING_CHANGED, Runner, log

#: PostgreSQL cuts names after this number of bytes.
_NAME_LENGTH = 63


def build_index(runner: Runner, index: Index, *, online: bool) -> None:
    """Create an index unless it exists.

    Raises:
        ArgumentError: a different index of the same name exists.
        LockTimeout: others kept the table locked.
    """
    if not online:
        if runner.offline or not _exists(runner, index):
            runner.run(OnlineIndex(index))
        return
    with runner.outside_transaction():
        if not runner.offline:
            _drop_invalid(runner, index)
            if _exists(runner, index):
                log.info("%s exists already", index.name)
                return
        _build_online(runner, index)


def _build_online(runner: Runner, index: Index) -> None:
    """Create an index without locking writers out."""
    changes = runner.changes
    parts = runner.partitions_of(_table(index))
    if parts is None and changes.concurrent_indexes:
        _build_concurrently(runner, index)
        return
    for part in _partition_indexes(runner, index, parts or []):
        _build_concurrently(runner, part)
    # For a table with partitions this adopts their indexes, and builds none.
    statement = OnlineIndex(index, ending=changes.create_online)
    runner.change([statement], what=f"CREATE INDEX {index.name}")


def _build_concurrently(runner: Runner, index: Index) -> None:
    statement = OnlineIndex(twin(index, postgresql_concurrently=True))
    if runner.offline:
        runner.run(statement)
        return

    def attempt() -> None:
        _drop_invalid(runner, index)  # left by the last try
        if not _exists(runner, index):
            with _one_long_wait(runner):
                runner.run(statement)

    runner.retry_while_locked(
        attempt,
        what=f"CREATE INDEX {index.name}",
        at_most=runner.patience,
        leaves=lambda: _clean_up(runner, index),
    )


def _one_long_wait(runner: Runner) -> AbstractContextManager[None]:
    """Wait without retries: nobody queues behind us, and a retry would lose what is built."""
    return runner.changes.waiting_at_most(runner.connection, runner.patience)


def _clean_up(runner: Runner, index: Index) -> str:
    """Drop what a failed build has left, and describe what remains."""
    try:
        if _is_invalid(runner, index):
            with runner.waiting_briefly():
                runner.run(_concurrent_drop(index))
    except DBAPIError as error:
        if not runner.is_temporary(error):
            raise
        drop = _as_typed(runner, _concurrent_drop(index))
        return (
            "It has left an invalid index, which serves nobody and makes writes slower; for the "
            f"same lock it could not be dropped: {drop}, or run the migration again, which does "
            "that first."
        )
    return NOTHING_CHANGED


def _partition_indexes(runner: Runner, index: Index, parts: Sequence[Table]) -> Iterator[Index]:
    """Yield the index of each partition, with a name that no other index has."""
    for part in parts:
        name = f"{_name(runner, index)}_{part.name}"
        yield twin(index, name=_shortened(name), table=part)


def _shortened(name: str) -> str:
    """Cut a name to the length that PostgreSQL keeps; different names stay different."""
    if len(name.encode()) <= _NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.encode()[: _NAME_LENGTH - 9].decode(errors='ignore')}_{digest}"


def drop_index(runner: Runner, index: Index, *, online: bool) -> None:
    """Drop an index if it exists.

    Raises:
        LockTimeout: others kept the table locked.
    """
    if not online:
        if runner.offline or _existing(runner, index) is not None:
            runner.run(OnlineIndex(index, drop=True))
        return
    with runner.outside_transaction():
        if runner.offline:
            _drop_online(runner, index)
            return
        # Dropping it drops those of the partitions too, except after an interrupted build.
        parts = runner.partitions_of(_table(index)) or []
        for part in (index, *_partition_indexes(runner, index, parts)):
            if _existing(runner, part) is not None:
                _drop_online(runner, part)


def _drop_invalid(runner: Runner, index: Index) -> None:
    """Drop the invalid index that an interrupted CREATE INDEX CONCURRENTLY has left.

    IF NOT EXISTS would take it for the index, and no claim could use it.
    """
    if _is_invalid(runner, index):
        log.info("%s is invalid: it is dropped and built again", index.name)
        _drop_online(runner, index)


def _is_invalid(runner: Runner, index: Index) -> bool:
    found = _existing(runner, index)
    return runner.changes.concurrent_indexes and found is not None and bool(found.unusable)


def _drop_online(runner: Runner, index: Index) -> None:
    what, changes = f"DROP INDEX {index.name}", runner.changes
    if not changes.concurrent_indexes or runner.partitions_of(_table(index)) is not None:
        statement = OnlineIndex(index, drop=True, ending=changes.drop_online)
        runner.change([statement], what=what)
    elif runner.offline:
        runner.run(_concurrent_drop(index))
    else:
        _drop_concurrently(runner, index, what=what)


def _drop_concurrently(runner: Runner, index: Index, *, what: str) -> None:
    def attempt() -> None:
        if _existing(runner, index) is not None:
            with _one_long_wait(runner):
                runner.run(_concurrent_drop(index))

    runner.retry_while_locked(
        attempt,
        what=what,
        at_most=runner.patience,
        leaves=lambda: "The index may be invalid by now, so that no query uses it any more.",
    )


def _concurrent_drop(index: Index) -> OnlineIndex:
    return OnlineIndex(twin(index, postgresql_concurrently=True), drop=True)


def _as_typed(runner: Runner, statement: OnlineIndex) -> str:
    """Return a statement as a user types it."""
    return str(statement.compile(dialect=runner.context.dialect)).strip()


# -- the index in the database --------------------------------------------


def _exists(runner: Runner, index: Index) -> bool:
    """Tell whether the index exists, for instance from an interrupted run.

    Raises:
        ArgumentError: a different index of the same name exists.
    """
    found = _existing(runner, index)
    if found is None:
        return False
    wanted = _predicate(runner, index)
    if _same_columns(runner, index, found) and normalised(wanted) == normalised(found.predicate):
        return True
    columns = ", ".join(
        str(_column(runner, expression) or expression) for expression in index.expressions
    )
    raise ArgumentError(
        f"{_table(index).description!r} has a different index of this name already, {found}, but "
        f"claims and reapers need ({columns}){f' WHERE {wanted}' if wanted else ''}: drop it "
        "first, by drop_claim_index, drop_reap_index or DROP INDEX"
    )


def _existing(runner: Runner, index: Index) -> ServerIndex | None:
    """Return the index of this name in the database."""
    there = runner.database.examination().indexes(runner.connection, _table(index))
    name = _name(runner, index)
    return next((found for found in there if found.name == name), None)


def _name(runner: Runner, index: Index) -> str:
    """Return the name in the database, where long names of a naming convention are cut."""
    preparer = runner.context.dialect.identifier_preparer
    name = preparer.format_constraint(index, _alembic_quote=False)
    assert name is not None
    return name


def _same_columns(runner: Runner, index: Index, found: ServerIndex) -> bool:
    wanted = [_column(runner, expression) for expression in index.expressions]
    return len(wanted) == len(found.columns) and all(
        own is None or own == other for own, other in zip(wanted, found.columns, strict=True)
    )


def _column(runner: Runner, expression: Any) -> IndexColumn | None:
    """Return a column of an index; None: an expression, whose text differs by database."""
    descending = False
    if isinstance(expression, UnaryExpression) and expression.modifier is desc_op:
        expression, descending = expression.element, runner.database.descending_indexes
    return IndexColumn(expression.name, descending) if isinstance(expression, Column) else None


def _predicate(runner: Runner, index: Index) -> str | None:
    """Return the WHERE clause of an index on this database, as SQL."""
    where = runner.database.examination().predicate(index)
    if where is None:
        return None
    how = {"literal_binds": True, "include_table": False}
    return str(where.compile(dialect=runner.context.dialect, compile_kwargs=how))


def _table(index: Index) -> Table:
    """Return the table of an index."""
    assert index.table is not None
    return index.table
