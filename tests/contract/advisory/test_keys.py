"""Which lock a row has: keys of all types, partitions, inheritance, schemas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import BigInteger, DateTime, Engine, Integer, String, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import advisory_session, claim, complete, release
from tests.contract.subscriptions import in_autocommit, kept
from tests.models import Animal, Cat, Dog

pytestmark = pytest.mark.only_on("postgresql")

LARGE = 1 << 40


class KeyBase(DeclarativeBase):
    pass


class Large(KeyBase):
    __tablename__ = "bigint_key"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)


class OtherBase(DeclarativeBase):
    pass


class Undeclared(OtherBase):
    """The table of Large as models often declare it: the key is wide in the database only."""

    __tablename__ = "bigint_key"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)


class Word(KeyBase):
    __tablename__ = "string_key"
    id: Mapped[str] = mapped_column(String(20), primary_key=True)


class Seat(KeyBase):
    __tablename__ = "composite_key"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    row: Mapped[str] = mapped_column("the row", String(5), primary_key=True)
    day: Mapped[dt.datetime] = mapped_column(DateTime(timezone=True), primary_key=True)


class ByRange(KeyBase):
    __tablename__ = "by_range"
    __table_args__ = {"postgresql_partition_by": "RANGE (created)"}  # noqa: RUF012 - likewise
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    created: Mapped[dt.datetime] = mapped_column(DateTime(timezone=True), primary_key=True)


class Visit(KeyBase):
    """A table that each tenant has in its own schema."""

    __tablename__ = "visit"
    __table_args__ = {"schema": "tenant"}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


DDL = (
    "CREATE TABLE by_range_1 PARTITION OF by_range FOR VALUES FROM (MINVALUE) TO ('2030-02-01')",
    "CREATE TABLE by_range_2 PARTITION OF by_range FOR VALUES FROM ('2030-02-01') TO (MAXVALUE)",
    "CREATE TABLE anna.visit (LIKE tenant.visit INCLUDING ALL)",
    "CREATE TABLE bert.visit (LIKE tenant.visit INCLUDING ALL)",
)

JANUARY, FEBRUARY = (dt.datetime(2030, month, 20, 23, 30, tzinfo=dt.UTC) for month in (1, 2))


@pytest.fixture
def engine(own_engine: Engine) -> Iterator[Engine]:
    with in_autocommit(own_engine) as connection:
        for schema in ("tenant", "anna", "bert"):
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        KeyBase.metadata.create_all(connection)
        for statement in DDL:
            connection.execute(text(statement))
    yield own_engine
    assert kept(own_engine) == 0


def add(engine: Engine, *rows: object) -> None:
    with Session(engine) as session:
        session.add_all(rows)
        session.commit()


# Two rows for each class; numbers that differ only in their high halves are different keys.
KEYS: dict[type[Any], list[dict[str, Any]]] = {
    Large: [{"id": 7}, {"id": 7 + LARGE}],
    Word: [{"id": "a"}, {"id": "A'\"\\%"}],
    Seat: [{"id": 1, "row": "a", "day": JANUARY}, {"id": 1, "row": "a", "day": FEBRUARY}],
    ByRange: [{"id": 1, "created": JANUARY}, {"id": 1, "created": FEBRUARY}],
}


@pytest.mark.parametrize("entity", KEYS)
def test_rows_are_locked_one_by_one_and_for_everybody_else(
    engine: Engine, entity: type[Any]
) -> None:
    add(engine, *(entity(**row) for row in KEYS[entity]))

    with advisory_session(engine) as session, advisory_session(engine) as other:
        first = claim(session, entity, strategy="advisory", order_by=entity.id)
        assert kept(engine) == 1
        second = claim(other, entity, strategy="advisory", limit=5)
        rest = claim(session, entity, strategy="advisory", limit=5)

        assert (len(first), len(second), len(rest), kept(engine)) == (1, 1, 0, 2)
        complete(session, first)
        session.commit()
        release(other, second)
        assert kept(engine) == 0
        assert len(claim(other, entity, strategy="advisory", limit=5)) == 2


#: The locks of this connection, with the names of their tables.
SHOWN = text(
    "SELECT classid::regclass::text, objid::bigint::bit(32)::int FROM pg_locks "
    "WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
)


def test_a_key_is_locked_whatever_a_model_says_of_its_type_and_shown_if_it_has_32_bits(
    engine: Engine,
) -> None:
    add(engine, Large(id=7), Large(id=-3), Large(id=7 + LARGE))

    with advisory_session(engine) as session, advisory_session(engine) as other:
        claimed = claim(session, Undeclared, strategy="advisory", limit=5)

        assert len(claimed) == 3
        assert not claim(other, Large, strategy="advisory", limit=5)
        assert {("bigint_key", 7), ("bigint_key", -3)} < set(map(tuple, session.execute(SHOWN)))


#: Keys of more than 32 bits with the same hash; among so many there are some.
EQUAL_HASHES = """
    SELECT array_agg(n) FROM generate_series(5000000000, 5000400000) AS n
    GROUP BY hash_record(row(n)) HAVING count(*) > 1 LIMIT 1
"""


def test_one_of_several_rows_with_the_same_lock_is_claimed(engine: Engine) -> None:
    with advisory_session(engine) as session:
        same = session.scalars(text(EQUAL_HASHES)).one()
        add(engine, *(Large(id=id_) for id_ in same))
        seen = []

        for _ in same:
            claimed = claim(session, Large, strategy="advisory", order_by=Large.id, limit=3)
            assert not claim(session, Large, strategy="advisory", limit=3)
            assert (len(claimed), kept(engine)) == (1, 1)
            seen += [row.id for row in claimed]
            session.delete(claimed[0])
            complete(session, claimed)
            session.commit()
            assert kept(engine) == 0

    assert seen == sorted(same)


# Times in keys


@pytest.mark.parametrize("entity", [ByRange, Seat])
def test_a_time_in_a_key_is_locked_as_the_same_in_every_time_zone(
    engine: Engine, entity: type[Any]
) -> None:
    add(engine, *(entity(**row) for row in KEYS[entity]))

    with advisory_session(engine) as session, advisory_session(engine) as other:
        session.execute(text("SET TIME ZONE 'Asia/Tokyo'"))
        other.execute(text("SET TIME ZONE 'America/New_York'"))
        claimed = claim(session, entity, strategy="advisory", limit=5)

        assert len(claimed) == 2
        assert not claim(other, entity, strategy="advisory", limit=5)
        complete(session, claimed[0])
        session.commit()
        assert len(claim(other, entity, strategy="advisory", limit=5)) == 1


# Inheritance


def test_a_job_is_locked_for_all_classes_of_its_hierarchy(engine: Engine) -> None:
    add(engine, Dog(trick="sit"), Cat(), Animal())

    with advisory_session(engine) as session, advisory_session(engine) as other:
        dogs = claim(session, Dog, Dog.trick == "sit", strategy="advisory", limit=5)
        cats = claim(session, Cat, strategy="advisory", limit=5)
        animals = claim(other, Animal, strategy="advisory", limit=5)

        assert (len(dogs), len(cats), [type(row) for row in animals]) == (1, 1, [Animal])
        complete(session, [*dogs, *cats])
        complete(other, animals)
        session.commit()
        other.commit()
        assert set(session.scalars(select(Animal.status))) == {"done"}


# Schemas


def test_the_tables_of_tenants_are_told_apart_on_one_connection(engine: Engine) -> None:
    with advisory_session(engine) as session:
        connection, claims = session.connection(), {}
        for tenant in ("anna", "bert"):
            connection.execution_options(schema_translate_map={"tenant": tenant})
            session.execute(text(f"INSERT INTO {tenant}.visit VALUES (1), (2)"))
            claims[tenant] = claim(session, Visit, strategy="advisory", limit=5).fences
            assert not claim(session, Visit, strategy="advisory", limit=5)
            session.commit()
            session.expunge_all()
        assert ([len(fences) for fences in claims.values()], kept(engine)) == ([2, 2], 4)

        complete(session, claims["anna"])
        session.commit()
        assert kept(engine) == 2
        release(session, claims["bert"])

        assert kept(engine) == 0
