"""For the tests of applications: the schema that is migrated to serves the claim.

::

    def test_emails_are_claimed_by_their_index(engine):
        assert_claim_is_indexed(engine, Email)

Needs a database with the table, which may be empty, and no test framework.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from .doctor import examine_index
from .queue import JobQueue
from .sessions.writer import AnySession
from .workflow import Step


def assert_claim_is_indexed(
    target: Engine | AnySession, queue: JobQueue[Any] | Step[Any] | type[Any]
) -> None:
    """Assert that an index serves the claim of a queue without a sort.

    It fails where the index is missing, has other columns, or another predicate: Alembic
    does not see the last of these. The reap index is the doctor's affair.

    Args:
        target: an Engine, or a session in no transaction.
        queue: a JobQueue, one of a class without JobMixin too; a step of a workflow; or a
            mapped class with JobMixin.

    Raises:
        AssertionError: says what does not fit, and what mends it.
        ArgumentError: no queue, or a session that is in a transaction.
    """
    report = examine_index(target, queue)
    if report.findings:
        raise AssertionError(
            "\n".join([f"{report.queue} on {report.database}:", *map(str, report.findings)])
        )
