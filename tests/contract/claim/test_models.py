"""Jobs of every kind of mapped class are claimed: relationships, own names, keys, hierarchies."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Dialect, Engine, String, TypeDecorator, inspect, select, text, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    column_property,
    joinedload,
    mapped_column,
    relationship,
)

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, claim, complete, enqueue, fail
from tests.models import Account, Animal, Cat, Document, Dog, Letter, Message, Order, Pair
from tests.support import MARKING, STRATEGIES, with_empty_tables


def test_a_queue_may_be_mapped_before_the_classes_that_others_name() -> None:
    class Base(DeclarativeBase):
        pass

    class Author(Base):
        __tablename__ = "author"
        id: Mapped[int] = mapped_column(primary_key=True)
        posts: Mapped[list[Any]] = relationship("Post")  # not yet defined

    class Mail(JobMixin, Base):
        __tablename__ = "mail"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert not Mail.__mapper__.configured


def test_relationships_are_loaded_eagerly_and_not_locked(
    session: Session, other: Session, strategy: str
) -> None:
    session.add(Letter(account=Account(name="x"), copy_to=Account(name="y")))
    session.add(Letter())
    session.commit()
    session.expunge_all()

    letters = claim(
        session,
        Letter,
        Letter.account.has(name="x") | Letter.account_id.is_(None),
        owner="w",
        limit=2,
        strategy=strategy,
        options=[joinedload(Letter.copy_to)],
    )

    loaded = [inspect(letter).dict for letter in letters]
    assert [letter["account"] and letter["account"].name for letter in loaded] == ["x", None]
    assert [letter["copy_to"] and letter["copy_to"].name for letter in loaded] == ["y", None]
    if strategy != "compare_and_set":  # SQLite locks no rows
        other.execute(update(Account).values(name="z"))
        other.commit()


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


def test_keys_of_several_columns_and_without_an_order_are_claimed_in_order(
    session: Session, strategy: str
) -> None:
    keys = [(2, "a"), (1, "b"), (1, "a")]
    enqueue(session, Pair, [{"left": left, "right": right} for left, right in keys], priority=1)
    for created in (3, 1, 2):
        session.add(Document(id=uuid.UUID(int=10 - created), created=created))
    session.commit()

    pairs = claim(session, Pair, owner="w", limit=2, strategy=strategy)
    documents = claim(session, Document, owner="w", limit=2, strategy=strategy)

    assert [(pair.left, pair.right) for pair in pairs] == [(1, "a"), (1, "b")]
    assert [document.created for document in documents] == [1, 2]


def test_a_class_of_a_hierarchy_claims_its_own_rows(session: Session, strategy: str) -> None:
    session.add_all([Animal(), Cat(), Dog(trick="roll"), Cat()])
    session.commit()
    session.expunge_all()

    cats = claim(session, Cat, owner="w", limit=1, strategy=strategy)
    dogs = claim(session, Dog, Dog.trick == "roll", owner="w", limit=5, strategy=strategy)
    assert [type(cat) for cat in cats] == [Cat]
    assert [dog.trick for dog in dogs] == ["roll"]
    if strategy == "held":
        return  # other transactions skip a held claim, its own does not
    rest = claim(session, Animal, owner="w", limit=5, strategy=strategy)
    complete(session, cats, delete=True)  # a job of one table, where another class has several

    assert [type(animal) for animal in rest] == [Animal, Cat]
    assert sorted(session.scalars(select(Animal.kind))) == ["animal", "cat", "dog"]


class OddBase(DeclarativeBase):
    pass


class Tag(TypeDecorator[str]):
    """A type that has never seen None: its column is a primary key."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return f"tag-{value.upper()}"

    def process_result_value(self, value: Any, dialect: Dialect) -> str:
        return str(value.removeprefix("tag-").lower())


class Tagged(JobMixin, OddBase):
    """A key of two columns, and an attribute that is computed."""

    __tablename__ = "tagged"
    tag: Mapped[str] = mapped_column(Tag, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    account: Mapped[int] = mapped_column()
    doubled: Mapped[int] = column_property(account * 2)


def test_keys_with_types_of_the_users_own_are_claimed_in_every_way(
    engine: Engine, db_alias: str
) -> None:
    with_empty_tables(engine, OddBase.metadata)
    options: list[dict[str, Any]] = [{"strategy": name} for name in STRATEGIES[db_alias]]
    options += [{"order_by": Tagged.account}, {"serial_by": Tagged.account}, {"strict_order": True}]
    for option in options:
        queue = JobQueue(Tagged, **option)
        with Session(engine) as session:
            session.add_all(Tagged(tag=f"t{n}", number=n, account=n) for n in range(5))
            session.commit()
            for limit in (1, 3):
                jobs = queue.claim(session, owner="w", limit=limit)
                assert len(jobs) == limit
                assert [job.doubled for job in jobs] == [2 * job.account for job in jobs]
                complete(session, jobs)
                session.commit()
            assert len(queue.claim_rows(session, owner="w", limit=9)) == 1
            session.rollback()
            session.query(Tagged).delete()
            session.commit()


class Counted(JobMixin, RetryMixin, OddBase):
    """A column_property over columns that claims and finishes write."""

    __tablename__ = "counted"
    __queue_args__ = {"max_attempts": 5}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    if TYPE_CHECKING:
        left: Mapped[int]


_columns = Counted.__table__.c
Counted.left = column_property(_columns.max_attempts - _columns.attempts)


@pytest.mark.strategies(*MARKING)
def test_a_column_property_over_the_queues_columns_is_read_after_the_write(
    engine: Engine, strategy: str
) -> None:
    with_empty_tables(engine, OddBase.metadata)
    with Session(engine) as session:
        session.add_all([Counted(), Counted()])
        session.commit()
        for attempt in (1, 2):
            jobs = claim(session, Counted, owner="w", limit=2, strategy=strategy)
            assert [inspect(job).dict["left"] for job in jobs] == 2 * [5 - attempt]
            fail(session, jobs, error="once more", retry_in=timedelta(0))
            assert [job.left for job in jobs] == 2 * [5 - attempt]
            session.commit()
