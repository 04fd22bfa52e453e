"""A held claim proves once for each engine and table that its row locks keep others out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, assume_locks, claim
from tests.cutting_proxy import FOR_UPDATE, CuttingProxy
from tests.models import Email, Task, add_emails, add_tasks, recipients
from tests.support import SERVERS, make_engine

HELD = JobQueue(Email, strategy="held")

pytestmark = pytest.mark.only_on(*SERVERS)


@pytest.fixture
def fresh(db_url: URL) -> Iterator[Engine]:
    """An engine that has proved nothing, with a pool of one connection."""
    engine = make_engine(db_url, pool_size=1, max_overflow=0, pool_timeout=1)
    yield engine
    engine.dispose()


def connections(engine: Engine) -> list[Any]:
    """Collect the connections that are made from now on."""
    made: list[Any] = []
    event.listen(engine, "connect", lambda connection, _: made.append(connection))
    return made


def test_the_locks_of_a_table_are_proved_once_beside_the_pool(
    fresh: Engine, session: Session
) -> None:
    add_emails(session, *"abc")
    add_tasks(session, "a")
    made = connections(fresh)

    with fresh.connect() as connection:
        assert not JobQueue(Email, Email.recipient == "?", strategy="held").claim_rows(connection)
    assert len(made) == 1  # nothing was claimed
    with fresh.connect() as connection:
        assert recipients(HELD.claim_rows(connection, limit=2)) == ["a", "b"]
    for _ in range(3):
        with Session(fresh) as one:
            assert recipients(claim(one, Email, limit=2, strategy="held")) == ["a", "b"]
    assert len(made) == 2
    with Session(fresh) as one:
        assert len(claim(one, Task, strategy="held")) == 1

    assert len(made) == 3


def test_a_row_that_is_not_committed_is_claimed_without_a_proof(
    fresh: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.claim")
    with Session(fresh) as one:
        one.add(Email(recipient="a"))

        assert recipients(HELD.claim(one)) == ["a"]

    assert "could not be proved: others see no row" in caplog.text


def test_a_server_that_takes_no_second_connection_is_trusted_with_a_warning(
    fresh: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a")
    with Session(fresh) as one:
        one.connection()
        error = fresh.dialect.loaded_dbapi.OperationalError

        @event.listens_for(fresh, "do_connect")
        def refuse(*_: Any) -> None:
            raise error("too many connections")

        assert recipients(HELD.claim(one)) == ["a"]

    assert "could not be proved: " in caplog.text
    assert "too many connections" in caplog.text


def test_where_locks_are_assumed_nothing_is_proved(db_url: URL, session: Session) -> None:
    add_emails(session, "a")
    with CuttingProxy(db_url, FOR_UPDATE) as proxy:
        engine = make_engine(proxy.url)
        assume_locks(engine)
        with Session(engine) as one, Session(engine) as two:
            assert recipients(HELD.claim(one)) == recipients(HELD.claim(two)) == ["a"]
        engine.dispose()
