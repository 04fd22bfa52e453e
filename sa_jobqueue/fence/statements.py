"""The statements that write behind a fence, built once for each change and class.

The fence stands in every WHERE clause: the primary keys of the batch, and the status,
the owner and the owner_date that the claim wrote. Locking reads with the same fence tell whether
a claim is still ours, and which rows somebody else has locked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Executable,
    Select,
    and_,
    bindparam,
    case,
    cast,
    or_,
    select,
)
from sqlalchemy.engine import CursorResult

from ..dialects import Database
from ..dialects.clock import utc_now
from ..model.keys import key_batches, key_is, key_is_in, key_values, locked_by_key
from ..model.mapping import TIME_ROLES, QueueMapping
from ..model.status import status_is
from ..model.transitions import (
    ERROR,
    LATER,
    NOW,
    OWNER,
    SHIFT,
    ClaimedRow,
    ClaimedValues,
    Values,
    or_next_round,
)
from ..sessions.built_once import built_once
from ..sessions.writer import Writer
from .claim import FencedJobs
from .token import Fence, Identity, Token

# The parameters of every fence; OWNER is a third one.
KEYS, DATES = "sa_jobqueue_keys", "sa_jobqueue_dates"

#: All parameters of fenced statements; each statement has some of them.
_PARAMETERS = frozenset((KEYS, DATES, OWNER, ERROR, NOW, LATER, SHIFT))

_OWN = "sa_jobqueue_own_"

#: The keys of the rows that were still ours, with their new values.
Found = dict[Identity, Sequence[Any]]


class FenceKind(NamedTuple):
    """What the fence of a statement compares.

    Attributes:
        status: the status that the claim wrote, or that it left if it wrote nothing.
        unmarked: the claim wrote nothing; its locks are the fence.
        renewed: the claim has had more than one date.
        single: the fence names one key of one column, and no list of keys. A claim and finish
            of a job takes SQLAlchemy and the driver 5 % fewer instructions then.
    """

    status: str
    unmarked: bool
    renewed: bool
    single: bool = False

    @staticmethod
    def of(token: Token, identities: Sequence[Identity] = ()) -> FenceKind:
        """Tell what the fence of a token compares, for these keys; without keys: for a list."""
        single = len(identities) == 1 and len(identities[0]) == 1
        return _kind_of(token.status, token.hold is not None, len(token.dates) > 1, single)

    def keys(self, identities: Sequence[Identity]) -> Any:
        """Return the value of the parameter KEYS."""
        return identities[0][0] if self.single else key_values(identities)

    def dates(self, token: Token) -> Any:
        """Return the value of the parameter DATES."""
        if self.renewed:
            return list(token.dates)
        return token.dates[0] if token.dates else None


_kind_of = lru_cache(typed=True)(FenceKind)  # to find one takes a third of the time of making it


@dataclass(frozen=True, eq=False)
class FencedStatements:
    """The statements of one change to one mapped class.

    Attributes:
        columns: the columns that change, in the order of the result.
        write_returning: writes; RETURNING tells which rows were ours, and their new values.
        write_returning_keys: the same without the values, for jobs that show none.
        write_counted: writes; the count of rows tells whether all were ours.
        lock, write: two statements that tell which rows were ours without RETURNING.
        told: whether RETURNING tells which rows were ours.
        counted: whether the count is asked first for several rows, too.
        writes: whether the change writes anything.
    """

    mapping: QueueMapping
    columns: tuple[Column[Any], ...]
    write_returning: Executable
    write_returning_keys: Executable
    write_counted: Executable
    lock: Executable
    write: Executable
    told: bool
    counted: bool
    writes: bool = True
    _prepared: dict[str, tuple[Any, list[str]]] = field(default_factory=dict)

    def run(self, writer: Writer, which: str, parameters: Mapping[str, Any]) -> CursorResult[Any]:
        """Run one of the statements, with only the parameters that it has."""
        if which not in self._prepared:
            made: Any = getattr(self, which)
            names = made.compile(dialect=writer.connection.dialect).params
            self._prepared[which] = (
                made,
                [name for name in names if name in _PARAMETERS or name.startswith(_OWN)],
            )
        statement, needed = self._prepared[which]
        if len(needed) < len(parameters):
            parameters = {name: parameters[name] for name in needed}
        return writer.built(statement, parameters)

    def read(self, result: CursorResult[Any]) -> Found:
        """Map the keys of the rows that were ours to the values behind the key."""
        rows = result.all()
        width = len(self.mapping.keys)
        if not rows or len(rows[0]) == width:
            return dict.fromkeys(map(tuple, rows), ())
        return {tuple(row[:width]): row[width:] for row in rows}


@built_once
def fenced_statements(
    mapping: QueueMapping,
    writer: Writer,
    values: ClaimedValues | None,
    kind: FenceKind,
    own: tuple[Column[Any], ...] = (),
) -> FencedStatements:
    """Return the statements of a change.

    Args:
        values: None deletes the rows.
        own: the application's own columns that the change writes, too.
    """
    database = writer.database
    fence = is_ours(mapping, database, kind)
    if values is None:
        return _deletion(mapping, database, fence)
    return _change(mapping, database, fence, values, own, unmarked=kind.unmarked)


def _deletion(
    mapping: QueueMapping, database: Database, fence: ColumnElement[bool]
) -> FencedStatements:
    keys = mapping.keys
    deleted = database.delete_by_key(mapping.table, keys).where(fence)
    return FencedStatements(
        mapping=mapping,
        columns=(),
        write_returning=deleted.returning(*keys),
        write_returning_keys=deleted.returning(*keys),
        write_counted=deleted,
        lock=locked_by_key(select(*keys).where(fence), mapping, database),
        write=deleted,
        told=database.delete_returning,
        counted=database.one_writer or not database.delete_returning,
    )


def _change(
    mapping: QueueMapping,
    database: Database,
    fence: ColumnElement[bool],
    values: ClaimedValues,
    own: tuple[Column[Any], ...],
    *,
    unmarked: bool,
) -> FencedStatements:
    keys, date = mapping.keys, mapping.column("owner_date").type
    by_database = (utc_now(), utc_now(bindparam(SHIFT, type_=BigInteger)))
    bound = (bindparam(NOW, type_=date), bindparam(LATER, type_=date))
    told, new = (values(ClaimedRow(mapping, unmarked, *times)) for times in (by_database, bound))
    if not unmarked:
        told, new = or_next_round(mapping, told), or_next_round(mapping, new)
    after = [
        _typed(mapping, column, value).label(f"sa_jobqueue_{column.key}")
        for column, value in told.items()
    ]
    read = select(*keys, *after, database.moment().label(NOW)).where(fence)
    # First: what a new round writes comes last.
    given = {
        column: bindparam(own_parameter(index), type_=column.type)
        for index, column in enumerate(own)
    }
    changed = _update(mapping, database, fence, {**given, **told})
    return FencedStatements(
        mapping=mapping,
        columns=tuple(told),
        write_returning=changed.returning(*keys, *told),
        write_returning_keys=changed.returning(*keys),
        write_counted=changed,
        lock=locked_by_key(read, mapping, database),
        write=_update(mapping, database, fence, {**given, **new}),
        told=database.update_returning,
        counted=database.one_writer or not database.update_returning,
        writes=bool(given or told),
    )


def own_parameter(index: int) -> str:
    """Return the name of the parameter for one of a change's own columns."""
    return f"{_OWN}{index}"


def is_ours(mapping: QueueMapping, database: Database, kind: FenceKind) -> ColumnElement[bool]:
    """Return the criterion of a fence; its parameters are KEYS, OWNER and DATES."""
    claim = status_is(mapping.column("status"), *mapping.in_progress(kind.status))
    if not kind.unmarked:
        owner, date = mapping.column("owner"), mapping.column("owner_date")
        dates = bindparam(DATES, type_=date.type, expanding=kind.renewed)
        claim = and_(
            claim,
            owner == bindparam(OWNER, type_=owner.type),
            date.in_(dates) if kind.renewed else date == dates,
        )
    if database.locks_what_it_scans:
        # The CASE keeps every index but the primary key from serving the statement: a
        # write that goes by the reap index deadlocks with inserts.
        claim = case((claim, 1), else_=0) == 1
    return and_(keys_are(mapping, database, kind), claim)


def keys_are(mapping: QueueMapping, database: Database, kind: FenceKind) -> ColumnElement[bool]:
    """Return the criterion that a row has one of the KEYS."""
    return key_is(mapping, KEYS) if kind.single else key_is_in(mapping, KEYS, database)


def _update(
    mapping: QueueMapping, database: Database, fence: ColumnElement[bool], values: Values
) -> Any:
    # In the order given: MySQL's assignments see the values that earlier ones wrote.
    changed = database.update_by_key(mapping.table, mapping.keys).where(fence)
    return changed.ordered_values(*values.items())


def _typed(
    mapping: QueueMapping, column: Column[Any], value: ColumnElement[Any]
) -> ColumnElement[Any]:
    # The drivers of MySQL and MariaDB take a CASE of NULL and a time for text.
    times = [mapping.column(role) for role in TIME_ROLES if mapping.has(role)]
    return cast(value, column.type) if column in times else value


def lock_claim(writer: Writer, mapping: QueueMapping, fence: Fence) -> bool:
    """Lock the row of a claim; tell whether the claim was still ours.

    The lock is the job's lease until the transaction ends: nobody takes the job back meanwhile.
    Rows of other tables may go on referencing it, where the database has such a lock.

    Args:
        fence: of a claim that is marked.
    """
    return bool(_read(writer, mapping, _locking_read, fence.token, [fence.identity]))


def is_as_finished(writer: Writer, mapping: QueueMapping, fence: Fence, then: str) -> bool:
    """Tell whether the row of a claim that is gone is as its finish leaves it.

    It is deleted, or it has the status `then` and no other owner.
    """
    database, owner = writer.database, mapping.column("owner")
    ours = or_(owner.is_(None), owner == bindparam(OWNER, type_=owner.type))
    left = and_(status_is(mapping.column("status"), then), ours)
    read = select(case((left, 1), else_=0))
    here = keys_are(mapping, database, FenceKind.of(fence.token))
    parameters = {KEYS: key_values([fence.identity]), OWNER: fence.owner}
    return writer.core(read.where(here), parameters).scalar() != 0


def lock_unlocked(writer: Writer, part: FencedJobs) -> tuple[list[Fence], list[Fence]]:
    """Lock the rows of a claim that nobody else has locked; wait for none.

    Returns:
        The jobs whose rows we have locked, and those whose claim was lost. Rows that are still
        ours, and that others have locked, are in neither.
    """
    locked: set[Identity] = set()
    ours: set[Identity] = set()
    for batch in key_batches(part.identities):
        locked |= _read(writer, part.mapping, _read_of_unlocked, part.token, batch)
        if missing := [identity for identity in batch if identity not in locked]:
            ours |= _read(writer, part.mapping, _plain_read, part.token, missing)
    return (
        [fence for fence in part.fences if fence.identity in locked],
        [fence for fence in part.fences if fence.identity not in locked | ours],
    )


def _read(
    writer: Writer,
    mapping: QueueMapping,
    statement: Callable[[QueueMapping, Writer, FenceKind], Select[Any]],
    token: Token,
    identities: list[Identity],
) -> set[Identity]:
    """Return the keys that a read behind a fence has found."""
    kind = FenceKind.of(token)
    parameters = {
        KEYS: key_values(identities),
        OWNER: token.owner,
        DATES: kind.dates(token),
    }
    read = statement(mapping, writer, kind)
    return {tuple(row) for row in writer.core(read, parameters)}


@built_once
def _locking_read(mapping: QueueMapping, writer: Writer, kind: FenceKind) -> Select[Any]:
    read = _plain_read(mapping, writer, kind)
    return locked_by_key(read, mapping, writer.database, keep_references=True)


@built_once
def _read_of_unlocked(mapping: QueueMapping, writer: Writer, kind: FenceKind) -> Select[Any]:
    read = _plain_read(mapping, writer, kind)
    return locked_by_key(read, mapping, writer.database, keep_references=True, skip_locked=True)


@built_once
def _plain_read(mapping: QueueMapping, writer: Writer, kind: FenceKind) -> Select[Any]:
    return select(*mapping.keys).where(is_ours(mapping, writer.database, kind))
