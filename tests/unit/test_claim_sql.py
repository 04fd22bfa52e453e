"""The SQL of claims, word by word in claims.sql, and what holds for all; no server is asked."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import DateTime
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue import JobQueue, UnsupportedDatabase, claim_statements
from tests.unit.sql import (
    Base,
    Email,
    Guest,
    Seat,
    cases,
    claim_sql,
    compiled,
    dialect_of,
    written,
)

CASES = list(cases())
MARKING = [case for case in CASES if case[2] not in ("held", "advisory")]


class Concert(Base):
    __tablename__ = "concert"
    hall: Mapped[int] = mapped_column(primary_key=True)
    begins: Mapped[datetime] = mapped_column(DateTime(timezone=True), primary_key=True)


@pytest.mark.parametrize(("shape", "alias", "strategy"), CASES)
def test_a_claim_runs_the_statements_of_the_file(shape: str, alias: str, strategy: str) -> None:
    assert claim_sql(shape, alias, strategy) == written()[shape, alias, strategy]


def test_the_file_has_no_claim_that_is_not_tested() -> None:
    assert set(written()) == set(CASES)


# What holds for every claim of the file


def test_a_status_is_never_a_parameter() -> None:
    for case in CASES:
        values = {str(value) for sql in compiled(*case) for value in sql.params.values()}
        assert not values & {"unclaimed", "claimed", "unsent", "sending"}, case


def test_no_time_of_the_client_is_bound() -> None:
    for case in CASES:
        first, *others = (
            {name for name, bound in sql.binds.items() if isinstance(bound.type, DateTime)}
            for sql in compiled(*case)
        )
        assert first == set(), case
        # The server told this time: in the locking read, or as the last insert id.
        assert all(bound <= {"sa_jobqueue_owner_date"} for bound in others), case


def test_every_statement_that_picks_rows_is_limited() -> None:
    by_keys = (":sa_jobqueue_keys", ":sa_jobqueue_owner_date", "SAVEPOINT", "sa_jobqueue_settings")
    for case in CASES:
        statements = written()[case].split(";\n")[:-1]
        picking = [sql for sql in statements if not any(text in sql for text in by_keys)]
        assert picking, case
        assert all("LIMIT :" in sql for sql in picking), case


def test_a_locking_subselect_of_an_update_runs_once() -> None:
    for case, sql in written().items():
        before, lock, after = sql.partition(" SKIP LOCKED")
        if lock and before.startswith("WITH"):
            assert "= any(array((SELECT" in before or "AS MATERIALIZED (SELECT" in before, case
            assert "SKIP LOCKED" not in after, case


def test_a_mark_names_the_status_that_it_leaves() -> None:
    for case in MARKING:
        _, _, mark = written()[case].rpartition("UPDATE ")
        assert re.search(r"status = 'un(claimed|sent)'", mark), case


def test_a_claim_that_marks_nothing_writes_nothing() -> None:
    for case in set(CASES) - set(MARKING):
        assert not re.search(r"UPDATE \w+ SET|INSERT|DELETE", written()[case]), case


def test_a_joined_class_is_ordered_by_the_key_that_the_claim_index_has() -> None:
    # Ordered by dog.id it would be sorted, and InnoDB keeps all rows locked that it sorts.
    joined = [case for case in CASES if case[0] == "a joined class"]
    assert all(not re.search(r"ORDER BY (\S+, )?dog\.id", written()[case]) for case in joined)


# Servers of other versions


@pytest.mark.parametrize(
    ("entity", "version", "hashed"),
    [
        (Seat, (17, 0), "hash_record(row(seat.hall, seat.number))"),
        (Seat, (13, 0), "hashtext(CAST(row(seat.hall, seat.number) AS VARCHAR))"),
        (Guest, (17, 0), "hash_record(row(guest.name))"),
    ],
)
def test_keys_that_are_no_integers_are_hashed_by_the_server(
    entity: Any, version: tuple[int, ...], hashed: str
) -> None:
    dialect = at_version("postgresql", *version)

    locking: Any = claim_statements(entity, dialect=dialect, strategy="advisory")[0]

    text = " ".join(str(locking.compile(dialect=dialect)).split())
    assert f"{hashed} AS sa_jobqueue_" in text


def test_a_key_whose_text_is_not_always_the_same_needs_a_server_that_hashes_values() -> None:
    dialect = at_version("postgresql", 13, 9)

    with pytest.raises(UnsupportedDatabase, match=r"before PostgreSQL 14 only .* upgrade"):
        claim_statements(Concert, dialect=dialect, strategy="advisory")


@pytest.mark.parametrize("alias", ["mysql", "mariadb", "sqlite"])
def test_other_databases_have_no_advisory_claims(alias: str) -> None:
    with pytest.raises(UnsupportedDatabase, match="use strategy='auto'"):
        claim_sql("a plain queue", alias, "advisory")


def test_strict_order_on_a_server_without_skip_locked_walks_in_order_and_waits() -> None:
    old = at_version("mysql", 5, 7, 44)
    queue, strategy = JobQueue(Email, strict_order=True), "update_then_select"

    strict: list[Any] = claim_statements(queue, dialect=old)

    by_order: list[Any] = claim_statements(Email, dialect=old, strategy=strategy)
    assert [str(sql.compile(dialect=old)) for sql in strict] == [
        str(sql.compile(dialect=old)) for sql in by_order
    ]


def test_sqlite_needs_nothing_more_for_strict_order() -> None:
    assert written()["strict order", "sqlite", "auto"] == claim_sql(
        "a plain queue", "sqlite", "auto"
    )


def at_version(alias: str, *version: int) -> Any:
    """Return the dialect of a server of this version."""
    dialect: Any = dialect_of(alias)
    dialect.server_version_info = version
    return dialect
