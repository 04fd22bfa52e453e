"""The code of docs/adding-a-database.md makes an invented database claim, with no server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler

from sa_jobqueue import (
    JobMixin,
    UnsupportedDatabase,
    claim_statements,
    dialects,
    is_transient,
    utc_now,
)

from .markdown import code_blocks, page


class Base(DeclarativeBase):
    """The base of this test's tables."""


class Email(JobMixin, Base):
    __tablename__ = "adding_email"

    id: Mapped[int] = mapped_column(primary_key=True)


class TortoiseCompiler(SQLCompiler):
    """Renders what Tortoise promises."""

    def for_update_clause(self, *_: Any, **__: Any) -> str:
        return " FOR UPDATE SKIP LOCKED"


class TortoiseDialect(DefaultDialect):
    """The SQLAlchemy dialect of a database that there is not."""

    name = "tortoise"
    statement_compiler = TortoiseCompiler
    supports_statement_cache = True


class HareDialect(DefaultDialect):
    """The dialect of a database that nobody registered."""

    name = "hare"
    supports_statement_cache = True


@pytest.fixture
def tortoise() -> Iterator[TortoiseDialect]:
    """Run the first block of code of the page; forget the database afterwards."""
    exec(code_blocks(page("docs/adding-a-database.md"), "python")[0], {"__name__": "tortoise"})
    yield TortoiseDialect()
    dialects.registry._registered.pop("tortoise")


def rendered(statement: Any, dialect: DefaultDialect) -> str:
    return " ".join(str(statement.compile(dialect=dialect)).split())


def test_a_registered_database_claims_by_its_capabilities_and_its_own_clock(
    tortoise: TortoiseDialect,
) -> None:
    locking, marking = claim_statements(Email, dialect=tortoise)

    assert rendered(locking, tortoise) == (
        "SELECT adding_email.id, adding_email.status, adding_email.owner, "
        "adding_email.owner_date, MOMENT() AS claim_date FROM adding_email "
        "WHERE adding_email.status = 'unclaimed' ORDER BY adding_email.id "
        "LIMIT :claim_limit FOR UPDATE SKIP LOCKED"
    )
    assert rendered(marking, tortoise).startswith("UPDATE adding_email SET status='claimed'")


def test_a_registered_database_shifts_its_clock(tortoise: TortoiseDialect) -> None:
    later = select(utc_now(func.wait()))

    assert rendered(later, tortoise) == "SELECT MOMENT_LATER(wait()) AS utc_now_1"


def test_a_registered_database_says_which_errors_are_transient(tortoise: TortoiseDialect) -> None:
    deadlock = Exception("deadlock")
    deadlock.code = "DEADLOCK"  # type: ignore[attr-defined]  # as a driver sets it

    assert is_transient(DBAPIError("UPDATE", {}, deadlock))
    assert not is_transient(DBAPIError("UPDATE", {}, Exception("syntax error")))


def test_a_registered_database_that_is_too_old_is_refused(tortoise: TortoiseDialect) -> None:
    tortoise.server_version_info = (1, 9)

    with pytest.raises(UnsupportedDatabase, match=r"Tortoise 1\.9 is too old.* 2\.0 or later"):
        claim_statements(Email, dialect=tortoise)


def test_a_strategy_that_the_database_cannot_run_is_refused(tortoise: TortoiseDialect) -> None:
    with pytest.raises(UnsupportedDatabase, match="'compare_and_set' cannot run on Tortoise"):
        claim_statements(Email, dialect=tortoise, strategy="compare_and_set")


def test_a_database_that_nobody_registered_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedDatabase, match=r"'hare'.*dialects\.register\(\)"):
        claim_statements(Email, dialect=HareDialect())
