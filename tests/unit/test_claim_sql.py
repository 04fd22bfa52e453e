"""The SQL of claims, word by word in claims.sql, and what holds for all; no server is asked."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import DateTime
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue import JobQueue, claim_statements
from tests.models import Email, Pair
from tests.unit.mapping import dialect
from tests.unit.sql import Base, Guest, cases, claim_sql, compiled, written

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


def test_a_mark_names_the_status_that_it_leaves() -> None:
    for case in MARKING:
        _, _, mark = written()[case].rpartition("UPDATE ")
        assert re.search(r"status = 'un(claimed|sent)'", mark), case


# Servers of other versions


@pytest.mark.parametrize(
    ("entity", "alias", "version", "strategy", "words"),
    [
        (Pair, "postgresql", (17, 0), "advisory", 'hash_record(row(pair."left", pair."right"))'),
        (Guest, "postgresql", (17, 0), "advisory", "hash_record(row(guest.name))"),
        (
            JobQueue(Email, strict_order=True),
            "mysql",
            (5, 7, 44),
            "auto",
            "UPDATE email FORCE INDEX (ix_email_claim)",
        ),
    ],
)
def test_other_versions_of_a_server_are_asked_in_their_own_way(
    entity: Any, alias: str, version: tuple[int, ...], strategy: str, words: str
) -> None:
    server = dialect(alias, *version)

    statements: list[Any] = claim_statements(entity, dialect=server, strategy=strategy)

    text = ";".join(str(statement.compile(dialect=server)) for statement in statements)
    assert words in " ".join(text.split())
