"""Jobs of every kind of mapped class are claimed: relationships, own names, hierarchies."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import inspect, text, update
from sqlalchemy.orm import Session, joinedload

from sa_jobqueue import claim, enqueue
from tests.models import Account, Animal, Cat, Document, Dog, Letter, Message, Order, Pair
from tests.support import MARKING


def test_an_eagerly_joined_relationship_is_loaded_without_locking_it(
    session: Session, other: Session, strategy: str
) -> None:
    session.add(Letter(account=Account(name="x")))
    session.add(Letter())
    session.commit()
    session.expunge_all()

    letters = claim(session, Letter, owner="w", limit=2, strategy=strategy)

    assert ["account" in inspect(letter).dict for letter in letters] == [True, True]
    assert letters[0].account is not None
    assert letters[0].account.name == "x"
    if strategy != "compare_and_set":  # SQLite locks no rows
        other.execute(update(Account).values(name="y"))
        other.commit()


def test_a_joinedload_option_loads_without_a_join(session: Session, strategy: str) -> None:
    session.add(Letter(copy_to=Account(name="x")))
    session.commit()
    session.expunge_all()

    letter = claim(
        session, Letter, owner="w", strategy=strategy, options=[joinedload(Letter.copy_to)]
    ).first()

    assert letter is not None
    assert inspect(letter).dict["copy_to"].name == "x"


@pytest.mark.strategies(*MARKING)
def test_a_table_with_a_status_of_its_own_becomes_a_queue(session: Session, strategy: str) -> None:
    session.add_all([Order(), Order(job_priority=-1)])
    session.commit()

    first, second = claim(session, Order, owner="w", limit=2, strategy=strategy)

    assert first.id > second.id
    assert (first.job_status, first.job_owner, first.attempts) == ("claimed", "w", 1)
    assert (first.status, first.owner, first.priority) == ("new", 7, "whatever")


@pytest.mark.strategies(*MARKING)
def test_a_queue_with_renamed_columns_words_and_an_order_of_its_own_is_claimed(
    session: Session, strategy: str
) -> None:
    session.add_all([Message(sequence=number) for number in (1, 3, 2)])
    session.add(Message(sequence=9, channel="fax"))
    session.commit()

    messages = claim(
        session, Message, Message.channel == "sms", owner="w", limit=2, strategy=strategy
    )

    assert [message.sequence for message in messages] == [3, 2]
    assert {message.status for message in messages} == {"claimed"}
    statuses = session.scalars(text("SELECT message_status FROM message ORDER BY id"))
    assert statuses.all() == ["unsent", "claimed", "claimed", "unsent"]


def test_composite_keys_are_claimed_in_order(session: Session, strategy: str) -> None:
    keys = [(2, "a"), (1, "b"), (1, "a")]
    enqueue(session, Pair, [{"left": left, "right": right} for left, right in keys], priority=1)
    session.commit()

    pairs = claim(session, Pair, owner="w", limit=2, strategy=strategy)

    assert [(pair.left, pair.right) for pair in pairs] == [(1, "a"), (1, "b")]


def test_uuid_keys_are_claimed_by_the_column_that_orders_them(
    session: Session, strategy: str
) -> None:
    for created in (3, 1, 2):
        session.add(Document(id=uuid.UUID(int=10 - created), created=created))
    session.commit()

    documents = claim(session, Document, owner="w", limit=2, strategy=strategy)

    assert [document.created for document in documents] == [1, 2]


def test_a_class_of_a_hierarchy_claims_its_own_rows(session: Session, strategy: str) -> None:
    session.add_all([Animal(), Cat(), Dog(trick="roll"), Cat()])
    session.commit()
    session.expunge_all()

    cats = claim(session, Cat, owner="w", limit=1, strategy=strategy)
    dogs = claim(session, Dog, Dog.trick == "roll", owner="w", limit=5, strategy=strategy)
    if strategy == "held":
        return  # other transactions skip a held claim, its own does not
    rest = claim(session, Animal, owner="w", limit=5, strategy=strategy)

    assert [type(cat) for cat in cats] == [Cat]
    assert [dog.trick for dog in dogs] == ["roll"]
    assert [type(animal) for animal in rest] == [Animal, Cat]
