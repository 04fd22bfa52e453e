"""The rows that a claim with serial keys reads, where the model has their indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Index, Table, event, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.dialects import database_of
from sa_jobqueue.doctor import examine
from tests.contract.plans import analyze, fill
from tests.contract.serial.keyed import BY_ACCOUNT, KeyedBase, Mail, Note, emptied, ids
from tests.support import make_engine

pytestmark = [pytest.mark.load, pytest.mark.xdist_group("plans")]

#: Unclaimed jobs in the order of their keys, and as many done jobs.
ROWS, KEYS = 5_000, 10

#: Each key costs some entries of the index; to walk over all jobs costs 5,000.
FEW = 1_000


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
    examination, table = database_of(connection).examination(), queue.mapping.table
    before = examination.rows_read(connection, table)
    jobs = list(queue.claim(session, owner="w", limit=limit))
    after = examination.rows_read(connection, table)
    assert before is not None
    assert after is not None
    return jobs, after - before


def _stepped(session: Session, queue: JobQueue[Any], limit: int) -> tuple[list[Any], int]:
    driver = session.connection().connection.driver_connection
    assert driver is not None
    ticks: list[bool] = []
    driver.set_progress_handler(lambda: bool(ticks.append(True)), 20)  # type: ignore[func-returns-value]  # False: go on
    jobs = list(queue.claim(session, owner="w", limit=limit))
    driver.set_progress_handler(None, 0)
    return jobs, len(ticks)


@pytest.mark.parametrize(
    "queue",
    [
        BY_ACCOUNT,
        JobQueue(Mail, serial_by=Mail.account_id, on_retry="skip"),
        JobQueue(Mail, limit_by={Mail.account_id: 1}),
    ],
    ids=["wait", "skip", "limit"],
)
def test_a_claim_does_not_read_all_jobs_of_few_keys(crowded: Engine, queue: JobQueue[Any]) -> None:
    with Session(crowded) as session:
        jobs, first = read(session, queue, 20)
        assert sorted(job.account_id for job in jobs) == list(range(KEYS))
        none, again = read(session, queue, 20)

        assert none == []
        assert max(first, again) < FEW
        session.rollback()


def test_a_claim_of_several_jobs_of_each_key_reads_few_others(crowded: Engine) -> None:
    three_each = JobQueue(Mail, limit_by={Mail.account_id: 3})
    with Session(crowded) as session:
        jobs, first = read(session, three_each, 40)
        assert sorted(job.account_id for job in jobs) == sorted([*range(KEYS)] * 3)
        none, again = read(session, three_each, 40)

        assert none == []
        assert max(first, again) < FEW
        session.rollback()


def test_a_claim_of_one_job_reads_the_head_of_the_queue(crowded: Engine) -> None:
    with Session(crowded) as session:
        jobs, rows = read(session, BY_ACCOUNT, 1)

        assert [job.account_id for job in jobs] == [0]
        assert rows < FEW / 5
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


@contextmanager
def characters_sent(engine: Engine) -> Iterator[list[int]]:
    """Collect the sizes of the statements that an engine runs, with their parameters."""
    sizes: list[int] = []

    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sizes.append(len(statement) + len(str(parameters)))

    event.listen(engine, "before_cursor_execute", see)
    try:
        yield sizes
    finally:
        event.remove(engine, "before_cursor_execute", see)


@pytest.mark.parametrize(
    "queue",
    [BY_ACCOUNT, JobQueue(Mail, limit_by={Mail.account_id: 1})],
    ids=["serial", "limit"],
)
def test_an_idle_claim_asks_for_few_of_the_jobs_of_busy_keys(
    busy: Engine, queue: JobQueue[Any]
) -> None:
    with Session(busy) as session, characters_sent(busy) as sizes:
        assert list(queue.claim(session, owner="w")) == []

    assert sum(sizes) < 5 * BUSY


def test_a_free_key_behind_many_busy_keys_is_claimed(busy: Engine) -> None:
    with Session(busy) as session:
        session.execute(insert(Mail).values(account_id=BUSY + 1))
        session.commit()

        (job,) = BY_ACCOUNT.claim(session, owner="w")

    assert job.account_id == BUSY + 1


@pytest.mark.only_on("mysql", "mariadb")
def test_a_claim_works_without_an_index_of_its_keys(
    fresh_database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(fresh_database)
    KeyedBase.metadata.create_all(engine)
    _index("key_account_id").drop(engine)
    queue = JobQueue(Mail, serial_by=Mail.account_id)
    with Session(engine) as session:
        session.execute(text("INSERT INTO mail (account_id) VALUES (1), (1), (2)"))
        session.commit()

        assert ids(queue.claim(session, owner="w", limit=9)) == [1, 3]
    assert "no index of its keys" in caplog.text
    engine.dispose()


@pytest.mark.parametrize("entity", [Mail, Note])
def test_the_doctor_knows_the_indexes_of_keys(shared_engine: Engine, entity: type[Any]) -> None:
    queue = JobQueue(entity, serial_by=entity.account_id)

    findings = examine(emptied(shared_engine), queue, old_snapshot=timedelta(days=1)).findings

    about = [one.fix for one in findings if "key" in f"{one.message}{one.fix}"]
    assert about == (
        [] if entity is Mail else ['__queue_args__ = {"per_key": ["account_id"]} in the model']
    )


def test_the_doctor_names_what_makes_the_index_of_a_key_while_others_write(
    fresh_database: Any,
) -> None:
    engine = make_engine(fresh_database)
    KeyedBase.metadata.create_all(engine)
    _index("key_account_id").drop(engine)

    findings = examine(engine, BY_ACCOUNT, run=False).findings

    (fix,) = [one.fix for one in findings if "next job of each" in one.message]
    assert fix.startswith("CREATE INDEX ix_mail_key_account_id ON mail (")
    assert "sa_jobqueue.migration.create_job_indexes(op, Mail)" in fix
    engine.dispose()


def _index(ending: str) -> Index:
    table = Mail.__table__
    assert isinstance(table, Table)
    (index,) = (one for one in table.indexes if str(one.name).endswith(ending))
    return index


def test_the_model_has_an_index_for_each_of_its_keys() -> None:
    words = " ".join(str(column) for column in _index("_key_region_host").expressions)

    assert words.replace("mail.", "") == "status region host attempts priority run_at id"
