"""Run the checks on a queue, and make a report of what they find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from ..dialects import is_transient
from ..dialects.examination import Answer, Severity
from ..errors import ArgumentError, JobQueueError, LockTimeout
from ..model.queue_name import plain_queue
from ..queue import JobQueue
from ..sessions.writer import AnySession, session_of
from .case import Case
from .check_list import CHECKS, CLAIMING, NEEDED, OF_INDEX, OF_LOCKS, OF_PLAN, Check
from .report import Cost, Finding, Report

#: A snapshot that is kept for so long leaves too many dead rows in a queue's table.
OLD_SNAPSHOT = timedelta(minutes=1)


class OfQueue(Protocol):
    """A step of a workflow, which has a queue of its own."""

    @property
    def queue(self) -> JobQueue[Any]: ...


RETRY = "examine the queue again when no other transaction holds its rows"
GRANT = "grant this user what the message asks for, or examine the queue as another user"


def examine(
    target: Engine | AnySession,
    queue: JobQueue[Any] | OfQueue | type[Any],
    *,
    limit: int = 100,
    run: bool = True,
    old_snapshot: timedelta = OLD_SNAPSHOT,
) -> Report:
    """Examine a queue in its database.

    Args:
        target: an Engine; or a session in no transaction, whose hooks and connection the
            claim then uses.
        queue: a JobQueue, even of a class without JobMixin; a step of a workflow; or a
            mapped class with JobMixin.
        limit: the size of the batches that workers claim.
        run: also claim one batch and roll it back, to count rows read and locked.
        old_snapshot: another transaction's snapshot of this age is a finding.

    Raises:
        ArgumentError: not a queue, or a session that is in a transaction.
        UnsupportedDatabase: its database class has no examination.
    """
    checks = {name: check for name, check in CHECKS.items() if run or name not in CLAIMING}
    return _run_checks(target, queue, checks, limit=limit, old_snapshot=old_snapshot)


def examine_index(
    target: Engine | AnySession,
    queue: JobQueue[Any] | OfQueue | type[Any],
    *,
    limit: int = 100,
) -> Report:
    """Examine only the index and the plan of the claim; this locks nothing.

    Raises:
        ArgumentError: not a queue, or a session that is in a transaction.
        UnsupportedDatabase: its database class has no examination.
    """
    checks = {name: CHECKS[name] for name in OF_INDEX}
    return _run_checks(target, queue, checks, limit=limit, old_snapshot=OLD_SNAPSHOT)


def examine_plan(
    target: Engine | AnySession,
    queue: JobQueue[Any] | OfQueue | type[Any],
    *,
    limit: int = 100,
) -> Report:
    """Examine what may change while workers run; this locks nothing.

    These are the claim's index, its plan, the planner's statistics, and the oldest snapshot of
    other transactions. A worker does it once an hour.

    Raises:
        ArgumentError: not a queue, or a session that is in a transaction.
        UnsupportedDatabase: its database class has no examination.
    """
    checks = {name: CHECKS[name] for name in OF_PLAN}
    return _run_checks(target, queue, checks, limit=limit, old_snapshot=OLD_SNAPSHOT)


def examine_locks(
    target: Engine | AnySession, queue: JobQueue[Any] | OfQueue | type[Any]
) -> Report:
    """Prove by two connections that what one has locked is kept from the other.

    The first locks a row of the queue's table as a claim does, the second tries to get it, and
    both roll back. On SQLite the lock is that of a writer; of an advisory queue it is the
    advisory lock. A server that is refused as a look-alike is examined once
    :func:`sa_jobqueue.assume_locks` was called for an engine of this examination's own.

    Returns:
        A report whose errors say that locks do not hold.

    Raises:
        ArgumentError: not a queue, or a session that is in a transaction.
        UnsupportedDatabase: its database class has no examination, or it is a look-alike.
    """
    return _run_checks(target, queue, OF_LOCKS, limit=1, old_snapshot=OLD_SNAPSHOT)


def _run_checks(
    target: Any,
    queue: JobQueue[Any] | OfQueue | type[Any],
    checks: Mapping[str, Check],
    *,
    limit: int,
    old_snapshot: timedelta,
) -> Report:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ArgumentError(f"limit is the size of a batch, at least 1: {limit!r}")
    plain = plain_queue(queue)
    examined = plain if isinstance(plain, JobQueue) else JobQueue(plain)
    with _session_of(target) as session:
        case = Case(session, examined, limit, old_snapshot)
        case.examination  # noqa: B018 - raises where there is none
        return _report(case, _findings(case, checks))


@contextmanager
def _session_of(target: Any) -> Iterator[Session]:
    """Give a session in no transaction, and leave it in none."""
    if isinstance(target, Engine):
        with Session(target) as session:
            yield session
        return
    if not isinstance(target, Session | scoped_session):
        raise ArgumentError(
            f"the doctor needs an Engine or a Session, not {type(target).__name__}; beside an "
            "AsyncEngine: await async_session.run_sync(doctor.examine, queue)"
        )
    session = session_of(target)
    if session.in_transaction():
        raise ArgumentError(
            "the doctor rolls back what it does, and this session is in a transaction: commit it "
            "or roll it back first, or give the doctor an Engine"
        )
    try:
        yield session
    finally:
        session.rollback()


def _findings(case: Case, checks: Mapping[str, Check]) -> Iterator[Finding | Cost]:
    for name, check in checks.items():
        found = list(_run_check(case, name, check))
        yield from found
        if name in NEEDED and any(_is_error(finding) for finding in found):
            return


def _is_error(finding: Finding | Cost) -> bool:
    return isinstance(finding, Finding) and finding.severity is Severity.ERROR


def _run_check(case: Case, name: str, check: Check) -> Iterator[Finding | Cost]:
    """Run a check in a transaction of its own; that it cannot find out is a finding too."""
    try:
        for answer in check(case):
            yield answer if isinstance(answer, Cost) else _finding(name, answer)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        fix = RETRY if is_transient(error) else GRANT
        yield _finding(name, Answer.unchecked(f"the database says: {_error_text(error)}", fix))
    except LockTimeout as error:
        yield _finding(name, Answer.unchecked(str(error), RETRY))
    except JobQueueError as error:
        yield _finding(name, Answer.error(str(error), "do as the message says"))
    finally:
        case.session.rollback()


def _error_text(error: DBAPIError) -> str:
    text = error.orig.args[-1] if error.orig is not None and error.orig.args else error
    return " ".join(str(text).split())


def _finding(name: str, answer: Answer) -> Finding:
    return Finding(name, answer.severity, answer.message, answer.fix, answer.is_unchecked)


def _report(case: Case, found: Iterable[Finding | Cost]) -> Report:
    found = list(found)
    findings = [finding for finding in found if isinstance(finding, Finding)]
    costs = [cost for cost in found if isinstance(cost, Cost)]
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    warnings = [finding for finding in findings if finding.severity is Severity.WARNING]
    return Report(
        queue=repr(case.queue),
        database=str(case.database),
        findings=(*errors, *warnings),
        facts=tuple(finding for finding in findings if finding.severity is Severity.OK),
        cost=costs[0] if costs else None,
    )
