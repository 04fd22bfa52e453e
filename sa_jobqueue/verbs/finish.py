"""The verbs for our own claims: complete, fail, cancel_claimed, release, renew.

Every write names the primary key, the status, the owner and the owner_date of the claim
in its WHERE clause: that is the fence. A row that no longer matches belongs to somebody
else. Nothing is written to it, and after the rest of the batch was written,
:class:`ClaimLost` is raised::

    try:
        complete(session, emails)
    except ClaimLost as lost:
        log.warning("%d emails were sent twice", len(lost.lost))
    session.commit()

For effects that happen exactly once, finish first, write the effects of the jobs that were
kept in the same transaction, and commit then.

A batch takes one statement where RETURNING tells which rows were ours; elsewhere a fenced
locking read may come before it. Rows are written in the order of their primary keys, so
that two finishes cannot deadlock.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import select

from ..dialects.clock import as_utc
from ..errors import ArgumentError
from ..fence.claim import FencedJobs, by_mapping, jobs_by_token
from ..fence.token import Change, LetGo, distinct
from ..fence.write import write
from ..model.columns import error_length, error_text, first_line
from ..model.mapping import QueueMapping
from ..model.status import DONE, UNCLAIMED
from ..model.transitions import (
    ERROR,
    FINISHED,
    NOW,
    SHIFT,
    claimed_cancelled,
    completed,
    failed,
    released,
    renewed,
)
from ..sessions.writer import AnyConnection, writing
from .backoff import Backoff, by_delay, check_delay
from .own_values import OwnValues, with_own_values

failure_log = logging.getLogger("sa_jobqueue.failure")


def complete(
    session: AnyConnection,
    jobs: Any,
    *,
    delete: bool | None = None,
    then: str = DONE,
    values: OwnValues | None = None,
) -> None:
    """Finish jobs: done, or their rows deleted.

    To a class without JobMixin nothing is written: the caller has marked the rows, and
    the COMMIT of the mark frees them. With RoundMixin alone the rows leave the round that
    they were claimed in. A row that a newer round waits for does not become done: it
    joins that round.

    Args:
        session: the caller's, for rows also a Connection; nothing is committed.
        jobs: a claimed entity, a Claim, fences, or an iterable of those.
        delete: True deletes the rows, False keeps them as done; None does what
            ``__queue_args__["keep"]`` says, by default it keeps them. Deleting
            bypasses ORM cascades, so foreign keys need ON DELETE.
        then: the status of a finished job.
        values: own columns that are written in the same statement, as in
            ``{Email.processed: True}``; or a function that returns them for each job. Not those
            that the verb writes itself, the primary key, or columns of a joined table.

    Raises:
        ArgumentError: `values` that cannot be written, or rows that are deleted; nothing was
            written.
        ClaimLost: for the jobs that are not ours any more, after the others
            were written.
        NotClaimed: an entity has no fence; nothing was written.
    """
    changes = completions(jobs_by_token(jobs), delete=delete, then=then)
    write(session, with_own_values(changes, values))


def completions(
    parts: list[FencedJobs], *, delete: bool | None, then: str
) -> list[tuple[Change, list[FencedJobs]]]:
    """Return what complete() writes to which jobs: first those that are kept."""
    kept: list[FencedJobs] = []
    deleted: list[FencedJobs] = []
    for part in parts:
        keep = part.mapping.args.keep if delete is None else not delete
        if not keep:
            _check_deletable(part.mapping)
        (kept if keep else deleted).append(part)
    changes = [(_completion(then), kept)] if kept else []
    return [*changes, (_DELETION, deleted)] if deleted else changes


def fail(
    session: AnyConnection,
    jobs: Any,
    *,
    error: str | BaseException | None = None,
    retry_in: timedelta | None = None,
    backoff: Backoff | None = None,
    ready: str = UNCLAIMED,
    values: OwnValues | None = None,
) -> None:
    """Report that jobs failed.

    With RetryMixin they go back to unclaimed while attempts remain, else to
    failed; without it, to failed.

    Args:
        session: as for :func:`complete`.
        jobs: as for :func:`complete`.
        error: text or an exception, kept in ``last_error``.
        retry_in: the delay of the next attempt; nothing, ``timedelta(0)``, is at once.
        backoff: without `retry_in`, returns the delay from the number of attempts of
            each job; by default ExponentialBackoff(). Needs RetryMixin.
        ready: the status of a job that has attempts left.
        values: as for :func:`complete`, with its errors.

    Raises:
        ArgumentError: `retry_in` or `backoff` without the mixin, `retry_in` not from zero to
            ten years, or a backoff that does not return a delay; nothing was written.
        ClaimLost, NotClaimed: as for :func:`complete`.
    """
    parts = jobs_by_token(jobs)
    _check_queues("fail", parts)
    if retry_in is not None:
        _check_schedule(parts)
        check_delay("retry_in", retry_in)
    delays: dict[timedelta | None, list[FencedJobs]] = {retry_in: parts}
    if retry_in is None:
        delays = by_delay(session, parts, backoff)
    text = _text_for(parts, error)
    changes = [(_failure(text, delay, ready), alike) for delay, alike in delays.items()]
    write(session, with_own_values(changes, values))
    if parts:
        # A worker has a record of its own for each failure, at a level that is seen.
        count = sum(len(part.jobs) for part in parts)
        failure_log.debug("failed jobs: %d: %s", count, first_line(error))


def cancel_claimed(
    session: AnyConnection,
    jobs: Any,
    *,
    reason: str | None = None,
    values: OwnValues | None = None,
) -> None:
    """Cancel jobs that we have claimed ourselves; the reason goes to ``last_error``.

    Args:
        values: as for :func:`complete`.

    Raises:
        ArgumentError, ClaimLost, NotClaimed: as for :func:`complete`.
    """
    parts = jobs_by_token(jobs)
    _check_queues("cancel_claimed", parts)
    change = Change("cancel_claimed", claimed_cancelled, {ERROR: _text_for(parts, reason)})
    write(session, with_own_values([(change, parts)], values))


def release(
    session: AnyConnection,
    jobs: Any,
    *,
    ready: str = UNCLAIMED,
    values: OwnValues | None = None,
) -> None:
    """Give jobs back unclaimed; the attempt does not count.

    Jobs claimed by advisory locks are free at once, not only at the COMMIT.

    Args:
        values: as for :func:`complete`.

    Raises:
        ArgumentError, ClaimLost, NotClaimed: as for :func:`complete`.
    """
    change = Change("release", released(ready), let_go=LetGo.NOW, frees=True)
    write(session, with_own_values([(change, jobs_by_token(jobs))], values))


def renew(session: AnyConnection, jobs: Any) -> None:
    """Start the lease of jobs again (a heartbeat).

    A heartbeat thread renews by fences, in a session of its own, and leaves the handler's
    entities alone. A claim that wrote nothing needs no renewal.

    Raises:
        ClaimLost, NotClaimed: as for :func:`complete`.
    """
    changes = []
    for mapping, parts in by_mapping(jobs_by_token(jobs)):
        with writing(session, mapping, rows=True, reads=True) as writer:
            now = as_utc(writer.core(select(writer.database.claim_date())).scalar_one())
        # The fence gets the new date before it is written, so that a finish which waits
        # for the row's lock accepts it.
        for part in parts:
            date = distinct(part.token.owner, now)
            part.token.dates.append(date)
            change = Change("renew", renewed, {NOW: date}, let_go=LetGo.NEVER)
            changes.append((change, [part]))
    write(session, changes)


@lru_cache(typed=True)  # a JobStatus is not the plain string that it equals
def _completion(then: str) -> Change:
    # A status of the user's own may be what another queue claims from.
    return Change("complete", completed(then), frees=then not in FINISHED)


_DELETION = Change("complete", None)


def _failure(text: str | None, delay: timedelta | None, ready: str) -> Change:
    shift = None if delay is None else delay // timedelta(microseconds=1)
    values = failed(ready, delayed=delay is not None)
    return Change("fail", values, {ERROR: text, SHIFT: shift}, frees=True)


def _text_for(parts: list[FencedJobs], error: str | BaseException | None) -> str | None:
    return error_text(error, error_length(*(mapping for mapping, _ in by_mapping(parts))))


def _check_queues(verb: str, parts: list[FencedJobs]) -> None:
    for mapping, _ in by_mapping(parts):
        if not mapping.is_queue:
            raise ArgumentError(
                f"{verb}() needs JobMixin, and {mapping} has none. Mark the row yourself and "
                "complete() it, or release() it"
            )


def _check_deletable(mapping: QueueMapping) -> None:
    if not mapping.is_queue:
        raise ArgumentError(
            f"complete() writes nothing to {mapping}, which has no JobMixin: delete the row with "
            "session.delete(), and complete it without delete="
        )
    if mapping.tables > 1:
        raise mapping.spread_over_tables("complete")


def _check_schedule(parts: list[FencedJobs]) -> None:
    for mapping, _ in by_mapping(parts):
        if not mapping.has("run_at"):
            raise ArgumentError(
                f"retry_in= needs the column run_at, and {mapping} has none: add RetryMixin"
            )
