"""Changes to jobs that nobody has claimed: cancel, retry, reprioritize, prune.

Without a claim there is no fence. Each write names the statuses that it leaves, and passes
over jobs that have another status by now. The verbs return the jobs that they changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, bindparam, select

from ..databases.clock import utc_now
from ..errors import ArgumentError
from ..events.event import EVENT_OF_VERB, Event, EventJob
from ..events.notes import note, note_claimable
from ..fence.claim import each_job, jobs_with_keys
from ..fence.statements import lock_rows
from ..fence.token import Fence, Token
from ..model.keys import key_batches, key_is_in, key_values, locked_by_key
from ..model.mapping import QueueMapping, mapping_of, word_of
from ..model.status import CANCELLED, DONE, UNCLAIMED, status_is
from ..model.transitions import (
    PRIORITY,
    TRANSITIONS,
    UNFINISHED,
    UnclaimedValues,
    ended,
    expired,
    left_by,
    reprioritized,
    reset,
    retried,
    words_of,
)
from ..sessions.show import loaded, show_expired
from ..sessions.writer import AnySession, Writer, built_once, shard_of, writing
from .backoff import LONGEST_AGE, check_durations

CHANGE_KEYS = "sa_jobqueue_keys"

#: How many rows a call of prune() deletes by default.
PRUNE_LIMIT = 1_000


def cancel(session: AnySession, jobs: Any) -> list[Any]:
    """Cancel unclaimed jobs, due or not; return those that were cancelled.

    Args:
        session: the caller's; nothing is committed.
        jobs: an entity or an iterable of entities; claimed jobs are left alone.

    Raises:
        ArgumentError: an entity that is not in the database.
    """
    return change(session, jobs, "cancel", ended, to=CANCELLED)


def retry(session: AnySession, jobs: Any) -> list[Any]:
    """Make failed, done or cancelled jobs claimable again; return those that were changed.

    They are due now at the latest. Attempts are counted from 0 again; ``last_error`` stays.

    Raises:
        ArgumentError: an entity that is not in the database.
    """
    return change(session, jobs, "retry", retried)


def reprioritize(session: AnySession, jobs: Any, priority: int) -> list[Any]:
    """Give unclaimed jobs another priority; return those that were changed.

    Raises:
        ArgumentError: a class without PriorityMixin, or a priority that is not a
            small integer.
    """
    return reprioritize_jobs(session, jobs, priority)


def reprioritize_jobs(
    session: AnySession, jobs: Any, priority: int, leaving: Sequence[str] | None = None
) -> list[Any]:
    """Give jobs that have one of the statuses another priority; see :func:`reprioritize`."""
    if not isinstance(priority, int) or not -(2**15) <= priority < 2**15:
        raise ArgumentError(f"a priority is an integer from -32768 to 32767: {priority!r}")
    jobs = list(each_job(jobs))
    for _, mapping, _ in jobs_with_keys(jobs):
        if not mapping.has("priority"):
            raise ArgumentError(f"{mapping} has no priority: add PriorityMixin")
    given = {PRIORITY: priority}
    return change(session, jobs, "reprioritize", reprioritized, leaving=leaving, given=given)


def cancel_expired(session: AnySession, mapping: QueueMapping, ready: str, limit: int) -> int:
    """Cancel jobs that nobody has claimed in time, at most `limit`; return how many."""
    keys = mapping.key_attributes
    late: Any = select(*keys).where(
        mapping.has_status(ready), mapping.attribute("expires_at") <= utc_now()
    )
    with writing(session, mapping) as writer, writer.atomically():
        writer.lock_writes(mapping.table)
        named = late.where(key_is_in(mapping, CHANGE_KEYS, writer.database))
        # A job that somebody has locked is just being claimed, or a held claim has it.
        locking = locked_by_key(named, mapping, writer.database, skip_locked=True)
        jobs: list[Fence] = []
        for batch in key_batches(list(map(tuple, writer.rows(late.limit(limit))))):
            free = writer.rows(locking, {CHANGE_KEYS: key_values(batch)})
            jobs += [Fence(mapping.entity, tuple(key), Token(ready, None)) for key in free]
        return len(change(session, jobs, "cancel", expired, leaving=[ready], to=CANCELLED))


def prune(
    session: AnySession,
    entity: type[Any],
    *,
    older_than: timedelta,
    statuses: Sequence[str] | None = None,
    limit: int = PRUNE_LIMIT,
) -> int:
    """Delete finished rows, at most `limit`; return how many.

    Args:
        older_than: the age of the rows since they got their status, by owner_date.
        statuses: the finished statuses whose rows are deleted; None: done.
        limit: the most rows for this call.

    Raises:
        ArgumentError: statuses of unfinished jobs, a limit below 1, or a class whose rows
            are spread over several tables.
    """
    mapping = mapping_of(entity)
    statuses = (DONE,) if statuses is None else statuses
    return prune_jobs(session, mapping, older_than, statuses, limit)


def prune_jobs(
    session: AnySession,
    mapping: QueueMapping,
    older_than: timedelta,
    statuses: Sequence[str],
    limit: int,
    where: Sequence[ColumnElement[bool]] = (),
    unfinished: Sequence[str] = (),
) -> int:
    """Delete finished rows that fulfil the criteria; see :func:`prune`.

    Args:
        unfinished: statuses to refuse, besides those that the class declares.
    """
    words = [word_of(mapping, status) for status in statuses]
    check_durations(zero=True, longest=LONGEST_AGE, older_than=older_than)
    if limit < 1:
        raise ArgumentError(f"limit is the number of rows to delete, at least 1: {limit!r}")
    if {*words_of(mapping, UNFINISHED), *mapping.waiting, *unfinished} & set(words):
        raise ArgumentError(f"only finished jobs are pruned, not {', '.join(words)}")
    if mapping.tables > 1:
        raise mapping.spread_over_tables("prune")
    age = bindparam("sa_jobqueue_age", -(older_than // timedelta(microseconds=1)), type_=BigInteger)
    pruned: list[Any] = []
    with writing(session, mapping) as writer:
        with writer.atomically():
            writer.lock_writes(mapping.table)
            for word in words:
                if len(pruned) < limit:
                    # By attributes of the class: no rows of its siblings in the table.
                    old: Any = select(*mapping.key_attributes).where(
                        mapping.has_status(word),
                        mapping.attribute("owner_date") < utc_now(age),
                        *where,
                    )
                    pruned += _delete(writer, mapping, word, old.limit(limit - len(pruned)))
        if mapping.listeners and pruned:
            note(writer, mapping, change_event(mapping, "prune", dict.fromkeys(pruned)))
    return len(pruned)


def _delete(writer: Writer, mapping: QueueMapping, word: str, old: Any) -> list[Any]:
    """Delete the rows that a read finds, if they have a status; return their keys."""
    database, status = writer.database, mapping.column("status")
    if database.skip_locked:
        old = old.with_for_update(skip_locked=True)
    keys = [tuple(key) for key in writer.rows(old)]
    gone = database.delete_by_key(mapping.table, mapping.keys).where(
        key_is_in(mapping, CHANGE_KEYS, database), status_is(status, word)
    )
    with mapping.counting(writer, keys):
        for batch in key_batches(keys):
            writer.core(gone, {CHANGE_KEYS: key_values(batch)})
    return keys


def change_event(
    mapping: QueueMapping,
    verb: str,
    before: Mapping[tuple[Any, ...], str | None],
    after: str | None = None,
) -> Event:
    """Make the event of a change to jobs that nobody has claimed: the statuses that they had."""
    jobs = tuple(EventJob(key, after, before=word) for key, word in before.items())
    return Event(EVENT_OF_VERB[verb], verb, mapping.entity, jobs, len(jobs))


def change(
    session: AnySession,
    jobs: Any,
    verb: str,
    values: UnclaimedValues,
    *,
    leaving: Sequence[str] | None = None,
    to: str = UNCLAIMED,
    given: Mapping[str, Any] | None = None,
    limited: bool = False,
) -> list[Any]:
    """Write to those of the jobs that have one of the statuses; return them.

    Args:
        verb: its name, for listeners.
        values: returns what the change writes, for a class.
        leaving: the statuses that the change leaves; None: as the class of each job says.
        to: the status that the change leads to, if it writes one.
        given: the values of further parameters of the statement.
        limited: the queue limits serial keys. A class may say so, too.
    """
    groups: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    for job, mapping, identity in jobs_with_keys(jobs):
        groups[mapping, shard_of([job])].append((job, identity))
    changed: list[Any] = []
    for (mapping, _), pairs in groups.items():
        left = left_by(verb) if verb in TRANSITIONS else (UNCLAIMED,)
        words = words_of(mapping, left) if leaving is None else tuple(leaving)
        if leaving is None and UNCLAIMED in left:
            words += mapping.waiting
        its_shard = writing(session, mapping, shard_by=pairs[0][:1])
        with its_shard as writer, writer.atomically():
            writer.lock_writes(mapping.table)
            keys = (identity for _, identity in pairs)
            locked = lock_rows(writer, mapping, ("status",), keys, words)
            found = {key: status for key, (status,) in locked.items()}
            after = word_of(mapping, to)
            statement = update_statement(mapping, writer, values, after, words)
            with mapping.counting(writer, found):
                for batch in key_batches(list(found)):
                    writer.core(statement, {CHANGE_KEYS: key_values(batch), **(given or {})})
            # Also the jobs that were left alone: they have another status than the caller thought.
            entities = [job for job, _ in pairs if not isinstance(job, Fence)]
            show_expired(writer.session, mapping, entities)
        if mapping.listeners and found:
            note(writer, mapping, change_event(mapping, verb, found))
        if found and verb != "cancel":
            mapping.head.changes += 1
        # A job that waits for its retry keeps its serial key.
        frees_keys = verb == "cancel" and (limited or mapping.args.per_key)
        if mapping.wakes and found and (verb == "retry" or frees_keys):
            note_claimable(writer, mapping)
        changed += [job for job, identity in pairs if identity in found]
    return changed


def move(
    writer: Writer,
    mapping: QueueMapping,
    identity: tuple[Any, ...],
    before: str,
    after: str,
    *,
    final: bool,
) -> bool:
    """Move a job that waits from one status to another; tell whether it had the first one.

    Args:
        final: the job ends; else it is as if it had never been tried.
    """
    moving = update_statement(mapping, writer, ended if final else reset, after, (before,))
    with mapping.counting(writer, [identity]):
        moved = writer.core(moving, {CHANGE_KEYS: key_values([identity])}).rowcount
    if not moved:
        return False
    if writer.of_session is not None:
        show_expired(writer.session, mapping, loaded(writer, mapping, [identity]))
    if mapping.listeners:
        note(writer, mapping, change_event(mapping, "signal", {identity: before}, after))
    if not final:
        mapping.head.changes += 1
        if mapping.wakes:
            note_claimable(writer, mapping)
    return True


@built_once
def update_statement(
    mapping: QueueMapping,
    writer: Writer,
    values: UnclaimedValues,
    after: str,
    words: tuple[str, ...],
) -> Any:
    """Build the UPDATE of the rows with the keys CHANGE_KEYS that have one of the statuses."""
    database = writer.database
    named = key_is_in(mapping, CHANGE_KEYS, database)
    return (
        database.update_by_key(mapping.table, mapping.keys)
        .where(named, status_is(mapping.column("status"), *words))
        .values(dict(values(mapping, after)))
    )
