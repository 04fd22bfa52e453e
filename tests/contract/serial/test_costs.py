"""The rows that a claim with serial keys reads, where the model has their indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.doctor import examine
from tests.contract.plans import analyze, fill, rows_read_of_tables
from tests.contract.serial.keyed import BY_ACCOUNT, THREE_EACH, KeyedBase, Mail, add, emptied, ids

pytestmark = [pytest.mark.load, pytest.mark.xdist_group("plans")]

#: Unclaimed jobs in the order of their keys, and as many done jobs.
ROWS, KEYS = 5_000, 10

#: Each key costs some entries of the index, and a look from the place that finds too few jobs
#: some more; to walk over all jobs costs 5,000.
FEW = 1_500


@pytest.fixture(scope="module")
def crowded(shared_engine: Engine) -> Iterator[Engine]:
    """A few keys with many jobs each, sorted by key; half of all rows are done."""
    emptied(shared_engine)
    of_key = 2 * ROWS // KEYS
    fill(
        shared_engine,
        "INSERT INTO mail (account_id, status) "
        f"SELECT ((number - 1) - (number - 1) % {of_key}) / {of_key}, "
        "CASE WHEN number % 2 = 0 THEN 'unclaimed' ELSE 'done' END",
        2 * ROWS,
    )
    analyze(shared_engine, "mail")
    yield shared_engine
    emptied(shared_engine)


def read(session: Session, queue: JobQueue[Any], limit: int) -> tuple[list[Any], int]:
    """Claim, and count the rows that the database has read; on SQLite a twentieth of its steps."""
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        return _stepped(session, queue, limit)
    before = rows_read_of_tables(connection)
    jobs = list(queue.claim(session, owner="w", limit=limit))
    return jobs, rows_read_of_tables(connection) - before


def _stepped(session: Session, queue: JobQueue[Any], limit: int) -> tuple[list[Any], int]:
    driver = session.connection().connection.driver_connection
    assert driver is not None
    ticks: list[bool] = []
    driver.set_progress_handler(lambda: bool(ticks.append(True)), 20)  # type: ignore[func-returns-value]  # False: go on
    jobs = list(queue.claim(session, owner="w", limit=limit))
    driver.set_progress_handler(None, 0)
    return jobs, len(ticks)


@pytest.mark.parametrize(
    ("queue", "each"),
    [
        (BY_ACCOUNT, 1),
        (THREE_EACH, 3),
    ],
    ids=["serial", "limit"],
)
def test_a_claim_does_not_read_all_jobs_of_few_keys(
    crowded: Engine, queue: JobQueue[Any], each: int
) -> None:
    with Session(crowded) as session:
        (head,), one = read(session, queue, 1)
        session.rollback()
        jobs, first = read(session, queue, 40)
        assert sorted(job.account_id for job in jobs) == sorted([*range(KEYS)] * each)
        none, again = read(session, queue, 40)

        assert (head.account_id, none) == (0, [])
        assert max(first, again) < FEW
        assert one < 200
        session.rollback()


#: Keys of a claimed job and a waiting one each; a primary key takes some characters.
BUSY = 4_000


@pytest.fixture
def busy(shared_engine: Engine) -> Iterator[Engine]:
    """Many keys, each with a claimed job and a waiting one."""
    emptied(shared_engine)
    fill(
        shared_engine,
        "INSERT INTO mail (account_id, status) SELECT (number - 1) % "
        f"{BUSY}, CASE WHEN number <= {BUSY} THEN 'claimed' ELSE 'unclaimed' END",
        2 * BUSY,
    )
    analyze(shared_engine, "mail")
    yield shared_engine
    emptied(shared_engine)


def test_an_idle_claim_asks_for_few_of_the_jobs_of_busy_keys_and_finds_a_free_key_behind(
    busy: Engine,
) -> None:
    sizes: list[int] = []

    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sizes.append(len(statement) + len(str(parameters)))

    with Session(busy) as session:
        event.listen(session.connection(), "before_cursor_execute", see)
        assert list(BY_ACCOUNT.claim(session, owner="w")) == []
        assert sum(sizes) < 5 * BUSY
        session.rollback()
        session.execute(insert(Mail).values(account_id=BUSY + 1))
        session.commit()

        (job,) = BY_ACCOUNT.claim(session, owner="w")

    assert job.account_id == BUSY + 1


def test_a_claim_works_without_an_index_of_its_keys_which_the_doctor_names(
    own_engine: Engine, caplog: pytest.LogCaptureFixture, db_alias: str
) -> None:
    KeyedBase.metadata.create_all(own_engine)
    with own_engine.begin() as connection:
        (index,) = (one for one in Mail.__table__.indexes if one.name == "ix_mail_key_account_id")  # type: ignore[attr-defined]  # of a Table
        index.drop(connection)
    with Session(own_engine) as session:
        add(session, Mail, 1, 1, 2)

        assert ids(BY_ACCOUNT.claim(session, owner="w", limit=9)) == [1, 3]
    assert ("no index of its keys" in caplog.text) is (db_alias in ("mysql", "mariadb"))

    findings = examine(own_engine, BY_ACCOUNT).findings

    (fix,) = [one.fix for one in findings if "next job of each" in one.message]
    assert fix.startswith("CREATE INDEX ix_mail_key_account_id ON mail (")
    assert "sa_jobqueue.migration.create_job_indexes(op, Mail)" in fix
