"""Run the checks on a queue, and make a report of what they find.

A check is a function that gets a Subject and yields what it has found: a Finding that is a fact,
a warning or an error. Each runs in a transaction of its own, which is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from ..databases import is_transient
from ..errors import ArgumentError, JobQueueError, UnsupportedDatabase
from ..model.keys import plain_queue
from ..queue import JobQueue
from ..sessions.writer import AnySession, session_of
from . import checks as of_server
from . import index_checks as of_index
from .examination import Finding, Report, Severity, Subject

#: A snapshot that is kept for so long leaves too many dead rows in a queue's table.
OLD_SNAPSHOT = timedelta(minutes=1)

RETRY = "examine the queue again when no other transaction holds its rows"
GRANT = "grant this user what the message asks for, or examine the queue as another user"
LOOK = "look at EXPLAIN of the statements that `sa-jobqueue sql` prints"


class OfQueue(Protocol):
    """A step of a workflow, which has a queue of its own."""

    @property
    def queue(self) -> JobQueue[Any]: ...


def examine(
    target: Engine | AnySession,
    queue: JobQueue[Any] | OfQueue | type[Any],
    *,
    checks: Collection[str] | None = None,
    old_snapshot: timedelta = OLD_SNAPSHOT,
) -> Report:
    """Examine a queue in its database.

    Args:
        target: an Engine; or a session in no transaction, whose hooks and connection a claim
            would use.
        queue: a JobQueue, even of a class without JobMixin; a step of a workflow; or a
            mapped class with JobMixin.
        checks: the names of the checks to make, such as ``["index"]``; None: all that lock
            nothing. ``"locks"`` locks a row by one connection, and tries to get it by a second.
        old_snapshot: another transaction's snapshot of this age is a finding.

    Raises:
        ArgumentError: not a queue, an unknown check, or a session that is in a transaction.
        UnsupportedDatabase: its database class has no examination, or it is a look-alike.
    """
    wanted = set(CHECKS) - set(LOCKING) if checks is None else {*NEEDED, *checks}
    if isinstance(checks, str) or not wanted <= set(CHECKS):
        raise ArgumentError(f"checks= takes some of {', '.join(CHECKS)}, and not {checks!r}")
    plain = plain_queue(queue)
    examined = plain if isinstance(plain, JobQueue) else JobQueue(plain)
    with _session_of(target) as session:
        subject = Subject(session, examined, old_snapshot)
        subject.examination  # noqa: B018 - raises where there is none
        found = list(_findings(subject, wanted))
        findings = (*_of(found, Severity.ERROR), *_of(found, Severity.WARNING))
        facts = _of(found, Severity.OK)
        return Report(repr(examined), str(subject.database), findings, facts)


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


def _findings(subject: Subject, wanted: Collection[str]) -> Iterator[Finding]:
    for name in (name for name in CHECKS if name in wanted):
        found = [replace(each, check=name) for each in _run_check(subject, name)]
        yield from found
        if name in NEEDED and _of(found, Severity.ERROR):
            return


def _run_check(subject: Subject, name: str) -> Iterator[Finding]:
    """Run a check in a transaction of its own; that it cannot find out is a finding too."""
    try:
        yield from CHECKS[name](subject)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        fix = RETRY if is_transient(error) else GRANT
        yield Finding.unchecked(f"the database says: {_error_text(error)}", fix)
    except UnsupportedDatabase as error:
        yield Finding.unchecked(str(error), LOOK)
    except JobQueueError as error:
        yield Finding.error(str(error), "do as the message says")
    finally:
        subject.session.rollback()


def _error_text(error: DBAPIError) -> str:
    text = error.orig.args[-1] if error.orig is not None and error.orig.args else error
    return " ".join(str(text).split())


def _of(found: Collection[Finding], severity: Severity) -> tuple[Finding, ...]:
    return tuple(each for each in found if each.severity is severity)


Check: TypeAlias = Callable[[Subject], Iterable[Finding]]

#: The checks by the name that their findings bear, in the order in which they run.
CHECKS: Mapping[str, Check] = {
    "table": of_server.check_table,
    "strategy": of_server.check_strategy,
    "columns": of_server.check_columns,
    "statuses": of_server.check_statuses,
    "index": of_index.check_index,
    "reap": of_index.check_reap,
    "failed": of_index.check_failed,
    "statistics": lambda our: our.examination.statistics(our.connection, our.mapping.table),
    "dead_rows": lambda our: our.examination.dead_rows(our.connection, our.mapping.table),
    "snapshot": of_server.check_snapshot,
    "isolation": of_server.check_isolation,
    "pooler": of_server.check_pooler,
    "locks": of_server.check_locks,
}

#: These run in each examination. An error of one ends it: the others need what it looks for.
NEEDED = ("table", "strategy")

#: What locks something, and runs only where it is asked for by name.
LOCKING = ("locks",)
