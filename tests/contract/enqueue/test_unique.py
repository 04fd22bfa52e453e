"""Unique jobs: enqueue() leaves out duplicates and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import DateTime, Engine, ForeignKey, String, UniqueConstraint, delete, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, RetryMixin, ScheduleMixin, claim, complete, enqueue
from tests.models import Animal, Cat
from tests.support import Sessions

LONG_AGO = datetime(2000, 1, 1)


class Base(DeclarativeBase):
    pass


class Shop(Base):
    __tablename__ = "shop"
    id: Mapped[int] = mapped_column(primary_key=True)


class Coupon(JobMixin, ScheduleMixin, RetryMixin, Base):
    """One for each code, and for each number of a shop."""

    __tablename__ = "coupon"
    __table_args__ = (UniqueConstraint("shop_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    code: Mapped[str | None] = mapped_column(String(10), unique=True)
    shop_id: Mapped[int | None] = mapped_column(ForeignKey("shop.id"))
    number: Mapped[int | None]
    text: Mapped[str] = mapped_column(String(5), default="new")
    changed: Mapped[datetime | None] = mapped_column(DateTime())


@pytest.fixture(scope="module")
def tables(shared_engine: Engine) -> Iterator[None]:
    Base.metadata.create_all(shared_engine)
    if shared_engine.dialect.name in ("mysql", "mariadb"):
        with shared_engine.begin() as connection:
            connection.exec_driver_sql(
                "ALTER TABLE coupon MODIFY changed DATETIME NULL ON UPDATE CURRENT_TIMESTAMP"
            )
    yield
    Base.metadata.drop_all(shared_engine)


@pytest.fixture
def session(tables: None, session: Session) -> Session:
    for entity in (Coupon, Shop):
        session.execute(delete(entity))
    session.commit()
    return session


@pytest.fixture
def told(db_alias: str) -> Callable[[int], int | None]:
    """Return what enqueue() reports on this database when so many rows are new."""
    return lambda count: None if db_alias in ("mysql", "mariadb") else count


def add(session: Session, *codes: str | None, **columns: Any) -> int | None:
    rows = [{"code": code, **columns} for code in codes]
    return enqueue(session, Coupon, rows, skip_duplicates=True)


def codes(session: Session) -> list[str | None]:
    session.expire_all()
    return list(session.scalars(select(Coupon.code).order_by(Coupon.id)))


# What is left out


def test_rows_whose_key_is_taken_are_left_out_and_the_others_are_inserted(
    session: Session, told: Callable[[int], int | None]
) -> None:
    assert add(session, "a", "b") == told(2)
    assert add(session, "c", "b", "a", "d") == told(2)
    assert add(session, "a", "b") == told(0)
    session.commit()

    assert codes(session) == ["a", "b", "c", "d"]
    assert enqueue(session, Coupon, [], skip_duplicates=True) == 0
    assert enqueue(session, Coupon, [{"code": "e"}], skip_duplicates=False) == 1
    with pytest.raises(IntegrityError):
        enqueue(session, Coupon, [{"code": "e"}])


def test_the_row_that_is_there_stays_as_it_is(session: Session) -> None:
    add(session, "a", text="old", changed=LONG_AGO, max_attempts=7)
    session.commit()
    (coupon,) = claim(session, Coupon, owner="w")
    session.execute(text("UPDATE coupon SET changed = '2000-01-01 00:00:00'"))
    session.commit()
    before = session.execute(select(*Coupon.__table__.c)).one()

    add(session, "a", text="new", max_attempts=1)
    session.commit()

    assert session.execute(select(*Coupon.__table__.c)).one() == before
    assert before.changed == LONG_AGO
    complete(session, coupon)  # still our claim


def test_the_first_of_several_equal_rows_in_a_call_is_inserted(
    session: Session, told: Callable[[int], int | None]
) -> None:
    rows = [{"code": str(n % 60), "number": n} for n in range(2_500)]

    assert enqueue(session, Coupon, rows, skip_duplicates=True) == told(60)

    numbers = session.scalars(select(Coupon.number).order_by(Coupon.id))
    assert list(numbers) == list(range(60))


def test_nulls_are_no_duplicates(session: Session, told: Callable[[int], int | None]) -> None:
    session.add(Shop(id=1))
    session.commit()

    add(session, None, None)
    assert add(session, None, shop_id=1) == told(1)
    assert add(session, None, shop_id=1) == told(1)
    add(session, None, shop_id=1, number=1)
    assert add(session, None, "x", shop_id=1, number=1) == told(0)

    assert codes(session) == [None] * 5


# What is not left out


@pytest.mark.parametrize(
    "wrong", [{"text": None}, {"shop_id": 99}, {"text": "much too long"}, {"number": "NaN"}]
)
def test_errors_other_than_duplicates_are_raised_as_without_skipping(
    session: Session, wrong: dict[str, Any]
) -> None:
    """SQLite accepts most wrong values, and MySQL 9.7 was seen to accept the missing shop."""

    def refused(*, skip: bool) -> str | None:
        rows = [{"code": code, **wrong} for code in "ab"]
        try:
            enqueue(session, Coupon, rows, skip_duplicates=skip)
        except DBAPIError as error:
            return str(error.orig)
        finally:
            session.rollback()
        return None

    assert (refused(skip=True) is None) == (refused(skip=False) is None)
    assert refused(skip=True) or wrong != {"text": None}


def test_a_taken_primary_key_is_a_duplicate_also_where_the_mapper_inserts(
    session: Session, told: Callable[[int], int | None]
) -> None:
    assert enqueue(session, Cat, [{"id": 1}], skip_duplicates=True) == told(1)
    assert enqueue(session, Cat, [{"id": 1}, {"id": 2}], skip_duplicates=True) == told(1)

    cats = session.scalars(select(Animal).order_by(Animal.id)).all()
    assert [(type(cat), cat.id, cat.status) for cat in cats] == [
        (Cat, 1, "unclaimed"),
        (Cat, 2, "unclaimed"),
    ]


# Several who enqueue


def fresh(count: int) -> list[str]:
    """Make keys that no row had: InnoDB keeps deleted entries and their locks a while."""
    return sorted(uuid4().hex[:10] for _ in range(count))


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_second_enqueuer_waits_and_takes_the_key_only_if_the_first_rolls_back(
    session: Session, other: Session, end: str, told: Callable[[int], int | None]
) -> None:
    add(session, "a", text="first")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(add, other, "a")
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        getattr(session, end)()

        assert waiting.result(20) == told(0 if end == "commit" else 1)
    other.commit()

    assert list(session.scalars(select(Coupon.text))) == ["first" if end == "commit" else "new"]


def test_many_enqueuers_of_the_same_keys_in_one_order_insert_each_key_once(
    session: Session, new_session: Sessions
) -> None:
    keys = fresh(40)

    def enqueued(number: int) -> None:
        with new_session() as own:
            for begin in range(0, 40, 10):
                add(own, *keys[begin : begin + 10])
            own.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enqueued, range(4)))

    assert sorted(map(str, codes(session))) == keys
