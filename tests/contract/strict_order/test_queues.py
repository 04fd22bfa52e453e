"""A queue in strict order is a queue like any other."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import (
    Session,
)

from sa_jobqueue import JobQueue
from tests.contract.strict_order.support import EMAILS, Later
from tests.models import (
    Email,
    add_emails,
    recipients,
)

# It is a queue like any other


def test_a_queue_keeps_its_own_order_and_criteria_for_plain_rows_too(session: Session) -> None:
    add_emails(session, "a1", "b", "a2", "a3")
    queue = JobQueue(
        Email,
        Email.recipient.like("a%"),
        order_by=Email.recipient.desc(),
        strict_order=True,
    )

    first = queue.claim(session, owner="w")
    rows = queue.turn(session, first, owner="w", rows=True)
    queue.complete(session, rows)
    session.commit()

    assert (recipients(first), recipients(rows)) == (["a3"], ["a2"])
    statuses = session.scalars(select(Email.status).order_by(Email.id)).all()
    assert statuses == ["unclaimed", "unclaimed", "done", "done"]


@pytest.mark.only_on("postgresql")
def test_the_turn_is_that_of_the_table_that_is_claimed_from(queue_engine: Engine) -> None:
    elsewhere = queue_engine.execution_options(schema_translate_map={None: 'Other "two"'})
    with elsewhere.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Other ""two"""')
        Email.metadata.tables["email"].create(connection)
    with Session(elsewhere) as one, Session(elsewhere) as two, Session(queue_engine) as other:
        EMAILS.claim(one, owner="w")

        assert not EMAILS.claim(other, owner="w")  # without waiting
        later = Later(queue_engine, lambda: EMAILS.claim(two, owner="w"))
        assert later.waits
        one.rollback()
        assert not later.result()
