"""Primary keys with names and types of the user's own, claimed in every way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Dialect, Engine, Integer, String, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, ScheduleMixin, complete
from tests.support import ALL_STRATEGIES, STRATEGIES, make_engine


class OddBase(DeclarativeBase):
    pass


class Renamed(JobMixin, OddBase):
    """The attributes of its key have the names of each other's columns."""

    __tablename__ = "renamed"
    hall: Mapped[int] = mapped_column("number", Integer, primary_key=True)
    number: Mapped[int] = mapped_column("seat", Integer, key="place", primary_key=True)
    account: Mapped[int] = mapped_column("acct", Integer, key="account_key")


class RenamedByPriority(JobMixin, PriorityMixin, ScheduleMixin, OddBase):
    """The same, claimed priority by priority."""

    __tablename__ = "renamed_by_priority"
    hall: Mapped[int] = mapped_column("number", Integer, primary_key=True)
    number: Mapped[int] = mapped_column("seat", Integer, key="place", primary_key=True)
    account: Mapped[int] = mapped_column("acct", Integer, key="account_key")


class Tag(TypeDecorator[str]):
    """A type that has never seen None: its column is a primary key."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return f"tag-{value.upper()}"

    def process_result_value(self, value: Any, dialect: Dialect) -> str:
        return str(value.removeprefix("tag-").lower())


class Tagged(JobMixin, OddBase):
    __tablename__ = "tagged"
    tag: Mapped[str] = mapped_column(Tag, primary_key=True)
    account: Mapped[int]


class TaggedTwice(JobMixin, OddBase):
    __tablename__ = "tagged_twice"
    tag: Mapped[str] = mapped_column(Tag, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    account: Mapped[int]


@pytest.fixture
def odd_engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    OddBase.metadata.create_all(engine)
    yield engine
    engine.dispose()


def queues(cls: Any, db_alias: str) -> list[JobQueue[Any]]:
    """Return a queue for each way to claim."""
    named = [name for name in ALL_STRATEGIES if name in STRATEGIES[db_alias]]
    return [
        *(JobQueue(cls, strategy=name) for name in named),
        JobQueue(cls),
        JobQueue(cls, order_by=cls.account),
        JobQueue(cls, serial_by=cls.account),
        JobQueue(cls, strict_order=True),
    ]


def claim_in_turns(engine: Engine, queue: JobQueue[Any]) -> None:
    """Claim one job, then three, and finish them; of five one is left."""
    with Session(engine) as session:
        for limit in (1, 3):
            jobs = queue.claim(session, owner="w", limit=limit)
            assert len(jobs) == limit
            complete(session, jobs)
            session.commit()
        assert len(queue.claim_rows(session, owner="w", limit=9)) == 1
        session.rollback()
        session.query(queue.entity).delete()
        session.commit()


@pytest.mark.parametrize("cls", [Renamed, RenamedByPriority])
def test_attributes_of_a_composite_key_may_be_named_otherwise_than_columns(
    odd_engine: Engine, db_alias: str, cls: Any
) -> None:
    for queue in queues(cls, db_alias):
        with Session(odd_engine) as session:
            session.add_all(cls(hall=n, number=9 - n, account=n) for n in range(5))
            session.commit()
        claim_in_turns(odd_engine, queue)


def test_the_type_of_a_key_is_never_given_none(odd_engine: Engine, db_alias: str) -> None:
    for queue in queues(Tagged, db_alias):
        with Session(odd_engine) as session:
            session.add_all(Tagged(tag=f"t{n}", account=n) for n in range(5))
            session.commit()
        claim_in_turns(odd_engine, queue)


def test_no_type_of_a_composite_key_is_given_none(odd_engine: Engine, db_alias: str) -> None:
    for queue in queues(TaggedTwice, db_alias):
        with Session(odd_engine) as session:
            session.add_all(TaggedTwice(tag=f"t{n}", number=n, account=n) for n in range(5))
            session.commit()
        claim_in_turns(odd_engine, queue)
