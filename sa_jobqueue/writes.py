"""Fenced writes: how a change reaches exactly the rows of a claim.

Where RETURNING tells which rows were ours, one statement per claim; else a
locking read with the same fence tells them first, and the new values too:
these are expressions of the old row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
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
    delete,
    select,
    update,
)
from sqlalchemy.engine import CursorResult

from .clock import as_utc, utc_now
from .dialects import Database
from .errors import ClaimLost
from .fencing import Fence, Identity, LetGo, Token
from .keys import by_key, key_is_in, key_values
from .mapping import QueueMapping, any_mapping_of, status_is
from .sessions import AnySession, Writer, show, show_deleted, writing

log = logging.getLogger("sa_jobqueue.finish")
lost_log = logging.getLogger("sa_jobqueue.lost")

# The parameters of every fenced statement.
KEYS, OWNER, DATES = "finish_keys", "finish_owner", "finish_dates"
NOW, LATER, SHIFT = "finish_now", "finish_later", "finish_shift"

#: Rows of one statement: SQLite takes 32,766 parameters, some drivers 65,535.
MOST_KEYS = 5_000

Time: TypeAlias = ColumnElement[Any]
Values: TypeAlias = Mapping[Column[Any], Any]
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


def write(session: AnySession, changes: Iterable[tuple[Change, list[tuple[Any, Fence]]]]) -> None:
    """Write changes to fenced rows; report all that were lost at the end."""
    lost: list[Any] = []
    kept: list[Any] = []
    verb = ""
    for change, pairs in changes:
        for mapping, of_mapping in by_mapping(pairs):
            with writing(session, mapping) as writer:
                try:
                    _write_one(writer, mapping, change, of_mapping)
                except ClaimLost as error:
                    verb = error.verb
                    lost += error.lost
                    kept += error.kept
                else:
                    kept += [job for job, _ in of_mapping]
    if lost:
        raise ClaimLost(verb, lost=lost, kept=kept)


def _write_one(
    writer: Writer, mapping: QueueMapping, change: Change, pairs: list[tuple[Any, Fence]]
) -> None:
    """Write one change to rows of one class, a statement for each claim."""
    written: dict[tuple[int, Identity], Mapping[str, Any]] = {}
    with writer.atomically():
        for token, identities in _by_token(pairs):
            for identity, values in _write_token(writer, mapping, change, token, identities):
                written[id(token), identity] = values
    _show_written(writer, mapping, change, pairs, written)
    lost = [job for job, fence in pairs if _key(fence) not in written]
    if lost:
        kept = [job for job, fence in pairs if _key(fence) in written]
        lost_log.warning("%s: %d of %d of %s lost", change.verb, len(lost), len(pairs), mapping)
        raise ClaimLost(change.verb, lost=lost, kept=kept)
    if pairs:
        log.debug("%s: %d of %s", change.verb, len(pairs), mapping)


def _key(fence: Fence) -> tuple[int, Identity]:
    return id(fence.token), fence.identity


def _write_token(
    writer: Writer, mapping: QueueMapping, change: Change, token: Token, identities: list[Identity]
) -> Iterator[tuple[Identity, Mapping[str, Any]]]:
    """Write to the rows of one claim, as many at a time as the engines take parameters."""
    for begin in range(0, len(identities), MOST_KEYS):
        chunk = list(dict.fromkeys(identities[begin : begin + MOST_KEYS]))
        known = len(token.dates)
        found = _write_claim(writer, mapping, change, token, chunk)
        yield from found.items()
        missing = [identity for identity in chunk if identity not in found]
        if missing and len(token.dates) > known:
            # A heartbeat renewed the claim while our statement was on its way.
            yield from _write_claim(writer, mapping, change, token, missing).items()


def _write_claim(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    token: Token,
    identities: list[Identity],
) -> dict[Identity, Mapping[str, Any]]:
    """Write to the rows of one claim; return those that were ours, with their new values."""
    if token.hold is None:
        return _write_rows(writer, mapping, change, token, identities)
    connection, hold = writer.connection, token.hold
    held = hold.still_held(connection, mapping, identities)
    found = _write_rows(writer, mapping, change, token, held) if held else {}
    ours = [identity for identity in held if identity in found]
    hold.let_go(connection, mapping, ours, change.let_go)
    lost = [identity for identity in held if identity not in found]
    hold.let_go(connection, mapping, lost, LetGo.AT_END)
    return found


def _write_rows(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    token: Token,
    identities: list[Identity],
) -> dict[Identity, Mapping[str, Any]]:
    """Write to rows behind their fence; without JobMixin's columns there is nothing to write."""
    if not mapping.is_queue:
        return {identity: {} for identity in identities}
    parameters = {
        KEYS: key_values(identities),
        OWNER: token.owner,
        DATES: list(token.dates),
        **change.parameters,
    }
    unmarked = token.hold is not None
    statements = _statements(mapping, writer.database, change.values, token.status, unmarked)
    if not statements.writes:
        return {identity: {} for identity in identities}
    database = writer.database
    if database.delete_returning if change.values is None else database.update_returning:
        return statements.read(statements.run(writer, "write_returning", parameters))
    found = statements.read(statements.run(writer, "lock", parameters))
    if found:
        now = next(iter(found.values()))[NOW]
        later = now + timedelta(microseconds=change.parameters.get(SHIFT) or 0)
        times = {NOW: now, LATER: later}
        ours = {KEYS: key_values(list(found))}
        statements.run(writer, "write", {**times, **parameters, **ours})
    return found


@dataclass(frozen=True, eq=False)
class FencedStatements:
    """The statements of one change to one mapped class.

    Attributes:
        columns: what is changed, in the order of the result.
        write_returning: the write where RETURNING tells what was ours.
        lock, write: the two statements where it does not.
    """

    mapping: QueueMapping
    columns: tuple[Column[Any], ...]
    write_returning: Executable
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

    def read(self, result: Iterable[Sequence[Any]]) -> dict[Identity, Mapping[str, Any]]:
        """Map the keys of the rows that were ours to their new values."""
        width = len(self.mapping.keys)
        names = [*(column.key for column in self.columns), NOW]
        return {tuple(row[:width]): dict(zip(names, row[width:], strict=False)) for row in result}


@lru_cache(maxsize=1_000)
def _statements(
    mapping: QueueMapping, database: Database, values: ValuesOf | None, status: str, unmarked: bool
) -> FencedStatements:
    table, keys = mapping.table, mapping.keys
    fence = _fence(mapping, database, status, unmarked)
    if values is None:
        return FencedStatements(
            mapping=mapping,
            columns=(),
            write_returning=delete(table).where(fence).returning(*keys),
            lock=_locking(select(*keys, utc_now().label(NOW)).where(fence), mapping, database),
            write=delete(table).where(fence),
        )
    told = values(mapping, unmarked, utc_now(), utc_now(bindparam(SHIFT, type_=BigInteger)))
    date = mapping.column("owner_date").type
    new = values(mapping, unmarked, bindparam(NOW, type_=date), bindparam(LATER, type_=date))
    after = [_typed(column, value).label(f"new_{column.key}") for column, value in told.items()]
    return FencedStatements(
        mapping=mapping,
        columns=tuple(told),
        write_returning=_updating(mapping, fence, told).returning(*keys, *told),
        lock=_locking(select(*keys, *after, utc_now().label(NOW)).where(fence), mapping, database),
        write=_updating(mapping, fence, new),
    )


def _typed(column: Column[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    # A CASE of NULL and a time is text to the drivers of MySQL and MariaDB.
    return cast(value, column.type) if isinstance(column.type, DateTime) else value


def _updating(mapping: QueueMapping, fence: ColumnElement[bool], values: Values) -> Any:
    # In the order given: MySQL's assignments see what those before them wrote.
    return update(mapping.table).where(fence).ordered_values(*values.items())


def _fence(
    mapping: QueueMapping, database: Database, status: str, unmarked: bool
) -> ColumnElement[bool]:
    keys = key_is_in(mapping, KEYS)
    claim = status_is(mapping.column("status"), status)
    if not unmarked:  # of an unmarked claim the locks are the fence; nothing was written
        owner, date = mapping.column("owner"), mapping.column("owner_date")
        claim = and_(
            claim,
            owner == bindparam(OWNER, type_=owner.type),
            date.in_(bindparam(DATES, type_=date.type, expanding=True)),
        )
    if database.locks_what_it_scans:
        # Wrapped, so that no index serves it but the primary key: a DELETE takes
        # no hint, and one by the reap index deadlocks with inserts.
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
    pairs: list[tuple[Any, Fence]],
    written: Mapping[tuple[int, Identity], Mapping[str, Any]],
) -> None:
    """Let the entities of the batch show what was written; fences have none."""
    entities = [
        (job, written[_key(fence)])
        for job, fence in pairs
        if _key(fence) in written and isinstance(job, mapping.entity)
    ]
    if change.values is None:
        show_deleted(writer.session, [entity for entity, _ in entities])
        return
    keys = {mapping.column(role).key: key for role, key in mapping.attributes.items()}
    for entity, values in entities:
        shown = {keys[name]: value for name, value in values.items() if name in keys}
        for key in mapping.time_keys:
            if shown.get(key) is not None:
                shown[key] = as_utc(shown[key])
        show(writer.session, entity, shown)
        if mapping.onupdate_keys and entity in writer.session:
            writer.session.expire(entity, mapping.onupdate_keys)


def by_mapping(
    pairs: list[tuple[Any, Fence]],
) -> list[tuple[QueueMapping, list[tuple[Any, Fence]]]]:
    groups: dict[QueueMapping, list[tuple[Any, Fence]]] = {}
    for pair in pairs:
        groups.setdefault(any_mapping_of(pair[1].entity), []).append(pair)
    return list(groups.items())


def _by_token(pairs: list[tuple[Any, Fence]]) -> list[tuple[Token, list[Identity]]]:
    groups: dict[int, tuple[Token, list[Identity]]] = {}
    for _, fence in pairs:
        groups.setdefault(id(fence.token), (fence.token, []))[1].append(fence.identity)
    return list(groups.values())
