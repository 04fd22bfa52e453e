"""A serial key is locked for its table until the transaction ends, at whatever isolation level."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, delete, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, UnsupportedDatabase, complete, enqueue
from tests.contract.serial.keyed import (
    BY_ACCOUNT,
    NOTES,
    THREE_EACH,
    KeyedBase,
    Mail,
    Note,
    add,
    locked_keys,
)
from tests.support import SERVERS, make_engine, until


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
def test_keys_are_locked_until_the_commit_is_done_and_freed_later_if_that_fails(
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
            assert locked_keys(engine, BY_ACCOUNT) == 1
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


@pytest.mark.only_on("mysql", "mariadb")
def test_a_key_whose_lock_is_in_doubt_is_claimed_by_nobody_until_the_transaction_ends(
    engine: Engine, session: Session
) -> None:
    add(session, Mail, 1)
    connection = session.connection()

    def fail(_: object, __: object, statement: str, *___: object) -> None:
        if "GET_LOCK" in statement:
            raise ZeroDivisionError

    event.listen(connection, "after_cursor_execute", fail)
    with pytest.raises(ZeroDivisionError):
        BY_ACCOUNT.claim(session, owner="w")
    event.remove(connection, "after_cursor_execute", fail)

    assert len(BY_ACCOUNT.claim(session, owner="w")) == 0
    assert locked_keys(engine, BY_ACCOUNT) == 1
    session.rollback()
    assert locked_keys(engine, BY_ACCOUNT) == 0
    assert len(BY_ACCOUNT.claim(session, owner="w")) == 1


# The isolation level

REPEATABLE_READ = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@pytest.fixture
def committed(engine: Engine) -> Engine:
    """The engine with READ COMMITTED as the level of its sessions."""
    return engine.execution_options(isolation_level="READ COMMITTED")


@pytest.mark.only_on(*SERVERS)
def test_a_transaction_that_keeps_a_snapshot_claims_no_second_job_of_a_key(
    committed: Engine, db_alias: str
) -> None:
    def is_refused() -> bool:
        with Session(committed) as session:
            session.execute(delete(Note))
            add(session, Note, 1, id=5)
            session.execute(REPEATABLE_READ)
            session.scalars(select(Note)).all()
            with Session(committed) as other:
                add(other, Note, 1, id=3)  # which comes before the other job of its account
                assert len(NOTES.claim(other, owner="a")) == 1
                other.commit()
            if db_alias == "mariadb":  # its list of transactions stays old while it is read
                session.execute(text(f"DO SLEEP({random.uniform(0.15, 0.6):.3f})"))
            try:
                NOTES.claim(session, owner="b")
            except UnsupportedDatabase as error:
                return "READ COMMITTED" in str(error)
            return False

    if db_alias == "mariadb":
        until(is_refused)
    else:
        assert is_refused()


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


# The schema


@pytest.fixture
def tenant(fresh_database: URL) -> Iterator[Engine]:
    """An engine whose default database is that of the tables."""
    engine = make_engine(fresh_database)
    KeyedBase.metadata.create_all(engine)
    yield engine
    engine.dispose()


def claim_and_add_a_sooner_job(engine: Engine, session: Session) -> None:
    """Claim a job of an account in the session; commit another one that comes before it."""
    with Session(engine) as other:
        add(other, Note, 1, id=5)
    assert len(NOTES.claim(session, owner="a")) == 1
    with Session(engine) as other:
        add(other, Note, 1, id=3)


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("named", [False, True], ids=["translated", "of the table"])
def test_a_schema_is_the_database_that_others_have_as_their_default(
    tenant: Engine, engine: Engine, named: bool
) -> None:
    class OwnBase(DeclarativeBase):
        pass

    class Named(JobMixin, OwnBase):
        __tablename__ = "note"
        __table_args__ = {"schema": tenant.url.database}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)
        account_id: Mapped[int | None]

    queue: Any = JobQueue(Named, serial_by=Named.account_id) if named else NOTES
    bind = engine if named else translated(engine, tenant)
    with Session(tenant) as one, Session(bind) as other:
        claim_and_add_a_sooner_job(tenant, one)

        assert len(queue.claim(other, owner="b")) == 0
        one.rollback()
        assert len(queue.claim(other, owner="b")) == 1


def translated(engine: Engine, tenant: Engine) -> Engine:
    return engine.execution_options(schema_translate_map={None: tenant.url.database})


@pytest.mark.only_on("mysql", "mariadb")
def test_the_same_table_name_in_two_databases_is_two_tables(tenant: Engine, engine: Engine) -> None:
    with Session(translated(engine, tenant)) as one, Session(engine) as other:
        for session in (one, other):
            add(session, Note, 1)

        assert len(NOTES.claim(one, owner="a")) == 1
        assert len(NOTES.claim(other, owner="b")) == 1
