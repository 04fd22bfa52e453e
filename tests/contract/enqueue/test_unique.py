"""Unique jobs: enqueue() leaves out duplicates and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import (
    DateTime,
    Engine,
    ForeignKey,
    String,
    UniqueConstraint,
    delete,
    event,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, RetryMixin, ScheduleMixin, claim, complete, enqueue
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


class Voucher(JobMixin, Base):
    __tablename__ = "voucher"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_abstract": True}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    code: Mapped[str] = mapped_column(String(10), unique=True)
    text: Mapped[str] = mapped_column(String(5))


class Gift(Voucher):
    __mapper_args__ = {"polymorphic_identity": "gift"}  # noqa: RUF012


class Refund(Voucher):
    __mapper_args__ = {"polymorphic_identity": "refund"}  # noqa: RUF012


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
    for entity in (Coupon, Shop, Voucher):
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


# What is brought up to date


def update_waiting(session: Session, *codes: str, **columns: Any) -> int | None:
    rows = [{"code": code, **columns} for code in codes]
    return enqueue(session, Coupon, rows, update_duplicates=Coupon.code)


def texts(session: Session) -> dict[str | None, str]:
    session.expire_all()
    return {coupon.code: coupon.text for coupon in session.scalars(select(Coupon))}


def test_a_waiting_job_gets_the_values_of_a_duplicate(
    session: Session, told: Callable[[int], int | None]
) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    add(session, "a", "b", text="old")

    assert update_waiting(session, "a", "c", text="newer", number=3) == told(1)
    enqueue(session, Coupon, [{"code": "b"}], run_at=later, update_duplicates=Coupon.code)
    session.commit()

    assert texts(session) == {"a": "newer", "b": "old", "c": "newer"}
    assert [job.code for job in claim(session, Coupon, owner="w", limit=9)] == ["a", "c"]


def test_a_waiting_job_keeps_its_time_where_the_row_gives_none(session: Session) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    enqueue(session, Coupon, [{"code": "a"}], run_at=later)
    update_waiting(session, "a", text="newer")
    session.commit()

    assert texts(session) == {"a": "newer"}
    assert not claim(session, Coupon, owner="w")


@pytest.mark.parametrize("end", [None, complete])
def test_a_job_that_runs_or_is_done_is_left_alone(session: Session, end: Any) -> None:
    add(session, "a", text="old")
    claimed = claim(session, Coupon, owner="w")
    if end is not None:
        end(session, claimed)
    session.commit()

    update_waiting(session, "a", text="newer")
    session.commit()

    assert texts(session) == {"a": "old"}


def test_the_last_of_two_processes_that_enqueue_one_key_wins(
    session: Session, engine: Engine, new_session: Sessions
) -> None:
    """The second waits until the first has committed."""
    update_waiting(session, "a", text="one")

    def second() -> None:
        with Session(engine) as other:
            update_waiting(other, "a", text="two")
            other.commit()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second)
        time.sleep(0.3)
        session.commit()
        waiting.result()

    assert texts(session) == {"a": "two"}


def test_a_job_of_a_sibling_in_the_table_is_left_alone(session: Session) -> None:
    session.add(Refund(code="a", text="old"))
    session.commit()

    rows = [{"code": "a", "text": "newer"}]
    enqueue(session, Gift, rows, update_duplicates=Gift.code)
    session.commit()

    assert [refund.text for refund in session.scalars(select(Refund))] == ["old"]


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_nobody_claims_a_job_while_its_values_are_replaced(
    session: Session, engine: Engine, new_session: Sessions
) -> None:
    """The claim would take the old values, and nobody would work on the new ones."""
    add(session, "a", text="old")
    session.commit()
    meanwhile: list[list[Coupon]] = []

    def claims(*arguments: Any) -> None:
        if "INSERT INTO coupon" in arguments[2]:
            with new_session() as other:
                meanwhile.append(list(claim(other, Coupon, owner="w")))
                other.commit()

    event.listen(session.connection(), "after_cursor_execute", claims)
    update_waiting(session, "a", text="newer")
    session.commit()

    assert meanwhile == [[]]
    assert texts(session) == {"a": "newer"}


@pytest.mark.parametrize(
    ("unique", "rows", "words"),
    [
        (Coupon.text, [{"code": "a"}], "needs text in each row"),
        ("code", [{"code": "a"}], "takes an attribute of Coupon"),
        ((), [{"code": "a"}], "takes an attribute of Coupon"),
    ],
)
def test_what_is_no_unique_value_of_the_row_is_refused(
    session: Session, unique: Any, rows: Any, words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        enqueue(session, Coupon, rows, update_duplicates=unique)
