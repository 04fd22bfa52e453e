"""What ends a claim, or keeps it: complete, fail, release, renew.

Every write names the primary key, the status, the owner and the owner_date of
the claim in its WHERE clause: that is the fence. A row that does not match any
more belongs to somebody else; nothing is written to it, and :class:`ClaimLost`
says so after the rest of the batch was written::

    try:
        complete(session, emails)
    except ClaimLost as lost:
        log.warning("%d emails were sent twice", len(lost.lost))
    session.commit()

Whoever wants effects exactly once finishes first, writes the effects of what
was kept in the same transaction, and commits then.

One statement per batch where RETURNING tells which rows were ours; else a
fenced locking read comes before it. Rows are written in the order of their
primary key, so that two finishes cannot deadlock.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import Column, ColumnElement, bindparam, case, null, or_, select

from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..fence.claim import FencedJobs, by_mapping, jobs_by_token
from ..fence.statements import NOW, OWNER, SHIFT, Time, Values, ValuesOf
from ..fence.token import LetGo
from ..fence.write import Change, write
from ..model.last_error import error_length, error_text, first_line
from ..model.mapping import QueueMapping, word_of
from ..model.plain_rows import word_literal
from ..model.status import CANCELLED, DONE, FAILED, UNCLAIMED
from ..sessions.writer import AnyConnection, writing
from .backoff import Backoff
from .waits import by_delay

failure_log = logging.getLogger("sa_jobqueue.failure")


def complete(
    session: AnyConnection, jobs: Any, *, delete: bool | None = None, then: str = DONE
) -> None:
    """Finish jobs: done, or their rows deleted.

    Of a class without JobMixin nothing is written: the caller has marked the
    rows, and the COMMIT of that frees them. With RoundMixin alone they leave the
    round that they were claimed in. A row that a newer round waits for is not done:
    it joins that round.

    Args:
        session: the caller's, for rows also a Connection; nothing is committed.
        jobs: a claimed entity, a Claim, fences, or an iterable of those.
        delete: True deletes the rows, False keeps them as done; None goes by
            ``__queue_args__["keep"]``, which keeps them by default. Deleting
            bypasses ORM cascades: foreign keys need ON DELETE.
        then: the status of a finished job.

    Raises:
        ClaimLost: for the jobs that are not ours any more, after the others
            were written.
        NotClaimed: an entity without a fence; nothing was written.
    """
    kept: list[FencedJobs] = []
    deleted: list[FencedJobs] = []
    for part in jobs_by_token(jobs):
        keep = part.mapping.args.keep if delete is None else not delete
        if not keep:
            _check_deletable(part.mapping)
        (kept if keep else deleted).append(part)
    write(session, [(_finished_as(then), kept), (_DELETED, deleted)])


def fail(
    session: AnyConnection,
    jobs: Any,
    *,
    error: str | BaseException | None = None,
    retry_in: timedelta | None = None,
    backoff: Backoff | None = None,
    ready: str = UNCLAIMED,
) -> None:
    """Report that jobs failed.

    With RetryMixin they go back to unclaimed while attempts remain, else to
    failed; without it, to failed.

    Args:
        session, jobs: as for :func:`complete`.
        error: text or an exception, kept in ``last_error``.
        retry_in: how long not to try again; needs ScheduleMixin.
        backoff: says how long, from the number of attempts of each job, where
            `retry_in` does not; needs RetryMixin and ScheduleMixin.
        ready: the status of a job that waits for its next attempt.

    Raises:
        ArgumentError: `retry_in` or `backoff` without the mixins, or a backoff
            that returns no wait; nothing was written.
        ClaimLost, NotClaimed: as for :func:`complete`.
    """
    parts = jobs_by_token(jobs)
    _check_queues("fail", parts)
    if retry_in is not None:
        _check_schedule(parts)
    waits: dict[timedelta | None, list[FencedJobs]] = {retry_in: parts}
    if retry_in is None and backoff is not None:
        waits = by_delay(session, parts, backoff)
    text = _text_for(parts, error)
    write(session, [(_failure(text, wait, ready), waiting) for wait, waiting in waits.items()])
    if parts:
        count = sum(len(part.jobs) for part in parts)
        failure_log.warning("failed jobs: %d: %s", count, first_line(error))


def cancel_claimed(session: AnyConnection, jobs: Any, *, reason: str | None = None) -> None:
    """Cancel jobs that we have claimed ourselves; the reason goes to ``last_error``.

    Raises:
        ClaimLost, NotClaimed: as for :func:`complete`.
    """
    parts = jobs_by_token(jobs)
    _check_queues("cancel_claimed", parts)
    change = Change(
        "cancel_claimed", _claimed_cancelled, {"finish_error": _text_for(parts, reason)}
    )
    write(session, [(change, parts)])


def release(session: AnyConnection, jobs: Any, *, ready: str = UNCLAIMED) -> None:
    """Give jobs back unclaimed, the attempt taken back.

    A claim by advisory locks is given back at once, not at the COMMIT.

    Raises:
        ClaimLost, NotClaimed: as for :func:`complete`.
    """
    change = Change("release", _released_as(ready), let_go=LetGo.NOW)
    write(session, [(change, jobs_by_token(jobs))])


def renew(session: AnyConnection, jobs: Any) -> None:
    """Start the lease of jobs again (a heartbeat).

    A heartbeat thread gives fences, in a session of its own, and leaves the
    handler's entities alone. A claim that wrote nothing needs no renewal.

    Raises:
        ClaimLost, NotClaimed: as for :func:`complete`.
    """
    changes = []
    for mapping, parts in by_mapping(jobs_by_token(jobs)):
        with writing(session, mapping, rows=True) as writer:
            now = as_utc(writer.core(select(utc_now())).scalar_one())
        # The new date is known to the fence before it is written: a finish that
        # waits for this row's lock then already accepts it.
        for part in parts:
            part.token.dates.append(now)
        change = Change("renew", _renewed, {NOW: now}, let_go=LetGo.NEVER)
        changes.append((change, parts))
    write(session, changes)


# What each verb writes: functions of the mapping, of whether the claim is an
# unmarked one, and of expressions for the time and for the time of the next attempt.


@lru_cache(typed=True)  # a JobStatus is not the plain string that it equals
def _finished_as(then: str) -> Change:
    def values(mapping: QueueMapping, unmarked: bool, now: Time, later: Time) -> Values:
        return {
            **_status(mapping, word_of(mapping, then)),
            **_kept_owner(mapping, unmarked, now),
            **_counted(mapping, unmarked),
        }

    return Change("complete", values)


_DELETED = Change("complete", None)


def _failure(text: str | None, wait: timedelta | None, ready: str) -> Change:
    shift = None if wait is None else wait // timedelta(microseconds=1)
    parameters = {"finish_error": text, SHIFT: shift}
    return Change("fail", _failed_as(ready, later=wait is not None), parameters)


@lru_cache(typed=True)
def _failed_as(ready: str, *, later: bool) -> ValuesOf:
    def values(mapping: QueueMapping, unmarked: bool, now: Time, then: Time) -> Values:
        failed = mapping.word(FAILED)
        if not mapping.has("attempts"):
            return {**_status(mapping, failed), **_kept_owner(mapping, unmarked, now)}
        again = _attempts_remain(mapping, unmarked)
        status, error = mapping.column("status"), mapping.column("last_error")
        owner, date = mapping.column("owner"), mapping.column("owner_date")
        waiting = word_literal(word_of(mapping, ready))
        written: dict[Column[Any], Any] = {
            status: case((again, waiting), else_=word_literal(failed)),
            owner: case((again, null()), else_=_owner(mapping, unmarked)),
            date: case((again, null()), else_=now),
            error: bindparam("finish_error", type_=error.type),
        }
        if later:
            run_at = mapping.column("run_at")
            written[run_at] = case((again, then), else_=run_at)
        return {**written, **_counted(mapping, unmarked)}

    return values


def _attempts_remain(mapping: QueueMapping, unmarked: bool) -> ColumnElement[bool]:
    attempts, most = mapping.column("attempts"), mapping.column("max_attempts")
    # The claim has counted this attempt; an unmarked claim has not.
    used = attempts + 1 if unmarked else attempts
    return or_(most.is_(None), used < most)


@lru_cache(typed=True)
def _released_as(ready: str) -> ValuesOf:
    def values(mapping: QueueMapping, unmarked: bool, now: Time, later: Time) -> Values:
        if unmarked:  # nothing was marked; the end of the transaction frees the rows
            return {}
        written: dict[Column[Any], Any] = {
            **_status(mapping, word_of(mapping, ready)),
            mapping.column("owner"): null(),
            mapping.column("owner_date"): null(),
        }
        if mapping.has("attempts"):
            attempts = mapping.column("attempts")
            written[attempts] = attempts - 1
        return written

    return values


def _claimed_cancelled(mapping: QueueMapping, unmarked: bool, now: Time, later: Time) -> Values:
    written = {**_status(mapping, mapping.word(CANCELLED)), **_kept_owner(mapping, unmarked, now)}
    if mapping.has("last_error"):
        error = mapping.column("last_error")
        written[error] = bindparam("finish_error", type_=error.type)
    return {**written, **_counted(mapping, unmarked)}


def _renewed(mapping: QueueMapping, unmarked: bool, now: Time, later: Time) -> Values:
    if unmarked:  # no lease, so none to start again
        return {}
    date = mapping.column("owner_date")
    return {date: bindparam(NOW, type_=date.type)}


def _status(mapping: QueueMapping, word: str) -> dict[Column[Any], Any]:
    return {mapping.column("status"): word_literal(word)}


def _kept_owner(mapping: QueueMapping, unmarked: bool, now: Time) -> Values:
    """Keep the owner and note the time of the change."""
    written = {mapping.column("owner"): _owner(mapping, unmarked)} if unmarked else {}
    return {**written, mapping.column("owner_date"): now}


def _owner(mapping: QueueMapping, unmarked: bool) -> ColumnElement[Any]:
    owner = mapping.column("owner")
    return bindparam(OWNER, type_=owner.type) if unmarked else owner


def _counted(mapping: QueueMapping, unmarked: bool) -> dict[Column[Any], Any]:
    """Count the attempt of an unmarked claim, which wrote nothing itself."""
    if not unmarked or not mapping.has("attempts"):
        return {}
    attempts = mapping.column("attempts")
    return {attempts: attempts + 1}


def _text_for(parts: list[FencedJobs], error: str | BaseException | None) -> str | None:
    return error_text(error, error_length(*(mapping for mapping, _ in by_mapping(parts))))


def _check_queues(verb: str, parts: list[FencedJobs]) -> None:
    for mapping, _ in by_mapping(parts):
        if not mapping.is_queue:
            raise ArgumentError(
                f"{verb}() has nowhere to write to: {mapping} has no JobMixin. Mark the row "
                "yourself and complete() it, or release() it"
            )


def _check_deletable(mapping: QueueMapping) -> None:
    if not mapping.is_queue:
        raise ArgumentError(
            f"complete() writes nothing to {mapping}, which has no JobMixin: delete the row with "
            "session.delete(), and complete it without delete="
        )
    if mapping.tables > 1:
        raise ArgumentError(
            f"the rows of {mapping} are spread over {mapping.tables} tables, and deleting a job "
            "takes one statement: keep them as done, and delete them with session.delete()"
        )


def _check_schedule(parts: list[FencedJobs]) -> None:
    for mapping, _ in by_mapping(parts):
        if not mapping.has("run_at"):
            raise ArgumentError(
                f"retry_in= needs a time to wait for, and {mapping} has none: add ScheduleMixin"
            )
