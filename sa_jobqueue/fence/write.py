"""Fenced writes: how a change reaches exactly the rows of a claim.

Where RETURNING tells which rows were ours, each claim takes one statement; elsewhere the
count of rows tells whether all of them were. A locking read with the same fence comes
first where the count says no, and where entities have to show the new values, which are
expressions of the old row.

Little is done for each row: a claim of a hundred jobs is written in the time of a few
claims of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any

from sqlalchemy import select

from ..dialects.clock import as_utc
from ..errors import ClaimLost
from ..events.notes import note, note_claimable
from ..model.keys import key_batches, key_is_in, key_values, locked_by_key
from ..model.mapping import QueueMapping
from ..model.transitions import LATER, NOW, OWNER, SHIFT, taken_out_of_round
from ..sessions.writer import AnyConnection, Writer, writing
from .claim import FencedJobs, by_mapping
from .show import show_written, written_events
from .statements import (
    DATES,
    KEYS,
    FencedStatements,
    FenceKind,
    Found,
    fenced_statements,
)
from .token import Change, Hold, Identity, LetGo, Token

log = logging.getLogger("sa_jobqueue.finish")
lost_log = logging.getLogger("sa_jobqueue.lost")

# Never released: setting it again replaces it, and it ends with the transaction.
_SAVEPOINT = "sa_jobqueue_write"


def write(session: AnyConnection, changes: Iterable[tuple[Change, Sequence[FencedJobs]]]) -> None:
    """Write changes to the rows of claims.

    Raises:
        ClaimLost: for the jobs that are not ours any more, after the others were written.
    """
    written: list[tuple[FencedJobs, Found]] = []
    verb = ""
    for change, parts in changes:
        for mapping, of_mapping in by_mapping(parts):
            with writing(session, mapping, rows=True) as writer:
                found = _write_to_class(writer, mapping, change, of_mapping)
                if note_written(writer, mapping, change, found):
                    verb = change.verb
            written += found
    if verb:
        raise _loss(verb, written)


def write_in(
    writer: Writer, mapping: QueueMapping, change: Change, parts: Sequence[FencedJobs]
) -> None:
    """Write a change to rows of one class.

    Raises:
        ClaimLost: for the jobs that are not ours any more, after the others were written.
    """
    written = _write_to_class(writer, mapping, change, parts)
    if note_written(writer, mapping, change, written):
        raise _loss(change.verb, written)


def write_missing(
    writer: Writer, mapping: QueueMapping, change: Change, part: FencedJobs, found: Found
) -> None:
    """Write to the rows that a finish within a claim's statement has missed.

    Args:
        found: the rows that it has reached.

    Raises:
        ClaimLost: jobs are not ours any more.
    """
    if len(found) < len(part.identities):
        missing = [key for key in dict.fromkeys(part.identities) if key not in found]
        if missing:  # a heartbeat may have renewed their claim meanwhile
            found |= _write_rows(writer, mapping, change, part.token, missing, shown=False)
    written = [(part, found)]
    if note_written(writer, mapping, change, written):
        raise _loss(change.verb, written)


def _loss(verb: str, written: Sequence[tuple[FencedJobs, Found]]) -> ClaimLost:
    return ClaimLost(verb, lost=_in_order(written, ours=False), kept=_in_order(written, ours=True))


def _write_to_class(
    writer: Writer, mapping: QueueMapping, change: Change, parts: Sequence[FencedJobs]
) -> list[tuple[FencedJobs, Found]]:
    """Write one change to rows of one class, claim by claim."""
    if writer.in_autocommit:
        with writer.atomically():
            return [(part, _write_part(writer, mapping, change, part)) for part in parts]
    return [(part, _write_part(writer, mapping, change, part)) for part in parts]


def note_written(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    written: Sequence[tuple[FencedJobs, Found]],
) -> bool:
    """Show what was written in the entities, and note it for listeners, workers and the log.

    Returns:
        Whether any job was not ours; a job that was given twice counts once.
    """
    show_written(writer, mapping, change, written)
    if mapping.listeners:
        for told in written_events(mapping, change, written):
            note(writer, mapping, told)
    if change.verb == "release":
        mapping.head.changes += 1
    if mapping.wakes:
        _note_claimable(writer, mapping, change, written)
    lost = _any_lost(written)
    if lost:
        _log_lost(change.verb, mapping, written)
    elif log.isEnabledFor(logging.DEBUG):
        log.debug("%s: %d of %s", change.verb, _jobs_in(written), mapping)
    return lost


def _note_claimable(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    written: Sequence[tuple[FencedJobs, Found]],
) -> None:
    """Note the jobs that can be claimed now: those that were written, or others of their keys."""
    ours = [part for part, found in written if found]
    if ours and change.frees and (change.verb != "fail" or mapping.has("attempts")):
        note_claimable(writer, mapping)
    elif change.let_go is not LetGo.NEVER:
        for limited_by in {part.token.limited_by for part in ours} - {None}:
            note_claimable(writer, mapping, freed_by=limited_by)


def _any_lost(written: Sequence[tuple[FencedJobs, Found]]) -> bool:
    for part, found in written:
        if len(found) < len(part.identities) and len(found) < len(set(part.identities)):
            return True
    return False


def _log_lost(
    verb: str, mapping: QueueMapping, written: Sequence[tuple[FencedJobs, Found]]
) -> None:
    lost = len(_in_order(written, ours=False))
    lost_log.warning("%s: %d of %d of %s lost", verb, lost, _jobs_in(written), mapping)


def _jobs_in(written: Sequence[tuple[FencedJobs, Found]]) -> int:
    return sum(len(part.jobs) for part, _ in written)


def _in_order(written: Sequence[tuple[FencedJobs, Found]], *, ours: bool) -> list[Any]:
    """List the jobs that were ours, or those that were not, in the order given."""
    indexed = [
        (index, job)
        for part, found in written
        for index, job, identity in part.indexed
        if (identity in found) is ours
    ]
    return [job for _, job in sorted(indexed, key=itemgetter(0))]


def _write_part(writer: Writer, mapping: QueueMapping, change: Change, part: FencedJobs) -> Found:
    """Write to the rows of one claim, as many at a time as the databases take well."""
    has_entities = not part.rows and part.has_entities
    if has_entities:
        writer.entities_allowed()
    shown = has_entities and change.values is not None
    token, written = part.token, Found()
    write_some = _write_rows if token.hold is None else _write_held
    identities = part.identities
    single = len(identities) == 1
    for chunk in [identities] if single else key_batches(list(dict.fromkeys(identities))):
        known = len(token.dates)
        found = write_some(writer, mapping, change, token, chunk, shown=shown)
        if len(found) < len(chunk) and len(token.dates) > known:
            # A heartbeat renewed the claim while our statement was on its way.
            missing = [identity for identity in chunk if identity not in found]
            found |= write_some(writer, mapping, change, token, missing, shown=shown)
        written = {**written, **found} if written else found
    return written


def _write_held(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    token: Token,
    identities: list[Identity],
    *,
    shown: bool,
) -> Found:
    """Write to rows that a hold keeps; return those that were ours, with their new values."""
    connection, hold = writer.connection, token.hold
    assert hold is not None
    held = hold.still_held(connection, mapping, identities)
    finishes = change.let_go is LetGo.AT_COMMIT
    taken_over = _in_newer_round(writer, mapping, hold, held) if finishes else []
    staying = [key for key in held if key not in taken_over] if taken_over else held
    found = _write_rows(writer, mapping, change, token, staying, shown=shown) if staying else {}
    found = {**found, **dict.fromkeys(taken_over, ())}
    ours = [identity for identity in held if identity in found]
    hold.let_go(connection, mapping, ours, change.let_go)
    if len(ours) < len(held):
        lost = [identity for identity in held if identity not in found]
        hold.let_go(connection, mapping, lost, LetGo.AT_END)
    return found


def _in_newer_round(
    writer: Writer, mapping: QueueMapping, hold: Hold, identities: Sequence[Identity]
) -> list[Identity]:
    """Lock rows; return those that a newer round has taken since they were claimed.

    They are finished in the old round, and nothing is written to them: the newer round
    still has to do them.
    """
    if not hold.rounds or not identities:
        return []
    read = select(*mapping.keys, mapping.column("round")).where(
        key_is_in(mapping, KEYS, writer.database)
    )
    locking = locked_by_key(read, mapping, writer.database)
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
    """Write to rows behind their fence; a class without JobMixin has only its round written."""
    if not mapping.is_queue:
        return _leave_round(writer, mapping, change, token, identities)
    fence = FenceKind.of(token, identities)
    statements = fenced_statements(mapping, writer, change.values, fence, change.own)
    if not statements.writes:
        return dict.fromkeys(identities, ())
    parameters = {
        KEYS: fence.keys(identities),
        OWNER: token.owner,
        DATES: fence.dates(token),
        **change.parameters,
    }
    rows = len(identities)
    if not shown and (rows == 1 or statements.counted):
        if _write_all(writer, statements, parameters, rows):
            return dict.fromkeys(identities, ())
        if rows == 1:
            return {}
    if statements.told:
        which = "write_returning" if shown else "write_returning_keys"
        return statements.read(statements.run(writer, which, parameters))
    found = statements.read(statements.run(writer, "lock", parameters))
    if found:
        ours = {**parameters, KEYS: fence.keys(list(found))}
        statements.run(writer, "write", {**_times(change, found), **ours})
    return found


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
    done = writer.database.update_by_key(mapping.table, mapping.keys).values(
        dict(taken_out_of_round(mapping))
    )
    named = key_is_in(mapping, KEYS, writer.database)
    for batch in key_batches(leaving):
        writer.core(done.where(named, round_ > 0), {KEYS: key_values(batch)})
    return {identity: (-rounds.get(identity, 0),) for identity in identities}


def _write_all(
    writer: Writer, statements: FencedStatements, parameters: Mapping[str, Any], rows: int
) -> bool:
    """Write to all of the rows or to none; tell by the count whether all were ours.

    With a hundred rows, locking and reading them first took a quarter of the time of claim
    and finish. RETURNING took half of the time of SQLite's DELETE, under its write lock.
    The count does not tell which rows were not ours: if one is missing, the write is
    undone. Where a savepoint costs a round trip, RETURNING is faster.
    """
    several = rows > 1
    if several:
        writer.connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
    count = statements.run(writer, "write_counted", parameters).rowcount
    if several and count != rows:
        writer.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    return count == rows


def _times(change: Change, found: Found) -> dict[str, Any]:
    """Return the times that a change writes: by the database's clock, read with the locked rows."""
    if change.values is None:
        return {}
    now = as_utc(next(iter(found.values()))[-1])
    return {NOW: now, LATER: now + timedelta(microseconds=change.parameters.get(SHIFT) or 0)}
