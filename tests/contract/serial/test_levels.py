"""The isolation level that counts is that of the running transaction, not of the session.

Inner names are imported, since MariaDB tells the level only where nobody has asked just before.
"""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import UnsupportedDatabase, complete
from sa_jobqueue.dialects import database_of
from sa_jobqueue.dialects.innodb import InnoDB, running_level
from sa_jobqueue.dialects.mariadb import MariaDB
from tests.contract.serial.keyed import NOTES, Note, add
from tests.support import SERVERS, until

REPEATABLE_READ = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

pytestmark = pytest.mark.only_on(*SERVERS)


@pytest.fixture
def committed(engine: Engine) -> Engine:
    """The engine with READ COMMITTED as the level of its sessions."""
    return engine.execution_options(isolation_level="READ COMMITTED")


def claim_a_sooner_job(engine: Engine) -> None:
    """Commit and claim a job that comes before all others of its account."""
    with Session(engine) as other:
        add(other, Note, 1, id=3)
        assert len(NOTES.claim(other, owner="a")) == 1
        other.commit()


def test_a_transaction_that_keeps_a_snapshot_claims_no_second_job_of_a_key(
    committed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MariaDB, "level_question", "SELECT 'REPEATABLE READ', '{mark}'")
    with Session(committed) as session:
        add(session, Note, 1, id=5)
        session.execute(REPEATABLE_READ)
        session.scalars(select(Note)).all()
        claim_a_sooner_job(committed)

        with pytest.raises(UnsupportedDatabase, match="READ COMMITTED"):
            NOTES.claim(session, owner="b")


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "READ COMMITTED"])
def test_the_server_tells_the_level_of_the_open_transaction(committed: Engine, level: str) -> None:
    with committed.connect() as connection:
        database = database_of(connection)
        assert isinstance(database, InnoDB)
        connection.exec_driver_sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
        connection.execute(select(Note)).all()
        told: list[str | None] = []

        def is_told() -> bool:
            if told:  # MariaDB's copy stays old while it is read
                database.pause(connection, timedelta(seconds=random.uniform(0.15, 0.6)))
            told.append(running_level(connection, database.level_question))
            return told[-1] is not None

        until(is_told)

        assert set(told) <= {level, None}


@pytest.mark.only_on("mysql", "mariadb")
def test_a_claim_that_begins_the_transaction_makes_it_read_committed(committed: Engine) -> None:
    with Session(committed) as session:
        add(session, Note, 1, 1)
        session.execute(REPEATABLE_READ)

        (job,) = NOTES.claim(session, owner="b")
        with Session(committed) as other:
            add(other, Note, 2)

        assert session.scalar(select(Note.id).where(Note.account_id == 2)) is not None
        complete(session, job)
