"""The doctor: proves on the user's own table that the claim is served by its index.

::

    report = doctor.examine(engine, Email)
    for finding in report.findings:
        print(finding.severity, finding.message, finding.fix)

It explains the claim's own statement, runs one claim that it rolls back, and looks
at the server. So it locks the rows of one batch for a moment, and changes nothing;
with ``run=False`` it locks nothing. On the command line: ``sa-jobqueue doctor``.
``docs/doctor.md`` lists the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from ..dialects import is_transient
from ..dialects.examination import Answer, Severity
from ..errors import ArgumentError, JobQueueError, LockTimeout
from ..queue import JobQueue
from ..sessions.writer import AnySession, session_of
from ..workflow import Step
from .case import Case
from .claim_checks import check_cost, check_updates
from .index_checks import check_index, check_plan, check_reap
from .report import Cost, Finding, Report
from .server_checks import (
    check_garbage,
    check_isolation,
    check_owners,
    check_pooler,
    check_snapshot,
    check_strategy,
    check_table,
    check_version,
)

__all__ = ["OLD_SNAPSHOT", "Cost", "Finding", "Report", "Severity", "examine", "examine_index"]

#: A queue's dead rows grow too many while one snapshot is kept for so long.
OLD_SNAPSHOT = timedelta(minutes=1)

Check: TypeAlias = Callable[[Case], Iterator["Answer | Cost"]]

_SERVER: Mapping[str, Check] = {
    "version": check_version,
    "table": check_table,
    "strategy": check_strategy,
}
_INDEX: Mapping[str, Check] = {"index": check_index, "plan": check_plan}
_TABLE: Mapping[str, Check] = {
    "reap": check_reap,
    "updates": check_updates,
    "garbage": check_garbage,
}
_AROUND: Mapping[str, Check] = {
    "snapshot": check_snapshot,
    "isolation": check_isolation,
    "owners": check_owners,
    "pooler": check_pooler,
}

#: Without these two nothing else can be looked at.
_NEEDED = ("table", "strategy")


def examine(
    target: Engine | AnySession,
    queue: JobQueue[Any] | Step[Any] | type[Any],
    *,
    limit: int = 100,
    run: bool = True,
    old_snapshot: timedelta = OLD_SNAPSHOT,
) -> Report:
    """Examine a queue in its database.

    Args:
        target: an Engine; or a session in no transaction, whose hooks and
            connection are then those of the claim.
        queue: a JobQueue, one of a class without JobMixin too; a step of a workflow; or a
            mapped class with JobMixin.
        limit: the size of a batch, as workers claim it.
        run: also claim one batch and roll it back, to count rows read and locked.
        old_snapshot: from which age on a snapshot of others is a finding.

    Raises:
        ArgumentError: no queue, or a session that is in a transaction.
        UnsupportedDatabase: nobody knows how to examine it.
    """
    cost: Mapping[str, Check] = {"cost": check_cost} if run else {}
    checks = {**_SERVER, **_INDEX, **cost, **_TABLE, **_AROUND}
    return _examined(target, queue, checks, limit=limit, old_snapshot=old_snapshot)


def examine_index(
    target: Engine | AnySession,
    queue: JobQueue[Any] | Step[Any] | type[Any],
    *,
    limit: int = 100,
) -> Report:
    """Examine the claim's index and plan alone; nothing is locked.

    Raises:
        ArgumentError: no queue, or a session that is in a transaction.
        UnsupportedDatabase: nobody knows how to examine it.
    """
    needed = {name: _SERVER[name] for name in _NEEDED}
    return _examined(target, queue, {**needed, **_INDEX}, limit=limit, old_snapshot=OLD_SNAPSHOT)


def _examined(
    target: Any,
    queue: JobQueue[Any] | Step[Any] | type[Any],
    checks: Mapping[str, Check],
    *,
    limit: int,
    old_snapshot: timedelta,
) -> Report:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ArgumentError(f"limit is the size of a batch, at least 1: {limit!r}")
    queue = queue.queue if isinstance(queue, Step) else queue
    queue = queue if isinstance(queue, JobQueue) else JobQueue(queue)
    with _session_of(target) as session:
        case = Case(session, queue, limit, old_snapshot)
        case.examination  # noqa: B018 - raises where there is none
        found = list(_found(case, checks))
        return _report(case, found)


@contextmanager
def _session_of(target: Any) -> Iterator[Session]:
    """Give a session in no transaction, and leave it so."""
    if isinstance(target, Engine):
        with Session(target) as session:
            yield session
        return
    if not isinstance(target, Session | scoped_session):
        raise ArgumentError(
            f"the doctor examines by an Engine or a Session, not {type(target).__name__}; beside "
            "an AsyncEngine: await async_session.run_sync(doctor.examine, queue)"
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


def _found(case: Case, checks: Mapping[str, Check]) -> Iterator[Finding | Cost]:
    for name, check in checks.items():
        found = list(_asked(case, name, check))
        yield from found
        if name in _NEEDED and any(
            isinstance(one, Finding) and one.severity is Severity.ERROR for one in found
        ):
            return


def _asked(case: Case, name: str, check: Check) -> Iterator[Finding | Cost]:
    """Run one check in a transaction of its own; what it cannot find out is a finding too."""
    try:
        for answer in check(case):
            yield answer if isinstance(answer, Cost) else _finding(name, answer)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        fix = _LATER if is_transient(error) else _ASK_AGAIN
        yield _finding(name, Answer.unchecked(f"the database says: {_said(error)}", fix))
    except LockTimeout as error:
        yield _finding(name, Answer.unchecked(str(error), _LATER))
    except JobQueueError as error:
        yield _finding(name, Answer.error(str(error), "do as the message says"))
    finally:
        case.session.rollback()


_LATER = "examine the queue again when others do not hold its rows"
_ASK_AGAIN = "grant this user what the message asks for, or examine the queue as another user"


def _said(error: DBAPIError) -> str:
    said = error.orig.args[-1] if error.orig is not None and error.orig.args else error
    return " ".join(str(said).split())


def _finding(name: str, answer: Answer) -> Finding:
    return Finding(name, answer.severity, answer.message, answer.fix)


def _report(case: Case, found: Iterable[Finding | Cost]) -> Report:
    found = list(found)
    findings = [one for one in found if isinstance(one, Finding)]
    costs = [one for one in found if isinstance(one, Cost)]
    severe = [one for one in findings if one.severity is Severity.ERROR]
    slight = [one for one in findings if one.severity is Severity.WARNING]
    return Report(
        queue=repr(case.queue),
        database=str(case.database),
        findings=(*severe, *slight),
        facts=tuple(one for one in findings if one.severity is Severity.OK),
        cost=costs[0] if costs else None,
    )
