"""The outermost commit of a finish frees the rows of an advisory claim."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import advisory_session, complete, release
from tests.contract.subscriptions import (
    add_subscriptions,
    claim_subscriptions,
    kept,
    mark,
)

pytestmark = pytest.mark.only_on("postgresql")


def test_nobody_has_a_row_before_the_finish_is_visible(engine: Engine, mailing: Session) -> None:
    """The rows are freed between the COMMIT and its answer at the earliest."""
    claimed = claim_subscriptions(mailing, limit=5)
    mark(claimed)
    complete(mailing, claimed)

    with advisory_session(engine) as other:
        assert not claim_subscriptions(other, limit=5)
        mailing.commit()
        assert not claim_subscriptions(other, limit=5)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(
    "mode", ["conditional_savepoint", "create_savepoint", "rollback_only", "control_fully"]
)
def test_a_joined_session_frees_rows_with_the_outer_commit(
    engine: Engine, mode: Any, end: str
) -> None:
    """A test may undo by the outer transaction what the code under test has committed."""
    with Session(engine) as setup:
        add_subscriptions(setup, 2)
    with engine.connect() as connection:
        outer = connection.begin()
        session = Session(connection, join_transaction_mode=mode, expire_on_commit=False)
        claimed = claim_subscriptions(session)
        complete(session, claimed)
        session.commit()
        session.close()
        if mode == "control_fully":
            assert kept(engine) == 0
            return
        assert kept(engine) == 2

        getattr(outer, end)()

        assert kept(engine) == (0 if end == "commit" else 2)
        if end == "rollback":
            release(session, claimed)
            assert kept(engine) == 0
