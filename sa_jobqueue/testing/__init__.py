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

from .claim_index import assert_claim_is_indexed
from .run_all import HandledJob, run_all

__all__ = ["HandledJob", "assert_claim_is_indexed", "run_all"]
