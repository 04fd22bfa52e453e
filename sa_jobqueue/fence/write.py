"""Fenced writes: how a change reaches exactly the rows of a claim.

Where RETURNING tells which rows were ours, each claim takes one statement; elsewhere the
count of rows tells whether all of them were. If not, a locking read with the same fence tells
which ones, and the write is made again. Entities that have to show the new values are read then.

Little is done for each row: a claim of a hundred jobs is written in the time of a few
claims of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.orm.attributes import instance_dict

from ..databases.clock import as_utc
from ..errors import ClaimLost
from ..events.event import EVENT_OF_VERB, Event, EventJob
from ..events.notes import note, note_claimable
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping, counting_together
from ..model.transitions import ERROR, NOW
from ..sessions.show import show_deleted, show_expired, show_values
from ..sessions.writer import AnyConnection, Writer, writing
from .claim import FencedJobs
from .statements import (
    COUNT,
    KEYS,
    NEW_VALUES,
    ONLY_KEYS,
    fence_parameters,
    fenced_write,
    lock_ours,
    lock_rows,
    own_parameter,
)
from .token import Change, Hold, Identity, LetGo

log = logging.getLogger("sa_jobqueue.finish")
lost_log = logging.getLogger("sa_jobqueue.lost")

#: The rows that were still ours, with their new values by attributes, as far as entities show
#: them. None: a new round has taken the row, and nothing was written to it.
Found = dict[Identity, Mapping[str, Any] | None]

#: Jobs of one class by their tokens, each with its rows that were ours.
Written = list[tuple[FencedJobs, Found]]

#: The new values of a row that no entity shows.
UNSHOWN: Mapping[str, Any] = MappingProxyType({})

# Never released: setting it again replaces it, and it ends with the transaction.
_SAVEPOINT = "sa_jobqueue_write"


def write(session: AnyConnection, changes: Sequence[tuple[Change, Sequence[FencedJobs]]]) -> None:
    """Write changes, each to the rows of claims of one class.

    Raises:
        ClaimLost: for the jobs that are not ours any more, after the others were written.
    """
    written: Written = []
    lost = ""
    with counting_together(session, [parts[0].mapping for _, parts in changes]):
        for change, parts in changes:
            with writing(session, parts[0].mapping, rows=True, shard_by=parts[0].jobs) as writer:
                some, any_lost = _write_parts(writer, change, parts)
            written += some
            lost = change.verb if any_lost else lost
    if lost:
        raise _loss(lost, written)


def write_in(writer: Writer, change: Change, parts: Sequence[FencedJobs]) -> None:
    """Write a change to rows of one class.

    Raises:
        ClaimLost: for the jobs that are not ours any more, after the others were written.
    """
    written, lost = _write_parts(writer, change, parts)
    if lost:
        raise _loss(change.verb, written)


def write_missing(writer: Writer, change: Change, part: FencedJobs, found: Found) -> None:
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
    if note_written(writer, change, written):
        raise _loss(change.verb, written)


def note_lost(session: AnyConnection, change: Change, parts: Sequence[FencedJobs]) -> None:
    """Note claims that are gone, as a write does that finds none of their rows."""
    for part in parts:
        with writing(session, part.mapping, rows=True, reads=True) as writer:
            note_written(writer, change, [(part, {})])


def _write_parts(
    writer: Writer, change: Change, parts: Sequence[FencedJobs]
) -> tuple[Written, bool]:
    """Write to rows of one class; return what was written, and whether any job was lost."""
    with writer.atomically():
        written = [(part, _write_part(writer, change, part)) for part in parts]
    return written, note_written(writer, change, written)


def _loss(verb: str, written: Written) -> ClaimLost:
    return ClaimLost(verb, lost=_in_order(written, ours=False), kept=_in_order(written, ours=True))


def note_written(writer: Writer, change: Change, written: Written) -> bool:
    """Show what was written in the entities, and note it for listeners, workers and the log.

    Returns:
        Whether any job was not ours; a job that was given twice counts once.
    """
    mapping = written[0][0].mapping
    show_written(writer, mapping, change, written)
    if mapping.listeners:
        for told in written_events(mapping, change, written):
            note(writer, mapping, told)
    if change.verb == "release":
        mapping.head.changes += 1
    if mapping.wakes:
        # The jobs that can be claimed now: those that were written, or others of their keys.
        ours = [part for part, found in written if found]
        if ours and change.frees and (change.verb != "fail" or mapping.has("attempts")):
            note_claimable(writer, mapping)
        elif change.let_go is not LetGo.NEVER:
            for limited_by in {part.token.limited_by for part in ours} - {None}:
                note_claimable(writer, mapping, freed_by=limited_by)
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


def _in_order(written: Written, *, ours: bool) -> list[Any]:
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
    with part.mapping.counting(writer, keys):
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
    held = hold.still_held(connection, identities)
    finishes = change.let_go is LetGo.AT_COMMIT
    taken_over = _in_newer_round(writer, mapping, hold, held) if finishes else []
    staying = [key for key in held if key not in taken_over]
    found = _write_rows(writer, change, part, staying, shown=shown) if staying else {}
    found |= dict.fromkeys(taken_over)
    ours = [identity for identity in held if identity in found]
    hold.let_go(connection, ours, change.let_go)
    if len(ours) < len(held):
        lost = [identity for identity in held if identity not in found]
        hold.let_go(connection, lost, LetGo.AT_END)
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
    rounds = lock_rows(writer, mapping, ("round",), identities)
    return [key for key, (round_,) in rounds.items() if round_ != hold.rounds.get(key, round_)]


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
    returns = database.update_returning
    counted = not shown and (len(identities) == 1 or database.one_writer)
    returned = COUNT if counted or not returns else NEW_VALUES if shown else ONLY_KEYS
    what = (change.values, change.word, change.own, change.cases)
    single = len(identities) == 1 == len(mapping.keys)
    fenced = fenced_write(mapping, writer, what, token.kind(single=single), returned)
    if fenced.statement is None:
        return dict.fromkeys(identities, UNSHOWN)
    parameters = {**fence_parameters(token, identities, single=single), **change.parameters}
    if returned != COUNT:
        rows = writer.built(fenced.statement, parameters).all()
    else:
        found = _write_counted(writer, fenced.statement, part, identities, parameters)
        if not shown or not found:
            return dict.fromkeys(found, UNSHOWN)
        rows = writer.built(fenced.read, {KEYS: key_values(found)}).all()
    if shown:
        return shown_values(mapping, fenced.attributes, rows)
    return dict.fromkeys(map(tuple, rows), UNSHOWN)


def _write_counted(
    writer: Writer,
    statement: Executable,
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
    if writer.built(statement, parameters).rowcount == len(identities):
        return identities
    if not several:
        return []
    writer.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    found = list(lock_ours(writer, part.mapping, part.token, identities))
    if found:
        writer.built(statement, {**parameters, KEYS: key_values(found)})
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


# -- what entities show, and what listeners hear --------------------------------
#
# Plain rows and fences show nothing.


def shown_values(
    mapping: QueueMapping, attributes: Sequence[str], rows: Iterable[Sequence[Any]]
) -> Found:
    """Return what rows have become, times as UTC.

    Args:
        rows: each has its key, and then the values of the attributes.
    """
    found: Found = {}
    width, in_utc = len(mapping.keys), dict[Any, Any]({None: None})
    times = set(mapping.time_keys).intersection(attributes)
    for row in rows:
        shown = dict(zip(attributes, row[width:], strict=True))
        for key in times:
            time = shown[key]
            shown[key] = in_utc[time] if time in in_utc else in_utc.setdefault(time, as_utc(time))
        found[tuple(row[:width])] = shown
    return found


def show_written(writer: Writer, mapping: QueueMapping, change: Change, written: Written) -> None:
    """Let the entities of a batch show what was written."""
    shown: list[tuple[Any, dict[str, Any]]] = []
    moved: list[Any] = []
    names = [mapping.mapper.get_property_by_column(column).key for column in change.own]
    same = [] if change.each else [change.parameters[own_parameter(n)] for n in range(len(names))]
    for part, found in written:
        for job, identity in () if part.rows else zip(part.jobs, part.identities, strict=True):
            if identity in found and isinstance(job, mapping.entity):
                new = found[identity]
                if new is None:
                    moved.append(job)
                else:
                    own = zip(names, change.each.get(identity, same), strict=True)
                    shown.append((job, {**new, **dict(own)}))
    if not shown and not moved:
        return
    session, entities = writer.session, [*map(itemgetter(0), shown), *moved]
    if change.values is None:
        show_deleted(session, entities)
        return
    show_values(session, shown)
    if moved:
        show_expired(session, mapping, moved)
    if mapping.onupdate_keys:
        show_expired(session, mapping, entities, mapping.onupdate_keys)


def written_events(mapping: QueueMapping, change: Change, written: Written) -> Iterator[Event]:
    """Make the events of one change to one class: of the jobs that were ours, and of the others."""
    jobs: dict[str, list[EventJob]] = {EVENT_OF_VERB[change.verb]: [], "after_lost": []}
    ours, lost = jobs.values()
    for part, found in written:
        given = dict(zip(part.identities, part.jobs, strict=True))  # a job may be given twice
        for identity, job in given.items():
            shows = change.values is not None and mapping.is_queue
            told = _event_job(mapping, part, identity, job if shows else None)
            (ours if identity in found else lost).append(told)
    error, at = change.parameters.get(ERROR), change.parameters.get(NOW)
    for name, told_jobs in jobs.items():
        if told_jobs:
            number = len(told_jobs)
            yield Event(
                name, change.verb, mapping.entity, tuple(told_jobs), number, error=error, at=at
            )


def _event_job(mapping: QueueMapping, part: FencedJobs, identity: Identity, job: Any) -> EventJob:
    """Make the job of an event; an entity tells its status, which rows and fences do not."""
    token, status = part.token, None
    if not part.rows and isinstance(job, mapping.entity):
        status = mapping.told(instance_dict(job).get(mapping.attributes["status"]))
    return EventJob(
        identity,
        status,
        token.status,
        token.owner,
        tuple(token.dates),
        unmarked=token.hold is not None,
        before=token.status,
    )
