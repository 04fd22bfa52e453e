"""For the tests of applications.

::

    def test_emails_are_claimed_by_their_index(engine):
        assert_claim_is_indexed(engine, Email)

    def test_an_order_is_confirmed(session):
        place_order(session, "ann@example.com")
        run_all(session, outbox)
        assert mailbox == ["ann@example.com"]

:func:`assert_claim_is_indexed` needs a database with the table, which may be empty.
:func:`run_all` handles what is due, inside of the test's transaction; for an AsyncSession there is
:func:`sa_jobqueue.testing.asyncio.run_all`. Neither needs a test framework.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from ..doctor import examine
from ..queue import JobQueue
from ..sessions.writer import AnySession
from ..workflow import Step
from .run_all import HandledJob, run_all

__all__ = ["HandledJob", "assert_claim_is_indexed", "run_all"]


def assert_claim_is_indexed(
    target: Engine | AnySession, queue: JobQueue[Any] | Step[Any] | type[Any]
) -> None:
    """Assert that an index serves the claim of a queue without a sort.

    It fails if the index is missing, or has other columns or another predicate: Alembic does not
    compare predicates. The doctor examines the reap index.

    Args:
        target: an Engine, or a session without a transaction.
        queue: a JobQueue, also of a class without JobMixin; a step of a workflow; or a
            mapped class with JobMixin.

    Raises:
        AssertionError: names what does not fit, and how to fix it.
        ArgumentError: `queue` is no queue, or the session is in a transaction.
    """
    report = examine(target, queue, checks=["index"])
    if report.findings:
        raise AssertionError(
            "\n".join([f"{report.queue} on {report.database}:", *map(str, report.findings)])
        )
