"""A queue in strict order is a queue like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import (
    Session,
    joinedload,
)

from sa_jobqueue import JobQueue, enqueue
from tests.contract.strict_order.support import EMAILS, Later
from tests.models import (
    Account,
    Document,
    Email,
    Letter,
    Message,
    Pair,
    add_emails,
    recipients,
)


def add_pairs(session: Session) -> list[Any]:
    enqueue(session, Pair, [{"left": n, "right": "x", "priority": -n} for n in (1, 3, 2)])
    return [(3, "x"), (2, "x"), (1, "x")]


def add_documents(session: Session) -> list[Any]:
    enqueue(session, Document, [{"created": n} for n in (3, 1, 2)])
    return list(session.scalars(select(Document.id).order_by(Document.created)))


def add_messages(session: Session) -> list[Any]:
    enqueue(session, Message, [{"sequence": n} for n in (2, 3, 1)])
    return list(session.scalars(select(Message.id).order_by(Message.sequence.desc())))


# It is a queue like any other


@pytest.mark.parametrize(
    ("entity", "add"),
    [(Pair, add_pairs), (Document, add_documents), (Message, add_messages)],
)
def test_every_kind_of_class_is_claimed_in_its_order(
    session: Session, entity: type[Any], add: Callable[[Session], list[Any]]
) -> None:
    in_order = add(session)
    session.commit()
    queue = JobQueue(entity, strict_order=True)

    claimed = [*queue.claim(session, owner="w"), *queue.claim(session, owner="w", limit=5)]

    keys = [tuple(job.__mapper__.primary_key_from_instance(job)) for job in claimed]
    assert [key if len(key) > 1 else key[0] for key in keys] == in_order
    queue.complete(session, claimed)
    session.commit()


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


def test_relationships_are_loaded_as_asked(session: Session) -> None:
    account = Account(name="n")
    session.add(account)
    session.flush()
    session.add(Letter(account_id=account.id, copy_to_id=account.id))
    session.commit()
    queue = JobQueue(Letter, strict_order=True)

    (letter,) = queue.claim(session, owner="w", options=[joinedload(Letter.copy_to)])
    session.commit()
    session.expunge_all()  # nothing is loaded lazily

    assert [it.name for it in (letter.account, letter.copy_to) if it is not None] == ["n", "n"]


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
