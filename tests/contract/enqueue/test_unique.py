"""Unique jobs: enqueue() leaves out duplicates and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Barrier
from typing import Any
from uuid import uuid4

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
from sqlalchemy.orm import DeclarativeBase, Mapped, ORMExecuteState, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    RetryMixin,
    ScheduleMixin,
    claim,
    complete,
    enqueue,
    is_transient,
    prune,
)
from tests.models import Animal, Cat, Dog, Pair
from tests.support import SERVERS, Sessions, statements_seen

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
    id: Mapped[int] = mapped_column(primary_key=True)
    shop: Mapped[str] = mapped_column(String(10))
    number: Mapped[int] = mapped_column(unique=True)


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


def test_a_taken_primary_key_is_a_duplicate_too(session: Session) -> None:
    rows = [{"left": 1, "right": "a"}, {"left": 1, "right": "b"}, {"left": 1, "right": "a"}]

    enqueue(session, Pair, rows, skip_duplicates=True)
    enqueue(session, Pair, rows[::-1], skip_duplicates=True)

    assert len(session.scalars(select(Pair)).all()) == 2


def test_a_finished_job_keeps_its_key_until_it_is_pruned(session: Session) -> None:
    add(session, "a")
    complete(session, claim(session, Coupon, owner="w"))
    add(session, "a")
    assert claim(session, Coupon, owner="w").first() is None

    session.execute(text("UPDATE coupon SET owner_date = '2000-01-01 00:00:00'"))
    prune(session, Coupon, older_than=LONG_AGO - LONG_AGO)
    add(session, "a")

    assert len(claim(session, Coupon, owner="w")) == 1


# What is not left out


def test_without_being_told_to_skip_them_duplicates_are_errors(session: Session) -> None:
    add(session, "a")

    with pytest.raises(IntegrityError):
        enqueue(session, Coupon, [{"code": "a"}])


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


def test_a_missing_value_is_an_error_as_without_skipping(session: Session) -> None:
    for skip in (False, True):
        with pytest.raises(DBAPIError, match=r"(?i)null|default value"):
            enqueue(session, Voucher, [{"number": 1}], skip_duplicates=skip)
        session.rollback()


def test_a_class_of_several_tables_is_refused(session: Session) -> None:
    with pytest.raises(ArgumentError, match="a row of Dog is spread over 2 tables"):
        enqueue(session, Dog, [{"id": 1}], skip_duplicates=True)


# Past the ORM, and through it


def test_duplicates_are_left_out_where_the_mapper_inserts(
    session: Session, told: Callable[[int], int | None]
) -> None:
    assert enqueue(session, Cat, [{"id": 1}], skip_duplicates=True) == told(1)
    assert enqueue(session, Cat, [{"id": 1}, {"id": 2}], skip_duplicates=True) == told(1)

    cats = session.scalars(select(Animal).order_by(Animal.id)).all()
    assert [(type(cat), cat.id, cat.status) for cat in cats] == [
        (Cat, 1, "unclaimed"),
        (Cat, 2, "unclaimed"),
    ]


def test_hooks_of_the_session_see_what_is_enqueued(
    session: Session, told: Callable[[int], int | None]
) -> None:
    seen: list[bool] = []

    @event.listens_for(session, "do_orm_execute")
    def hook(state: ORMExecuteState) -> None:
        seen.append(state.is_insert)

    add(session, "a")
    assert add(session, "a", "b") == told(1)

    assert True in seen
    assert codes(session) == ["a", "b"]


def test_a_chunk_is_one_statement(engine: Engine, session: Session, db_alias: str) -> None:
    server = db_alias in ("mysql", "mariadb")

    def sent() -> int:
        status = "SHOW SESSION STATUS LIKE 'Com_insert'"
        return int(session.execute(text(status)).one()[1]) if server else 0

    before = sent()
    with statements_seen(engine) as seen:
        add(session, *map(str, range(500)))

    inserts = sent() - before if server else sum(line.startswith("INSERT") for line in seen)
    assert inserts == 1


# Several who enqueue


def fresh(count: int) -> list[str]:
    """Make keys that no row had: InnoDB keeps deleted entries and their locks a while."""
    return sorted(uuid4().hex[:10] for _ in range(count))


def in_step(pool: ThreadPoolExecutor, session: Session, code: str) -> Any:
    """Have another session enqueue, and see it wait."""
    waiting = pool.submit(add, session, code)
    with pytest.raises(TimeoutError):
        waiting.result(0.2)
    return waiting


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_second_enqueuer_waits_and_takes_the_key_only_if_the_first_rolls_back(
    session: Session, other: Session, end: str, told: Callable[[int], int | None]
) -> None:
    add(session, "a", text="first")
    with ThreadPoolExecutor(1) as pool:
        waiting = in_step(pool, other, "a")
        getattr(session, end)()

        assert waiting.result(20) == told(0 if end == "commit" else 1)
    other.commit()

    assert list(session.scalars(select(Coupon.text))) == ["first" if end == "commit" else "new"]


@pytest.mark.only_on(*SERVERS)
def test_an_enqueuer_waits_for_a_claim_of_the_row_that_is_there(
    session: Session, other: Session, told: Callable[[int], int | None]
) -> None:
    add(session, "a")
    session.commit()
    claim(session, Coupon, owner="w")

    with ThreadPoolExecutor(1) as pool:
        waiting = in_step(pool, other, "a")
        session.commit()
        assert waiting.result(20) == told(0)


@pytest.mark.only_on(*SERVERS)
def test_a_claim_skips_the_row_that_an_enqueuer_has_found_on_innodb(
    session: Session, other: Session, db_alias: str
) -> None:
    add(session, "a")
    session.commit()
    add(other, "a")

    claimed = claim(session, Coupon, owner="w")

    assert len(claimed) == (1 if db_alias == "postgresql" else 0)


@pytest.mark.only_on(*SERVERS)
def test_enqueueing_in_opposite_orders_ends_in_a_deadlock_which_is_transient(
    session: Session, new_session: Sessions
) -> None:
    both = Barrier(2, timeout=20)
    a, b = fresh(2)

    def enqueued(first: str, second: str) -> BaseException | None:
        with new_session() as own:
            add(own, first)
            both.wait()
            try:
                add(own, second)
            except DBAPIError as error:
                return error
            own.commit()
            return None

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(enqueued, (a, b), (b, a)))

    (error,) = [error for error in told if error is not None]
    assert is_transient(error)
    assert set(codes(session)) == {a, b}


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
