"""The locks of serial keys end with the transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import complete, enqueue
from tests.contract.serial.keyed import BY_ACCOUNT, THREE_EACH, Mail, add, locked_keys
from tests.support import SERVERS


def end_with_error(session: Session) -> None:
    with pytest.raises(ZeroDivisionError), session:
        raise ZeroDivisionError


def end_by_commit_in_sql(session: Session) -> None:
    session.execute(text("COMMIT"))
    session.close()


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize(
    "end", [Session.commit, Session.rollback, Session.close, end_with_error, end_by_commit_in_sql]
)
def test_the_locks_of_keys_end_with_the_transaction(
    engine: Engine, session: Session, end: Callable[[Session], None]
) -> None:
    add(session, Mail, 1, 1, 2, 3)
    for limit in (1, 2):  # the server counts: a lock that is taken twice is released twice
        THREE_EACH.claim(session, owner="w", limit=limit)
    BY_ACCOUNT.claim(session, owner="w", limit=1)
    assert locked_keys(engine, BY_ACCOUNT) == 3

    end(session)

    assert locked_keys(engine, BY_ACCOUNT) == 0


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("limit", [3, 201])
def test_a_claim_locks_as_many_keys_as_it_wants_jobs(
    engine: Engine, session: Session, limit: int
) -> None:
    enqueue(session, Mail, [{"account_id": number} for number in [*range(201)] * 2])
    session.commit()

    BY_ACCOUNT.claim(session, owner="w", limit=limit)

    assert locked_keys(engine, BY_ACCOUNT) == limit
    session.commit()
    assert locked_keys(engine, BY_ACCOUNT) == 0


@pytest.mark.only_on("mysql", "mariadb")
def test_keys_are_locked_until_the_commit_is_done(engine: Engine, session: Session) -> None:
    add(session, Mail, 1)
    BY_ACCOUNT.claim(session, owner="w")
    driver: Any = session.connection().connection.dbapi_connection
    commit, locked = driver.commit, []

    def watched() -> None:
        locked.append(locked_keys(engine, BY_ACCOUNT))
        commit()
        locked.append(locked_keys(engine, BY_ACCOUNT))

    driver.commit = watched
    session.commit()
    del driver.commit

    assert [*locked, locked_keys(engine, BY_ACCOUNT)] == [1, 1, 0]


@pytest.mark.only_on("mysql", "mariadb")
def test_keys_that_could_not_be_freed_are_freed_later(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """The COMMIT has succeeded; an error would look as if it had failed."""
    add(session, Mail, 1, 1)
    with engine.connect() as connection, Session(connection) as bound:
        (job,) = BY_ACCOUNT.claim(bound, owner="w")
        driver: Any = connection.connection.dbapi_connection
        error, commit = engine.dialect.loaded_dbapi.OperationalError, driver.commit

        def refuse(*_: Any) -> None:
            raise error("cancelled")

        def broken() -> None:
            commit()
            driver.cursor = refuse

        driver.commit = broken
        bound.commit()
        connection.commit()
        del driver.commit, driver.cursor
        assert "could not be freed: cancelled" in caplog.text
        assert locked_keys(engine, BY_ACCOUNT) == 1

        complete(bound, job)
        bound.commit()
        connection.commit()
        assert locked_keys(engine, BY_ACCOUNT) == 0
        assert len(BY_ACCOUNT.claim(bound, owner="w")) == 1
