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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import ClauseElement, Column, select
from sqlalchemy.orm import InstrumentedAttribute

from ..databases.clock import as_utc
from ..errors import ArgumentError
from ..fence.claim import FencedJobs, by_mapping, jobs_by_token
from ..fence.statements import key_parameter, own_parameter
from ..fence.token import Change, LetGo, distinct
from ..fence.write import write
from ..model.columns import error_length, error_text, first_line
from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, DONE, UNCLAIMED
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
    changes: Changes = completions(jobs_by_token(jobs), delete=delete, then=then)
    write(session, changes if values is None else with_own_values(changes, values))


def completions(
    parts: list[FencedJobs], *, delete: bool | None, then: str
) -> list[tuple[Change, list[FencedJobs]]]:
    """Return what complete() writes to which jobs."""
    changes = []
    for mapping, of_class in by_mapping(parts):
        if mapping.args.keep if delete is None else not delete:
            # A status of the user's own may be what another queue claims from.
            frees, word = then not in FINISHED, word_of(mapping, then)
            changes.append((Change("complete", completed, word, frees=frees), of_class))
        else:
            _check_deletable(mapping)
            changes.append((Change("complete", None), of_class))
    return changes


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
    if retry_in is not None:
        check_delay("retry_in", retry_in)
    changes: list[tuple[Change, list[FencedJobs]]] = []
    for mapping, of_class in by_mapping(parts):
        _check_queue("fail", mapping)
        if retry_in is None:
            delays = by_delay(session, mapping, of_class, backoff)
        elif mapping.has("run_at"):
            delays = {retry_in: of_class}
        else:
            raise ArgumentError(
                f"retry_in= needs the column run_at, and {mapping} has none: add RetryMixin"
            )
        text, word = error_text(error, error_length(mapping)), word_of(mapping, ready)
        for delay, alike in delays.items():
            given = {ERROR: text, SHIFT: delay // timedelta(microseconds=1)}
            changes.append((Change("fail", failed, word, given, frees=True), alike))
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
    changes = []
    for mapping, parts in by_mapping(jobs_by_token(jobs)):
        _check_queue("cancel_claimed", mapping)
        given = {ERROR: error_text(reason, error_length(mapping))}
        word = mapping.word(CANCELLED)
        changes.append((Change("cancel_claimed", claimed_cancelled, word, given), parts))
    write(session, with_own_values(changes, values))


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
    changes = [
        (
            Change("release", released, word_of(mapping, ready), let_go=LetGo.NOW, frees=True),
            parts,
        )
        for mapping, parts in by_mapping(jobs_by_token(jobs))
    ]
    write(session, with_own_values(changes, values))


def renew(session: AnyConnection, jobs: Any) -> None:
    """Start the lease of jobs again (a heartbeat).

    A heartbeat thread renews by fences, in a session of its own, and leaves the handler's
    entities alone. A claim that wrote nothing needs no renewal.

    Raises:
        ClaimLost, NotClaimed: as for :func:`complete`.
    """
    changes = []
    for mapping, parts in by_mapping(jobs_by_token(jobs)):
        with writing(session, mapping, rows=True, reads=True, shard_by=parts[0].jobs) as writer:
            now = as_utc(writer.core(select(writer.database.claim_date())).scalar_one())
        # The fence gets the new date before it is written, so that a finish which waits
        # for the row's lock accepts it.
        for part in parts:
            date = distinct(part.token.owner, now)
            part.token.dates.append(date)
            change = Change("renew", renewed, parameters={NOW: date}, let_go=LetGo.NEVER)
            changes.append((change, [part]))
    write(session, changes)


def _check_queue(verb: str, mapping: QueueMapping) -> None:
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


# The application's own columns, which a finish writes in its own statement.
#
# ::
#
#     complete(session, emails, values={Email.processed: True})
#     complete(session, emails, values=lambda email: {Email.size: sizes[email.id]})
#
# Jobs with equal values are written together. All values are checked before anything is written.

#: Own columns with their values; or a function that returns them for a job, as it was given.
OwnValues: TypeAlias = Mapping[Any, Any] | Callable[[Any], Mapping[Any, Any]]

#: The most jobs to which one statement gives values of their own: 128 take 256 parameters more.
MOST_CASES = 128

Changes: TypeAlias = Sequence[tuple[Change, list[FencedJobs]]]

#: What every verb writes, or what its fence compares.
_ROLES = ("status", "owner", "owner_date", "attempts", "round")

#: What some verbs write besides.
_ROLES_OF = {"fail": ("last_error", "run_at"), "cancel_claimed": ("last_error",)}


def with_own_values(changes: Changes, values: OwnValues | None) -> Changes:
    """Return changes that also write own columns; jobs with equal values are written together.

    Raises:
        ArgumentError: own columns that this change cannot write.
    """
    if values is None:
        return changes
    if not callable(values):
        return [(_and_own(change, parts[0].mapping, values), parts) for change, parts in changes]
    divided = []
    for change, parts in changes:
        for part in parts:
            own = [values(job) for job in part.jobs]
            groups = list(map(_group, own))
            of_group = dict(zip(groups, own, strict=True))
            alone: dict[tuple[Column[Any], ...], list[tuple[Change, FencedJobs]]] = {}
            for group, alike in part.divided(groups).items():
                one = _and_own(change, part.mapping, of_group[group]), alike
                is_alone = one[0].own and len(alike.jobs) == 1 == len(part.mapping.keys)
                alone.setdefault(one[0].own if is_alone else (), []).append(one)
            divided += [(own_change, [alike]) for own_change, alike in alone.pop((), ())]
            for ones in alone.values():
                for begin in range(0, len(ones), MOST_CASES):
                    divided.append(_by_cases(ones[begin : begin + MOST_CASES]))
    return divided


def _by_cases(ones: list[tuple[Change, FencedJobs]]) -> tuple[Change, list[FencedJobs]]:
    """Make one change of those to single jobs that write the same columns."""
    (change, part), *others = ones
    if not others:
        return change, [part]
    cases = 1 << len(others).bit_length()  # so that few statements are built
    together = FencedJobs(part.mapping, part.token, [], [], part.rows)
    parameters, each = dict(change.parameters), {}
    for one, alike in ones:
        together.add(alike.indices[0], alike.jobs[0], alike.identities[0])
        names = map(own_parameter, range(len(change.own)))
        each[alike.identities[0]] = [one.parameters[name] for name in names]
    rows = [*each.items()]
    for case, (key, values) in enumerate(rows + rows[-1:] * (cases - len(rows))):
        parameters[key_parameter(case)] = key[0]
        parameters |= {own_parameter(n, case): value for n, value in enumerate(values)}
    return replace(change, parameters=parameters, each=each, cases=cases), [together]


def _group(own: Any) -> Any:
    """Return a key that equal values have in common; those that have no hash stay alone."""
    try:
        key = tuple((name, type(value), value) for name, value in own.items())
        hash(key)
    except (AttributeError, TypeError):
        return object()
    return key


def check_own_values(mapping: QueueMapping, verb: str, values: Any) -> dict[Column[Any], Any]:
    """Return own columns of a class with their values.

    Raises:
        ArgumentError: no mapping, or columns that the verb cannot write beside its own.
    """
    if not isinstance(values, Mapping):
        raise ArgumentError(
            f"values= takes attributes with their values, as in {{{mapping}.name: 'x'}}, or a "
            f"function that returns them for a job, not {values!r}"
        )
    own = {}
    for name, value in values.items():
        if isinstance(value, ClauseElement | InstrumentedAttribute):
            raise ArgumentError(
                f"{verb}(values=) takes plain values, and that of {name} is an SQL expression: "
                "give its value, for each job by a function"
            )
        own[_own_column(mapping, verb, name)] = value
    return own


def _and_own(change: Change, mapping: QueueMapping, values: Any) -> Change:
    own = check_own_values(mapping, change.verb, values)
    if not own:
        return change
    if not mapping.is_queue:
        raise ArgumentError(
            f"{change.verb}(values=) needs JobMixin, and {mapping} has none: set the attributes of "
            "the job itself, and flush it"
        )
    if change.values is None:
        raise ArgumentError(
            f"complete(values=) writes to rows that stay, and those of {mapping} are deleted: "
            "leave out values=, or keep the rows by delete=False"
        )
    given = {own_parameter(index): value for index, value in enumerate(own.values())}
    return replace(change, own=tuple(own), parameters={**change.parameters, **given})


def _own_column(mapping: QueueMapping, verb: str, name: Any) -> Column[Any]:
    is_own = isinstance(name, InstrumentedAttribute) and mapping.mapper.isa(name.parent.mapper)
    columns = getattr(name.property, "columns", []) if is_own else []
    column = columns[0] if columns else None
    if not isinstance(column, Column):
        raise ArgumentError(
            f"{verb}(values=) takes attributes of {mapping} that are columns, as in "
            f"{{{mapping}.name: 'x'}}, not {name!r}"
        )
    keys = set(map(id, mapping.keys))  # `in` would compare columns by an SQL expression for each
    if any(id(column) in keys or column.primary_key for column in columns):
        raise ArgumentError(f"{verb}(values=) cannot change {name}: it is of the primary key")
    if column.table is not mapping.table:
        raise ArgumentError(
            f"{verb}(values=) writes to the table {mapping.table}, and {name} is in "
            f"{column.table}: set it with the session"
        )
    roles = (*_ROLES, *_ROLES_OF.get(verb, ()))
    if any(mapping.has(role) and mapping.column(role) is column for role in roles):
        raise ArgumentError(f"{verb}() writes {name} itself: leave it out of values=")
    return column
