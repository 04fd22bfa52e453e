"""Build and drop an index while others go on writing, whatever an earlier run has left.

On PostgreSQL by CONCURRENTLY, which is in no transaction: given up, it leaves an
index that is invalid. Of a table in partitions each one gets its own so.
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
from .running import NOTHING_CHANGED, Runner, log

#: PostgreSQL cuts names at so many bytes.
_NAME_LENGTH = 63


def build(runner: Runner, index: Index, *, online: bool) -> None:
    """Create an index that is not there yet.

    Raises:
        ArgumentError: another one of its name is there.
        LockTimeout: others kept the table locked.
    """
    if not online:
        if runner.offline or not _is_there(runner, index):
            runner.run(OnlineIndex(index))
        return
    with runner.alone():
        if not runner.offline:
            _drop_broken(runner, index)
            if _is_there(runner, index):
                log.info("%s is there already", index.name)
                return
        _build_online(runner, index)


def _build_online(runner: Runner, index: Index) -> None:
    """Create an index without keeping writers out."""
    changes = runner.changes
    parts = runner.partitions_of(_table(index))
    if parts is None and changes.concurrent_indexes:
        _build_concurrently(runner, index)
        return
    for part in _on_partitions(runner, index, parts or []):
        _build_concurrently(runner, part)
    # Of a table in partitions: takes theirs, and builds none.
    statement = OnlineIndex(index, ending=changes.create_online)
    runner.change([statement], what=f"CREATE INDEX {index.name}")


def _build_concurrently(runner: Runner, index: Index) -> None:
    statement = OnlineIndex(twin(index, postgresql_concurrently=True))
    if runner.offline:
        runner.run(statement)
        return

    def attempt() -> None:
        _drop_broken(runner, index)  # what the last try has left
        if not _is_there(runner, index):
            with _waiting(runner):
                runner.run(statement)

    runner.patiently(
        attempt,
        what=f"CREATE INDEX {index.name}",
        at_most=runner.patience,
        leaves=lambda: _what_is_left(runner, index),
    )


def _waiting(runner: Runner) -> AbstractContextManager[None]:
    """Wait in one go, since nobody waits behind us: what was built until then is not lost."""
    return runner.changes.waiting_at_most(runner.connection, runner.patience)


def _what_is_left(runner: Runner, index: Index) -> str:
    """Drop what a build has left that was given up, and say how things are then."""
    try:
        if _is_broken(runner, index):
            with runner.waiting_briefly():
                runner.run(_dropping(index))
    except DBAPIError as error:
        if not runner.passes(error):
            raise
        return (
            "It has left an invalid index, which serves nobody and makes writes slower; for the "
            f"same lock it could not be dropped: {_said(runner, _dropping(index))}, or run the "
            "migration again, which does that first."
        )
    return NOTHING_CHANGED


def _on_partitions(runner: Runner, index: Index, parts: Sequence[Table]) -> Iterator[Index]:
    """Make the index of each partition, of a name by which no other index goes."""
    for part in parts:
        name = f"{_name(runner, index)}_{part.name}"
        yield twin(index, name=_shortened(name), table=part)


def _shortened(name: str) -> str:
    """Cut a name to what PostgreSQL keeps of it; another name never becomes the same."""
    if len(name.encode()) <= _NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.encode()[: _NAME_LENGTH - 9].decode(errors='ignore')}_{digest}"


def drop(runner: Runner, index: Index, *, online: bool) -> None:
    """Drop an index, if it is there.

    Raises:
        LockTimeout: others kept the table locked.
    """
    if not online:
        if runner.offline or _found(runner, index) is not None:
            runner.run(OnlineIndex(index, drop=True))
        return
    with runner.alone():
        if runner.offline:
            _drop_online(runner, index)
            return
        # The partitions' go with it; but a build that was broken off has left them alone.
        parts = runner.partitions_of(_table(index)) or []
        for each in (index, *_on_partitions(runner, index, parts)):
            if _found(runner, each) is not None:
                _drop_online(runner, each)


def _drop_broken(runner: Runner, index: Index) -> None:
    """Drop what a CREATE INDEX CONCURRENTLY has left that did not come to its end.

    IF NOT EXISTS would take it for the index, and no claim could use it.
    """
    if _is_broken(runner, index):
        log.info("%s is invalid: dropped, and built anew", index.name)
        _drop_online(runner, index)


def _is_broken(runner: Runner, index: Index) -> bool:
    found = _found(runner, index)
    return runner.changes.concurrent_indexes and found is not None and bool(found.unusable)


def _drop_online(runner: Runner, index: Index) -> None:
    what, changes = f"DROP INDEX {index.name}", runner.changes
    if not changes.concurrent_indexes or runner.partitions_of(_table(index)) is not None:
        statement = OnlineIndex(index, drop=True, ending=changes.drop_online)
        runner.change([statement], what=what)
    elif runner.offline:
        runner.run(_dropping(index))
    else:
        _drop_concurrently(runner, index, what=what)


def _drop_concurrently(runner: Runner, index: Index, *, what: str) -> None:
    def attempt() -> None:
        if _found(runner, index) is not None:
            with _waiting(runner):
                runner.run(_dropping(index))

    runner.patiently(
        attempt,
        what=what,
        at_most=runner.patience,
        leaves=lambda: "The index may be invalid by now: no query uses it any more.",
    )


def _dropping(index: Index) -> OnlineIndex:
    return OnlineIndex(twin(index, postgresql_concurrently=True), drop=True)


def _said(runner: Runner, statement: OnlineIndex) -> str:
    """Return a statement as it is typed."""
    return str(statement.compile(dialect=runner.context.dialect)).strip()


# Which index is there


def _is_there(runner: Runner, index: Index) -> bool:
    """Tell whether a run that was broken off has built the index.

    Raises:
        ArgumentError: there is another one of its name.
    """
    found = _found(runner, index)
    if found is None:
        return False
    wanted = _predicate(runner, index)
    if _same_columns(runner, index, found) and normalised(wanted) == normalised(found.predicate):
        return True
    columns = ", ".join(str(_column(runner, each) or each) for each in index.expressions)
    raise ArgumentError(
        f"{_table(index).description!r} has another index of this name already, {found}, where "
        f"claims and reapers need ({columns}){f' WHERE {wanted}' if wanted else ''}: drop it "
        "first, by drop_claim_index, drop_reap_index or DROP INDEX"
    )


def _found(runner: Runner, index: Index) -> ServerIndex | None:
    """Return the index of this name as the database has it."""
    there = runner.database.examination().indexes(runner.connection, _table(index))
    name = _name(runner, index)
    return next((found for found in there if found.name == name), None)


def _name(runner: Runner, index: Index) -> str:
    """Return the name that the database knows: long ones of a naming convention are cut."""
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
    """Return a column of an index; None: an expression, which each database prints otherwise."""
    descending = False
    if isinstance(expression, UnaryExpression) and expression.modifier is desc_op:
        expression, descending = expression.element, runner.database.descending_indexes
    return IndexColumn(expression.name, descending) if isinstance(expression, Column) else None


def _predicate(runner: Runner, index: Index) -> str | None:
    """Return what makes an index partial on this database, as SQL."""
    where = runner.database.examination().predicate(index)
    if where is None:
        return None
    how = {"literal_binds": True, "include_table": False}
    return str(where.compile(dialect=runner.context.dialect, compile_kwargs=how))


def _table(index: Index) -> Table:
    """Return the table that an index is of."""
    assert index.table is not None
    return index.table
