"""How long a claim in strict order waits for its turn, and where strict order is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    LockTimeout,
    UnsupportedDatabase,
    cancel,
    claim,
    is_transient,
)
from tests.contract.strict_order.support import EMAILS, Later
from tests.models import Email, add_emails, recipients

ABOVE = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture
def impatient(engine: Engine, db_alias: str) -> Iterator[Session]:
    """A session that waits for locks for a second at most."""
    limits: dict[str, dict[str, Any]] = {
        "sqlite": {"timeout": 0.2},
        "postgresql": {"options": "-c lock_timeout=200ms"},
        "mysql": {"init_command": "SET innodb_lock_wait_timeout=1"},
        "mariadb": {"init_command": "SET innodb_lock_wait_timeout=1"},
    }
    impatient_engine = create_engine(engine.url, connect_args=limits[db_alias])
    with Session(impatient_engine) as session:
        yield session
    impatient_engine.dispose()


# The end of the wait


def test_the_wait_ends_with_a_lock_timeout(
    session: Session, impatient: Session, db_alias: str
) -> None:
    first, _ = add_emails(session, "a", "b")
    if db_alias != "sqlite":  # a job that somebody has locked is waited for too
        cancel(session, [first])
        with pytest.raises(LockTimeout):
            EMAILS.claim(impatient, owner="w", limit=2)
        impatient.rollback()
        session.rollback()
    EMAILS.claim(session, owner="first")

    with pytest.raises(LockTimeout, match=r"claim Email.*Roll back and claim again") as info:
        EMAILS.claim(impatient, owner="second")

    assert is_transient(info.value)
    impatient.rollback()
    session.commit()
    assert recipients(EMAILS.claim(impatient, owner="second")) == ["b"]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("setting", "shown"),
    [(None, "10s"), ("SET LOCAL lock_timeout = '7s'", "7s"), ("SET lock_timeout = 0", "0")],
)
def test_the_callers_lock_timeout_is_restored_after_the_claim(
    session: Session, setting: str | None, shown: str
) -> None:
    add_emails(session, "a")
    if setting is not None:
        session.connection().exec_driver_sql(setting)

    EMAILS.claim(session, owner="w")

    assert session.scalar(text("SHOW lock_timeout")) == shown
    session.rollback()
    session.execute(text("SELECT set_config('lock_timeout', '10s', false)"))
    session.commit()


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "skip_locked"}, r"'skip_locked' keeps no strict order.*leave strat"),
        ({"serial_by": Email.recipient}, "leave strict_order=True out"),
    ],
)
def test_options_without_strict_order_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        JobQueue(Email, strict_order=True, **options)


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("AUTOCOMMIT", r"AUTOCOMMIT.*use a session without"),
        *((level, r"above READ COMMITTED.*Begin the trans") for level in ABOVE),
    ],
)
def test_a_transaction_that_could_not_keep_the_turn_is_refused_and_nothing_is_locked(
    engine: Engine, session: Session, other: Session, db_alias: str, level: str, words: str
) -> None:
    if level in ABOVE and db_alias != "postgresql":
        return  # there it waits, and sees what is committed
    EMAILS.claim(session, owner="first")  # another claimer has the turn, so a claim would wait

    with Session(engine.execution_options(isolation_level=level)) as refused:
        with pytest.raises(UnsupportedDatabase, match=words):
            EMAILS.claim(refused, owner="w")
        with pytest.raises(ArgumentError, match="candidates_from= is for strategy='candidates'"):
            EMAILS.claim(refused, owner="w", candidates_from=other)


# In a transaction of the caller's own level


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "READ UNCOMMITTED", "READ COMMITTED"])
def test_a_claim_in_the_callers_transaction_waits_and_sees_committed_jobs(
    engine: Engine, session: Session, level: str
) -> None:
    add_emails(session, "a", "b", "c")
    with Session(engine.execution_options(isolation_level=level)) as other:
        assert other.scalar(select(func.count()).select_from(Email)) == 3
        claim(session, Email, owner="before")
        session.commit()
        EMAILS.claim(session, owner="first")

        later = Later(engine, lambda: EMAILS.claim(other, owner="second"))
        assert later.waits
        session.rollback()

        assert recipients(later.result()) == ["b"]
