"""The statements that write behind a fence, each built once for a change and a class.

The fence stands in every WHERE clause: the primary keys of the batch, and the status,
the owner and the owner_date that the claim wrote. Locking reads with the same fence tell whether
a claim is still ours, and which rows somebody else has locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Executable, Select, and_, bindparam, case, or_, select

from ..databases import Database
from ..model.keys import key_batches, key_is, key_is_in, key_values, locked_by_key
from ..model.mapping import QueueMapping
from ..model.status import status_is
from ..model.transitions import OWNER, ClaimedValues, Values, or_next_round
from ..sessions.writer import Writer, built_once
from .claim import FencedJobs
from .token import Fence, FenceKind, Identity, Token

# The parameters of every fence; OWNER is a third one.
KEYS, DATES = "sa_jobqueue_keys", "sa_jobqueue_dates"

#: What RETURNING returns of the rows that were ours; the count tells no more than their number.
COUNT, ONLY_KEYS, NEW_VALUES = "count", "keys", "values"


@dataclass(frozen=True, eq=False)
class FencedWrite:
    """The statement of one change to rows of one mapped class; None: nothing is written.

    Attributes:
        attributes: those of the columns that change, in the order of the result.
        read: reads the new values, where RETURNING does not return them.
    """

    statement: Executable | None
    attributes: tuple[str, ...]
    read: Select[Any]


@built_once
def fenced_write(
    mapping: QueueMapping,
    writer: Writer,
    change: tuple[ClaimedValues | None, str, tuple[Column[Any], ...], int],
    kind: FenceKind,
    returned: str = COUNT,
) -> FencedWrite:
    """Return the statement of a change.

    Args:
        change: what it writes, the application's own columns that it writes, too, and for how many
            rows these differ; see Change.
        returned: COUNT, ONLY_KEYS or NEW_VALUES.
    """
    values_of, word, own, cases = change
    database, unmarked = writer.database, kind[1]
    statement: Any
    written: Values = {} if values_of is None else values_of(mapping, unmarked, word)
    if values_of is None:
        statement = database.delete_by_key(mapping.table, mapping.keys)
    else:
        if not unmarked:
            written = or_next_round(mapping, written)
        # First: what a new round writes comes last. And in the order given: MySQL's assignments
        # see the values that earlier ones wrote.
        given = {column: _own_value(mapping, n, column, cases) for n, column in enumerate(own)}
        assigned = {**given, **written}
        statement = database.update_by_key(mapping.table, mapping.keys)
        statement = statement.ordered_values(*assigned.items()) if assigned else None
    if statement is not None:
        statement = statement.where(is_ours(mapping, database, kind))
        if returned != COUNT:
            new = written if returned == NEW_VALUES else ()
            statement = statement.returning(*mapping.keys, *new)
    attributes = tuple(mapping.mapper.get_property_by_column(column).key for column in written)
    read = select(*mapping.keys, *written).where(key_is_in(mapping, KEYS, database))
    return FencedWrite(statement, attributes, read)


def own_parameter(index: int, case: int | None = None) -> str:
    """Return the name of the parameter for one of a change's own columns, and one of its rows."""
    return f"sa_jobqueue_own_{index}" if case is None else f"sa_jobqueue_own_{index}_{case}"


def key_parameter(case: int) -> str:
    """Return the name of the parameter for the key of a row with values of its own."""
    return f"sa_jobqueue_own_key_{case}"


def _own_value(mapping: QueueMapping, index: int, column: Column[Any], cases: int) -> Any:
    """Return the value of an own column: a parameter, or one for each row, by its key."""
    if not cases:
        return bindparam(own_parameter(index), type_=column.type)
    of_rows = (
        (key_is(mapping, key_parameter(n)), bindparam(own_parameter(index, n), type_=column.type))
        for n in range(cases)
    )
    return case(*of_rows, else_=column)  # which gives PostgreSQL the type of the others


def is_ours(mapping: QueueMapping, database: Database, kind: FenceKind) -> ColumnElement[bool]:
    """Return the criterion of a fence; its parameters are KEYS, OWNER and DATES."""
    status, unmarked, renewed, single = kind
    claim = status_is(mapping.column("status"), *mapping.in_progress(status))
    if not unmarked:
        owner, date = mapping.column("owner"), mapping.column("owner_date")
        dates = bindparam(DATES, type_=date.type, expanding=renewed)
        is_date = date.in_(dates) if renewed else date == dates
        claim = and_(claim, owner == bindparam(OWNER, type_=owner.type), is_date)
    if database.locks_what_it_scans:
        # The CASE keeps every index but the primary key from serving the statement: a
        # write that goes by the reap index deadlocks with inserts.
        claim = case((claim, 1), else_=0) == 1
    named = key_is(mapping, KEYS) if single else key_is_in(mapping, KEYS, database)
    return and_(named, claim)


def fence_parameters(
    token: Token, identities: Sequence[Identity], *, single: bool = False
) -> dict[str, Any]:
    """Return the values of a fence's parameters.

    Args:
        single: the fence has one key of one column, in the place of a list.
    """
    keys = identities[0][0] if single else key_values(identities)
    dates: Any = token.dates if len(token.dates) != 1 else token.dates[0]
    return {KEYS: keys, OWNER: token.owner, DATES: dates}


def is_as_finished(writer: Writer, mapping: QueueMapping, fence: Fence, then: str) -> bool:
    """Tell whether the row of a claim that is gone is as its finish leaves it.

    It is deleted, or it has the status `then` and no other owner.
    """
    owner = mapping.column("owner")
    ours = or_(owner.is_(None), owner == bindparam(OWNER, type_=owner.type))
    left = and_(status_is(mapping.column("status"), then), ours)
    read = select(case((left, 1), else_=0)).where(key_is_in(mapping, KEYS, writer.database))
    parameters = {KEYS: key_values([fence.identity]), OWNER: fence.owner}
    return writer.core(read, parameters).scalar() != 0


def lock_unlocked(writer: Writer, part: FencedJobs) -> tuple[list[Fence], list[Fence]]:
    """Lock the rows of a claim that nobody else has locked; wait for none.

    Returns:
        The jobs whose rows we have locked, and those whose claim was lost. Rows that are still
        ours, and that others have locked, are in neither.
    """
    mapping, token = part.mapping, part.token
    locked: set[Identity] = set()
    ours: set[Identity] = set()
    for batch in key_batches(part.identities):
        locked |= lock_ours(writer, mapping, token, batch, skip_locked=True)
        if missing := [identity for identity in batch if identity not in locked]:
            read = _rows(mapping, writer, token.kind(), locks=False)
            ours |= set(map(tuple, writer.core(read, fence_parameters(token, missing))))
    return (
        [fence for fence in part.fences if fence.identity in locked],
        [fence for fence in part.fences if fence.identity not in locked | ours],
    )


def lock_ours(
    writer: Writer,
    mapping: QueueMapping,
    token: Token,
    identities: Sequence[Identity],
    *,
    skip_locked: bool = False,
) -> set[Identity]:
    """Lock rows of a claim that are still ours; return their keys.

    Rows of other tables may go on referencing them, where the database has such a lock.
    """
    read = _rows(mapping, writer, token.kind(), skip_locked=skip_locked)
    return set(map(tuple, writer.core(read, fence_parameters(token, identities))))


def lock_rows(
    writer: Writer,
    mapping: QueueMapping,
    roles: tuple[str, ...],
    identities: Iterable[Identity],
    statuses: tuple[str, ...] = (),
) -> dict[Identity, tuple[Any, ...]]:
    """Lock rows in the order of their keys; return what the columns of roles hold in each.

    Args:
        statuses: lock only rows that have one of these.
    """
    locking, width = _rows(mapping, writer, None, roles, statuses), len(mapping.keys)
    return {
        tuple(row[:width]): tuple(row[width:])
        for batch in key_batches(list(identities))
        for row in writer.core(locking, {KEYS: key_values(batch)})
    }


@built_once
def _rows(
    mapping: QueueMapping,
    writer: Writer,
    kind: FenceKind | None,
    roles: tuple[str, ...] = (),
    statuses: tuple[str, ...] = (),
    *,
    locks: bool = True,
    skip_locked: bool = False,
) -> Select[Any]:
    """Read the keys, and the columns of roles, of the rows with the keys KEYS.

    Args:
        kind: of the fence that they are behind, if any.
        statuses: only rows that have one of these.
    """
    database = writer.database
    named = key_is_in(mapping, KEYS, database)
    behind = named if kind is None else is_ours(mapping, database, kind)
    read = select(*mapping.keys, *map(mapping.column, roles)).where(behind)
    if statuses:
        read = read.where(status_is(mapping.column("status"), *statuses))
    if not locks:
        return read
    return locked_by_key(read, mapping, database, keep_references=True, skip_locked=skip_locked)
