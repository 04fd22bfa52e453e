"""Fenced writes: how a change reaches exactly the rows of a claim.

Where RETURNING tells which rows were ours, one statement per claim; else the
count of rows tells whether all were. Where not, or where entities are to show
the new values, which are expressions of the old row, a locking read with the
same fence comes first.

What is done for each row is little: a claim of a hundred is written in the time
of a few single ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Executable,
    Select,
    and_,
    bindparam,
    case,
    cast,
    select,
)
from sqlalchemy.engine import CursorResult

from .clock import as_utc, utc_now
from .dialects import Database
from .errors import ClaimLost
from .fencing import Fenced, Hold, Identity, LetGo, Token
from .joining import or_join
from .keys import by_key, key_batches, key_is_in, key_values
from .mapping import QueueMapping, status_is
from .sessions import AnyConnection, Writer, show, show_deleted, show_expired, writing

log = logging.getLogger("sa_jobqueue.finish")
lost_log = logging.getLogger("sa_jobqueue.lost")

# The parameters of every fenced statement.
KEYS, OWNER, DATES = "finish_keys", "finish_owner", "finish_dates"
NOW, LATER, SHIFT = "finish_now", "finish_later", "finish_shift"

# Never released: one that is set again replaces it, and the end of the transaction ends it.
_SAVEPOINT = "sa_jobqueue_write"

Time: TypeAlias = ColumnElement[Any]
Values: TypeAlias = Mapping[Column[Any], Any]
#: The keys of the rows that were ours, with their new values.
Found = dict[Identity, Sequence[Any]]
ValuesOf: TypeAlias = Callable[[QueueMapping, bool, Time, Time], Values]


@dataclass(frozen=True)
class Change:
    """What a verb writes to the rows of a claim.

    Attributes:
        verb: its name, for messages.
        values: makes the new values from the mapping, whether the claim is an
            unmarked one, and expressions for the time and for the time SHIFT
            microseconds later; None deletes the rows, no values leave them.
        parameters: the values of further parameters.
        let_go: when it frees the rows of an unmarked claim.
    """

    verb: str
    values: ValuesOf | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    let_go: LetGo = LetGo.AT_COMMIT


def write(session: AnyConnection, changes: Iterable[tuple[Change, Sequence[Fenced]]]) -> None:
    """Write changes to fenced rows; report all that were lost at the end."""
    written: list[tuple[Fenced, Found]] = []
    verb = ""
    for change, parts in changes:
        for mapping, of_mapping in by_mapping(parts):
            with writing(session, mapping, rows=True) as writer:
                found = _write_one(writer, mapping, change, of_mapping)
            written += found
            verb = change.verb if _any_lost(found) else verb
    if verb:
        raise ClaimLost(
            verb, lost=_in_order(written, ours=False), kept=_in_order(written, ours=True)
        )


def _write_one(
    writer: Writer, mapping: QueueMapping, change: Change, parts: Sequence[Fenced]
) -> list[tuple[Fenced, Found]]:
    """Write one change to rows of one class, a statement for each claim."""
    with writer.atomically():
        written = [(part, _write_part(writer, mapping, change, part)) for part in parts]
    _show_written(writer, mapping, change, written)
    jobs = sum(len(part.jobs) for part in parts)
    if _any_lost(written):
        lost = len(_in_order(written, ours=False))
        lost_log.warning("%s: %d of %d of %s lost", change.verb, lost, jobs, mapping)
    else:
        log.debug("%s: %d of %s", change.verb, jobs, mapping)
    return written


def _any_lost(written: Sequence[tuple[Fenced, Found]]) -> bool:
    """Tell whether any job was not ours; one that was given twice counts once."""
    return any(
        len(found) < len(part.identities) and len(found) < len(set(part.identities))
        for part, found in written
    )


def _in_order(written: Sequence[tuple[Fenced, Found]], *, ours: bool) -> list[Any]:
    """List the jobs that were ours, or those that were not, as they were given."""
    placed = [
        (place, job)
        for part, found in written
        for place, job, identity in part.placed
        if (identity in found) is ours
    ]
    return [job for _, job in sorted(placed, key=itemgetter(0))]


def _write_part(writer: Writer, mapping: QueueMapping, change: Change, part: Fenced) -> Found:
    """Write to the rows of one claim, as many at a time as the engines take well."""
    has_entities = part.has_entities
    if has_entities:
        writer.entities_allowed()
    shown = has_entities and change.values is not None
    token, written = part.token, Found()
    for chunk in key_batches(list(dict.fromkeys(part.identities))):
        known = len(token.dates)
        found = _write_claim(writer, mapping, change, token, chunk, shown=shown)
        if len(found) < len(chunk) and len(token.dates) > known:
            # A heartbeat renewed the claim while our statement was on its way.
            missing = [identity for identity in chunk if identity not in found]
            found |= _write_claim(writer, mapping, change, token, missing, shown=shown)
        written = {**written, **found} if written else found
    return written


def _write_claim(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    token: Token,
    identities: list[Identity],
    *,
    shown: bool,
) -> Found:
    """Write to the rows of one claim; return those that were ours, with their new values."""
    if token.hold is None:
        return _write_rows(writer, mapping, change, token, identities, shown=shown)
    connection, hold = writer.connection, token.hold
    held = hold.still_held(connection, mapping, identities)
    moved = _moved_on(writer, mapping, hold, held) if change.let_go is LetGo.AT_COMMIT else []
    staying = [identity for identity in held if identity not in moved] if moved else held
    found = _write_rows(writer, mapping, change, token, staying, shown=shown) if staying else {}
    found = {**found, **dict.fromkeys(moved, ())}
    ours = [identity for identity in held if identity in found]
    hold.let_go(connection, mapping, ours, change.let_go)
    if len(ours) < len(held):
        lost = [identity for identity in held if identity not in found]
        hold.let_go(connection, mapping, lost, LetGo.AT_END)
    return found


def _moved_on(
    writer: Writer, mapping: QueueMapping, hold: Hold, identities: Sequence[Identity]
) -> list[Identity]:
    """Lock rows; return those that a new round has taken since they were claimed.

    They are finished with the old round, and nothing is written: the new one has them
    still before it.
    """
    if not hold.rounds or not identities:
        return []
    read = select(*mapping.keys, mapping.column("round")).where(
        key_is_in(mapping, KEYS, writer.database)
    )
    locking = _locking(read, mapping, writer.database)
    rounds: dict[Identity, int] = {
        tuple(row[:-1]): row[-1]
        for batch in key_batches(list(identities))
        for row in writer.core(locking, {KEYS: key_values(batch)})
    }
    return [key for key, round_ in rounds.items() if round_ != hold.rounds.get(key, round_)]


def _write_rows(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    token: Token,
    identities: list[Identity],
    *,
    shown: bool,
) -> Found:
    """Write to rows behind their fence; without JobMixin's columns, no more than their round."""
    if not mapping.is_queue:
        return _leave_round(writer, mapping, change, token, identities)
    fence = FenceKind.of(token)
    statements = _statements(mapping, writer.database, change.values, fence)
    if not statements.writes:
        return dict.fromkeys(identities, ())
    parameters = {
        KEYS: key_values(identities),
        OWNER: token.owner,
        DATES: fence.dates(token),
        **change.parameters,
    }
    told = _told_by_returning(writer.database, change)
    if not shown and (len(identities) == 1 or not told or writer.database.one_writer):
        if _write_all(writer, statements, parameters, len(identities)):
            return dict.fromkeys(identities, ())
        if len(identities) == 1:
            return {}
    if told:
        which = "write_returning" if shown else "write_returning_keys"
        return statements.read(statements.run(writer, which, parameters))
    found = statements.read(statements.run(writer, "lock", parameters))
    if found:
        ours = {**parameters, KEYS: key_values(list(found))}
        statements.run(writer, "write", {**_times(change, found), **ours})
    return found


def _told_by_returning(database: Database, change: Change) -> bool:
    """Tell whether RETURNING says which rows a change reached."""
    return database.delete_returning if change.values is None else database.update_returning


def _leave_round(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    token: Token,
    identities: list[Identity],
) -> Found:
    """Take finished rows out of the round that they were claimed in."""
    rounds = token.hold.rounds if token.hold is not None else {}
    leaving = [identity for identity in identities if rounds.get(identity, 0) > 0]
    if change.let_go is not LetGo.AT_COMMIT or not leaving:
        return dict.fromkeys(identities, ())
    round_ = mapping.column("round")
    done = writer.database.update_by_key(mapping.table, mapping.keys).values({round_: -round_})
    named = key_is_in(mapping, KEYS, writer.database)
    for batch in key_batches(leaving):
        writer.core(done.where(named, round_ > 0), {KEYS: key_values(batch)})
    return {identity: (-rounds.get(identity, 0),) for identity in identities}


def _write_all(
    writer: Writer, statements: FencedStatements, parameters: Mapping[str, Any], rows: int
) -> bool:
    """Write to so many rows, or to none of them; tell whether all were ours.

    The count of the write tells. Of a hundred rows, to lock and read them first took a
    quarter of the time of claim and finish; RETURNING, on SQLite, the half of its DELETE,
    and under the write lock. The count does not tell which were not ours: where one is
    missing, the write is undone. Where a savepoint is a round trip, RETURNING is quicker.
    """
    several = rows > 1
    if several:
        writer.connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
    count = statements.run(writer, "write_counted", parameters).rowcount
    if several and count != rows:
        writer.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    return count == rows


def _times(change: Change, found: Found) -> dict[str, Any]:
    """Return the times that a change writes, from the clock's answer in the locked rows."""
    if change.values is None:
        return {}
    now = as_utc(next(iter(found.values()))[-1])
    return {NOW: now, LATER: now + timedelta(microseconds=change.parameters.get(SHIFT) or 0)}


@dataclass(frozen=True)
class FenceKind:
    """What the fence of a statement compares.

    Attributes:
        status: what the claim wrote, or left.
        unmarked: the claim wrote nothing: its locks are the fence.
        renewed: the claim has had several dates.
    """

    status: str
    unmarked: bool
    renewed: bool

    @classmethod
    def of(cls, token: Token) -> FenceKind:
        """Tell what the fence of a token compares."""
        return cls(token.status, token.hold is not None, len(token.dates) > 1)

    def dates(self, token: Token) -> Any:
        """Return the value of the parameter DATES."""
        return list(token.dates) if self.renewed else next(iter(token.dates), None)


@dataclass(frozen=True, eq=False)
class FencedStatements:
    """The statements of one change to one mapped class.

    Attributes:
        columns: what is changed, in the order of the result.
        write_returning: the write where RETURNING tells what was ours, and its new values.
        write_returning_keys: the same without the values, where nobody shows them.
        write_counted: the write where the count of rows tells whether all were ours.
        lock, write: the two statements that tell which were, where RETURNING does not.
    """

    mapping: QueueMapping
    columns: tuple[Column[Any], ...]
    write_returning: Executable
    write_returning_keys: Executable
    write_counted: Executable
    lock: Executable
    write: Executable
    _needed: dict[tuple[str, Database], frozenset[str]] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.columns) or getattr(self.write, "is_delete", False)

    def run(self, writer: Writer, which: str, parameters: Mapping[str, Any]) -> CursorResult[Any]:
        """Run one of the statements with those of the parameters that it has."""
        statement: Any = getattr(self, which)
        needed = self._needed.get((which, writer.database))
        if needed is None:
            compiled = statement.compile(dialect=writer.connection.dialect)
            needed = self._needed[which, writer.database] = frozenset(compiled.params)
        return writer.core(statement, {k: v for k, v in parameters.items() if k in needed})

    def read(self, result: CursorResult[Any]) -> Found:
        """Map the keys of the rows that were ours to what stands behind them."""
        rows = result.all()
        width = len(self.mapping.keys)
        if not rows or len(rows[0]) == width:
            return dict.fromkeys(map(tuple, rows), ())
        return {tuple(row[:width]): row[width:] for row in rows}


@lru_cache(maxsize=1_000)
def _statements(
    mapping: QueueMapping, database: Database, values: ValuesOf | None, kind: FenceKind
) -> FencedStatements:
    table, keys, unmarked = mapping.table, mapping.keys, kind.unmarked
    fence = _fence(mapping, database, kind)
    if values is None:
        return FencedStatements(
            mapping=mapping,
            columns=(),
            write_returning=database.delete_by_key(table, keys).where(fence).returning(*keys),
            write_returning_keys=database.delete_by_key(table, keys).where(fence).returning(*keys),
            write_counted=database.delete_by_key(table, keys).where(fence),
            lock=_locking(select(*keys).where(fence), mapping, database),
            write=database.delete_by_key(table, keys).where(fence),
        )
    date = mapping.column("owner_date").type
    ends: Callable[[Values], Values] = (
        (lambda written: written) if unmarked else partial(or_join, mapping)
    )
    told = ends(values(mapping, unmarked, utc_now(), utc_now(bindparam(SHIFT, type_=BigInteger))))
    new = ends(values(mapping, unmarked, bindparam(NOW, type_=date), bindparam(LATER, type_=date)))
    after = [_typed(column, value).label(f"new_{column.key}") for column, value in told.items()]
    return FencedStatements(
        mapping=mapping,
        columns=tuple(told),
        write_returning=_updating(mapping, database, fence, told).returning(*keys, *told),
        write_returning_keys=_updating(mapping, database, fence, told).returning(*keys),
        write_counted=_updating(mapping, database, fence, told),
        lock=_locking(
            select(*keys, *after, database.moment().label(NOW)).where(fence), mapping, database
        ),
        write=_updating(mapping, database, fence, new),
    )


def _typed(column: Column[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    # A CASE of NULL and a time is text to the drivers of MySQL and MariaDB.
    return cast(value, column.type) if isinstance(column.type, DateTime) else value


def _updating(
    mapping: QueueMapping, database: Database, fence: ColumnElement[bool], values: Values
) -> Any:
    # In the order given: MySQL's assignments see what those before them wrote.
    changed = database.update_by_key(mapping.table, mapping.keys).where(fence)
    return changed.ordered_values(*values.items())


def _fence(mapping: QueueMapping, database: Database, kind: FenceKind) -> ColumnElement[bool]:
    keys = key_is_in(mapping, KEYS, database)
    claim = status_is(mapping.column("status"), kind.status)
    if not kind.unmarked:
        owner, date = mapping.column("owner"), mapping.column("owner_date")
        dates = bindparam(DATES, type_=date.type, expanding=kind.renewed)
        claim = and_(
            claim,
            owner == bindparam(OWNER, type_=owner.type),
            date.in_(dates) if kind.renewed else date == dates,
        )
    if database.locks_what_it_scans:
        # Wrapped, so that no index serves it but the primary key: by the reap index
        # it deadlocks with inserts.
        claim = case((claim, 1), else_=0) == 1
    return and_(keys, claim)


def _locking(statement: Select[Any], mapping: QueueMapping, database: Database) -> Select[Any]:
    # Bound to the key: a tiny table is scanned else, and rows that others hold are waited for.
    bound: Select[Any] = by_key(statement, mapping.table, database)
    return bound.order_by(*mapping.keys).with_for_update()


def _show_written(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    written: Sequence[tuple[Fenced, Found]],
) -> None:
    """Let the entities of the batch show what was written; rows and fences show nothing."""
    for part, found in written:
        if part.rows:
            continue
        entities = [
            (job, found[identity])
            for job, identity in zip(part.jobs, part.identities, strict=True)
            if isinstance(job, mapping.entity) and identity in found
        ]
        if not entities:
            continue
        if change.values is None:
            show_deleted(writer.session, [entity for entity, _ in entities])
            continue
        attributes = _attributes(mapping, writer.database, change, part.token)
        if not attributes:
            continue
        # Those that a new round has are as it left them.
        moved = [entity for entity, values in entities if not values]
        show_expired(writer.session, moved, mapping)
        show(
            writer.session,
            [(entity, _shown(mapping, attributes, values)) for entity, values in entities],
        )
        if mapping.onupdate_keys:
            for entity, _ in entities:
                if entity in writer.session:
                    writer.session.expire(entity, mapping.onupdate_keys)


def _attributes(
    mapping: QueueMapping, database: Database, change: Change, token: Token
) -> list[str | None]:
    """List the attributes that show the columns which a change writes; None: none does."""
    if not mapping.is_queue:
        return [mapping.attributes["round"]] if mapping.has("round") else []
    keys = {mapping.column(role).key: key for role, key in mapping.attributes.items()}
    columns = _statements(mapping, database, change.values, FenceKind.of(token)).columns
    return [keys.get(column.key) for column in columns]


def _shown(mapping: QueueMapping, columns: Sequence[str | None], values: Sequence[Any]) -> Any:
    """Name new values by the attributes that show them."""
    shown = {key: value for key, value in zip(columns, values, strict=False) if key is not None}
    for key in mapping.time_keys:
        if shown.get(key) is not None:
            shown[key] = as_utc(shown[key])
    return shown


def by_mapping(parts: Sequence[Fenced]) -> list[tuple[QueueMapping, list[Fenced]]]:
    """Sort jobs by their classes."""
    groups: dict[QueueMapping, list[Fenced]] = {}
    for part in parts:
        groups.setdefault(part.mapping, []).append(part)
    return list(groups.items())
