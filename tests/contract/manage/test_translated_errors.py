"""An application may have a handle_error listener that raises exceptions of its own.

oslo.db does, and so does PyPI's warehouse: no error of a statement is a DBAPIError there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import URL, Engine, insert, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, LockLost, LockTimeout, claim, named_lock
from tests.models import Email, Task, add_emails
from tests.support import SERVERS, cut_connections, make_engine, translating_errors, until

Sessions = Callable[..., Session]


@pytest.fixture
def translated(db_url: URL) -> Iterator[Engine]:
    """An engine whose errors are the application's own; it waits a moment for locks."""
    engine = make_engine(db_url, tls=True)
    with translating_errors(engine):
        yield engine
    engine.dispose()


def wait_briefly(session: Session) -> None:
    """Have the session wait for locks as short as its database allows."""
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    name, time = ("lock_timeout", "'100ms'") if on_postgresql else ("innodb_lock_wait_timeout", 1)
    session.execute(text(f"SET {name} = {time}"))


@pytest.mark.only_on(*SERVERS)
def test_a_turn_that_does_not_come_in_time_is_a_lock_timeout(
    session: Session, translated: Engine
) -> None:
    add_emails(session, "a")
    session.execute(update(Email).values(subject="locked"))

    with Session(translated) as other:
        wait_briefly(other)
        with pytest.raises(LockTimeout, match="strict order"):
            JobQueue(Email, strict_order=True).claim(other, owner="w")


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.strategies("update_then_select", "skip_locked")
def test_a_claim_in_an_open_transaction_and_without_its_index_works(
    fresh_database: URL, strategy: str
) -> None:
    engine = make_engine(fresh_database)
    Task.metadata.create_all(engine)
    (index,) = (one for one in Task.metadata.tables["task"].indexes if one.name == "ix_task_claim")
    index.drop(engine)
    with translating_errors(engine), Session(engine) as session:
        session.execute(insert(Task), [{"name": "a"}])

        (task,) = claim(session, Task, owner="w", strategy=strategy)

        assert task.name == "a"
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_a_lock_that_is_not_free_in_time_is_not_taken(translated: Engine) -> None:
    with named_lock(translated, "report"):
        second = named_lock(translated, "report", timeout=timedelta(milliseconds=100))

        assert not second.acquire()


@pytest.mark.only_on(*SERVERS)
def test_a_lost_lock_is_a_lost_lock(fresh_database: URL, db_alias: str) -> None:
    engine = make_engine(fresh_database, tls=True)
    with translating_errors(engine):
        lock = named_lock(engine, "report")
        lock.acquire()
        cut_connections(fresh_database, db_alias)

        until(lambda: lock.lost)
        with pytest.raises(LockLost):
            lock.check()
    engine.dispose()
