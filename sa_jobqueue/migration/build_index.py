"""Create and drop an index while others go on writing, whatever an earlier run has left.

PostgreSQL does it CONCURRENTLY, outside of a transaction; when that fails, it leaves an
invalid index. Each partition of a table gets its own index in this way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Connection, Index, Table

from ..dialects.ddl import OnlineIndex, RenameIndex
from ..model.indexes import twin
from .existing_index import existing, exists, name_of, table_of
from .runner import NOTHING_CHANGED, Runner, log

#: PostgreSQL cuts names after this number of bytes.
_NAME_LENGTH = 63


def build_index(runner: Runner, index: Index, *, online: bool, replace: bool = False) -> None:
    """Create an index unless it exists.

    Args:
        replace: a different index of the same name makes way: online, when the new one is
            built.

    Raises:
        ArgumentError: a different index of the same name exists, and `replace` is False.
        LockTimeout: others kept the table locked.
    """
    if not online:
        _build_here(runner, index, replace=replace)
        return
    with runner.outside_transaction():
        if not runner.offline:
            _drop_invalid(runner, index)
            if exists(runner, index, replace=replace):
                log.info("%s exists already", index.name)
                return
            replace = replace and existing(runner, index) is not None
        if replace:
            _replace_online(runner, index)
        else:
            _build_online(runner, index)


def _build_here(runner: Runner, index: Index, *, replace: bool) -> None:
    """Create an index in the transaction of the migration."""
    if not runner.offline:
        if exists(runner, index, replace=replace):
            return
        replace = replace and existing(runner, index) is not None
    if replace:
        runner.run(runner.changes.drop_index(index, _connection(runner)))
    runner.run(OnlineIndex(index))


def _replace_online(runner: Runner, index: Index) -> None:
    """Build the wanted index beside the one that it replaces, then swap them in a moment.

    So claims have the old index until they have the new one.
    """
    what, changes = f"replace INDEX {index.name}", runner.changes
    if not changes.builds_beside:
        runner.change([OnlineIndex(index, drop=True), OnlineIndex(index)], what=what)
        return
    built = _new_beside(runner, index)
    if runner.offline or not _is_built(runner, built):
        _build_online(runner, built)
    parts = runner.partitions_of(table_of(index)) or []
    statements = changes.swap(index, built, _connection(runner))
    pairs = zip(
        _partition_indexes(runner, built, parts),
        _partition_indexes(runner, index, parts),
        strict=True,
    )
    statements += [RenameIndex(part, wanted) for part, wanted in pairs]
    runner.change(statements, what=what)


def _new_beside(runner: Runner, index: Index) -> Index:
    """Return the index that is built beside the one that it replaces."""
    return twin(index, name=_shortened(f"{name_of(runner, index)}_new"))


def _is_built(runner: Runner, built: Index) -> bool:
    """Tell whether an interrupted run has built the new index; drop what does not fit."""
    _drop_invalid(runner, built)
    if exists(runner, built, replace=True):
        return True
    if existing(runner, built) is not None:
        _drop_online(runner, built)
    return False


def _build_online(runner: Runner, index: Index) -> None:
    """Create an index without locking writers out."""
    changes = runner.changes
    parts = runner.partitions_of(table_of(index))
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
        if not exists(runner, index):
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
    except Exception as error:
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
        name = f"{name_of(runner, index)}_{part.name}"
        yield twin(index, name=_shortened(name), table=part)


def _shortened(name: str) -> str:
    """Cut a name to the length that PostgreSQL keeps; different names stay different."""
    if len(name.encode()) <= _NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.encode()[: _NAME_LENGTH - 9].decode(errors='ignore')}_{digest}"


def drop_index(
    runner: Runner, index: Index, *, online: bool, with_replacement: bool = False
) -> None:
    """Drop an index if it exists.

    Args:
        with_replacement: also drop what an interrupted replacement has built beside it. The index
            has one of our names, so no other index has the name of its replacement.

    Raises:
        LockTimeout: others kept the table locked.
    """
    if not online:
        if runner.offline or existing(runner, index) is not None:
            runner.run(runner.changes.drop_index(index, _connection(runner)))
        return
    with runner.outside_transaction():
        if runner.offline:
            _drop_online(runner, index)
            return
        # Dropping it drops those of the partitions too, except after an interrupted build. And an
        # interrupted replacement has left the new index beside the old one.
        parts = runner.partitions_of(table_of(index)) or []
        beside = [_new_beside(runner, index)] if with_replacement else []
        for whole in (index, *beside):
            for part in (whole, *_partition_indexes(runner, whole, parts)):
                if existing(runner, part) is not None:
                    _drop_online(runner, part)


def _drop_invalid(runner: Runner, index: Index) -> None:
    """Drop the invalid index that an interrupted CREATE INDEX CONCURRENTLY has left.

    IF NOT EXISTS would take it for the index, and no claim could use it.
    """
    if _is_invalid(runner, index):
        log.info("%s is invalid: it is dropped and built again", index.name)
        _drop_online(runner, index)


def _is_invalid(runner: Runner, index: Index) -> bool:
    found = existing(runner, index)
    return runner.changes.concurrent_indexes and found is not None and bool(found.unusable)


def _drop_online(runner: Runner, index: Index) -> None:
    what, changes = f"DROP INDEX {index.name}", runner.changes
    if not changes.concurrent_indexes or runner.partitions_of(table_of(index)) is not None:
        runner.change([changes.drop_index(index, _connection(runner))], what=what)
    elif runner.offline:
        runner.run(_concurrent_drop(index))
    else:
        _drop_concurrently(runner, index, what=what)


def _drop_concurrently(runner: Runner, index: Index, *, what: str) -> None:
    def attempt() -> None:
        if existing(runner, index) is not None:
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


def _connection(runner: Runner) -> Connection | None:
    return None if runner.offline else runner.connection


def _as_typed(runner: Runner, statement: OnlineIndex) -> str:
    """Return a statement as a user types it."""
    return str(statement.compile(dialect=runner.context.dialect)).strip()
