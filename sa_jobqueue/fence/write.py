"""Fenced writes: how a change reaches exactly the rows of a claim.

Where RETURNING tells which rows were ours, each claim takes one statement; elsewhere the
count of rows tells whether all of them were. If not, a locking read with the same fence tells
which ones, and the write is made again. Entities that have to show the new values are read then.

Little is done for each row: a claim of a hundred jobs is written in the time of a few
claims of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from ..errors import ClaimLost
from ..events.notes import note, note_claimable
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..sessions.writer import AnyConnection, Writer, writing
from .claim import FencedJobs
from .show import UNSHOWN, Found, show_written, shown_values, written_events
from .statements import (
    COUNT,
    KEYS,
    NEW_VALUES,
    ONLY_KEYS,
    FencedWrite,
    fence_parameters,
    fenced_write,
    lock_ours,
    lock_rows,
)
from .token import Change, Hold, Identity, LetGo

log = logging.getLogger("sa_jobqueue.finish")
lost_log = logging.getLogger("sa_jobqueue.lost")

# Never released: setting it again replaces it, and it ends with the transaction.
_SAVEPOINT = "sa_jobqueue_write"


def write(session: AnyConnection, changes: Iterable[tuple[Change, Sequence[FencedJobs]]]) -> None:
    """Write changes, each to the rows of claims of one class.

    Raises:
        ClaimLost: for the jobs that are not ours any more, after the others were written.
    """
    all_written: list[tuple[FencedJobs, Found]] = []
    verb = ""
    for change, parts in changes:
        mapping = parts[0].mapping
        with writing(session, mapping, rows=True) as writer:
            with writer.atomically():
                written = [(part, _write_part(writer, change, part)) for part in parts]
            if note_written(writer, mapping, change, written):
                verb = change.verb
        all_written += written
    if verb:
        raise _loss(verb, all_written)


def write_in(
    writer: Writer, mapping: QueueMapping, change: Change, parts: Sequence[FencedJobs]
) -> None:
    """Write a change to rows of one class.

    Raises:
        ClaimLost: for the jobs that are not ours any more, after the others were written.
    """
    with writer.atomically():
        written = [(part, _write_part(writer, change, part)) for part in parts]
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
            found |= _write_rows(writer, change, part, missing, shown=False)
    written = [(part, found)]
    if note_written(writer, mapping, change, written):
        raise _loss(change.verb, written)


def _loss(verb: str, written: Sequence[tuple[FencedJobs, Found]]) -> ClaimLost:
    return ClaimLost(verb, lost=_in_order(written, ours=False), kept=_in_order(written, ours=True))


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
    lost = False
    for part, found in written:
        lost |= len(found) < len(part.identities) and len(found) < len(set(part.identities))
    if lost or log.isEnabledFor(logging.DEBUG):
        jobs = sum(len(part.jobs) for part, _ in written)
        if lost:
            missed = len(_in_order(written, ours=False))
            lost_log.warning("%s: %d of %d of %s lost", change.verb, missed, jobs, mapping)
        else:
            log.debug("%s: %d of %s", change.verb, jobs, mapping)
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


def _in_order(written: Sequence[tuple[FencedJobs, Found]], *, ours: bool) -> list[Any]:
    """List the jobs that were ours, or those that were not, in the order given."""
    indexed = [
        (index, job)
        for part, found in written
        for index, job, identity in part.indexed
        if (identity in found) is ours
    ]
    return [job for _, job in sorted(indexed, key=itemgetter(0))]


def _write_part(writer: Writer, change: Change, part: FencedJobs) -> Found:
    """Write to the rows of one claim, as many at a time as the databases take well."""
    # Asked for its session, a Connection refuses entities.
    shown = part.has_entities and writer.session is not None and change.values is not None
    token, written = part.token, Found()
    write_some = _write_rows if token.hold is None else _write_held
    keys = part.identities
    for chunk in key_batches(keys if len(keys) == 1 else list(dict.fromkeys(keys))):
        known = len(token.dates)
        found = write_some(writer, change, part, chunk, shown=shown)
        if len(found) < len(chunk) and len(token.dates) > known:
            # A heartbeat renewed the claim while our statement was on its way.
            missing = [identity for identity in chunk if identity not in found]
            found |= write_some(writer, change, part, missing, shown=shown)
        written |= found
    return written


def _write_held(
    writer: Writer, change: Change, part: FencedJobs, identities: list[Identity], *, shown: bool
) -> Found:
    """Write to rows that a hold keeps; return those that were ours, with their new values."""
    connection, mapping, hold = writer.connection, part.mapping, part.token.hold
    assert hold is not None
    held = hold.still_held(connection, mapping, identities)
    finishes = change.let_go is LetGo.AT_COMMIT
    taken_over = _in_newer_round(writer, mapping, hold, held) if finishes else []
    staying = [key for key in held if key not in taken_over]
    found = _write_rows(writer, change, part, staying, shown=shown) if staying else {}
    found |= dict.fromkeys(taken_over)
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
    rounds = lock_rows(writer, mapping, "round", identities)
    return [key for key, round_ in rounds.items() if round_ != hold.rounds.get(key, round_)]


def _write_rows(
    writer: Writer, change: Change, part: FencedJobs, identities: list[Identity], *, shown: bool
) -> Found:
    """Write to rows behind their fence; a class without JobMixin has only its round written.

    RETURNING took half of the time of SQLite's DELETE, under its write lock. So the count is
    asked first there, and of a single row.
    """
    mapping, token, database = part.mapping, part.token, writer.database
    if not mapping.is_queue:
        return _leave_round(writer, change, part, identities)
    deletes = change.values is None
    returns = database.delete_returning if deletes else database.update_returning
    counted = not shown and (len(identities) == 1 or database.one_writer)
    returned = COUNT if counted or not returns else NEW_VALUES if shown else ONLY_KEYS
    what = (change.values, change.word, change.own)
    single = len(identities) == 1 == len(mapping.keys)
    fenced = fenced_write(mapping, writer, what, token.kind(single=single), returned)
    if fenced.statement is None:
        return dict.fromkeys(identities, UNSHOWN)
    parameters = {**fence_parameters(token, identities), **change.parameters}
    if single:
        ((parameters[KEYS],),) = identities
    if returned != COUNT:
        rows = fenced.run(writer, parameters).all()
    else:
        found = _write_counted(writer, fenced, part, identities, parameters)
        if not shown or not found:
            return dict.fromkeys(found, UNSHOWN)
        rows = list(writer.built(fenced.read, {KEYS: key_values(found)}).all())
    if shown:
        return shown_values(mapping, fenced.attributes, rows)
    return dict.fromkeys(map(tuple, rows), UNSHOWN)


def _write_counted(
    writer: Writer,
    fenced: FencedWrite,
    part: FencedJobs,
    identities: list[Identity],
    parameters: dict[str, Any],
) -> list[Identity]:
    """Write to the rows that are ours, and return their keys; the count tells whether all were.

    With a hundred rows, locking and reading them first took a quarter of the time of claim
    and finish. The count does not tell which rows were not ours: if one is missing, the write is
    undone, and made again for those that a locking read finds.
    """
    several = len(identities) > 1
    if several:
        writer.connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
    if fenced.run(writer, parameters).rowcount == len(identities):
        return identities
    if not several:
        return []
    writer.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    found = list(lock_ours(writer, part.mapping, part.token, identities))
    if found:
        fenced.run(writer, {**parameters, KEYS: key_values(found)})
    return found


def _leave_round(
    writer: Writer, change: Change, part: FencedJobs, identities: list[Identity]
) -> Found:
    """Take finished rows out of the round that they were claimed in: it is done with them."""
    mapping, hold = part.mapping, part.token.hold
    rounds = hold.rounds if hold is not None else {}
    leaving = [identity for identity in identities if rounds.get(identity, 0) > 0]
    if change.let_go is not LetGo.AT_COMMIT or not leaving:
        return dict.fromkeys(identities, UNSHOWN)
    round_ = mapping.column("round")
    done = writer.database.update_by_key(mapping.table, mapping.keys).values({round_: -round_})
    named = key_is_in(mapping, KEYS, writer.database)
    for batch in key_batches(leaving):
        writer.core(done.where(named, round_ > 0), {KEYS: key_values(batch)})
    shown = mapping.attributes["round"]
    return {identity: {shown: -rounds.get(identity, 0)} for identity in identities}
