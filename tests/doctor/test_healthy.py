"""A healthy queue has no finding; an examination changes and locks nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Column, Engine, Integer, event, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, declarative_base

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, PriorityMixin, claim
from sa_jobqueue.doctor import Report, examine
from sa_jobqueue.migration import create_job_indexes, drop_job_indexes
from sa_jobqueue.testing import assert_claim_is_indexed
from sa_jobqueue.workflow import Workflow
from tests import models
from tests.contract.plans import fill, rows_read
from tests.migration.support import migrating
from tests.support import SERVERS, STRATEGIES, impatient, make_engine

from .models import (
    PATIENT,
    Base,
    Mail,
    Subscription,
    add_mails,
    analyze,
    examined,
    found,
    replace_index,
    run,
)

#: Those that large tables and other tests on the server do not disturb.
OF_QUEUE = ("columns", "statuses", "index", "reap", "failed", "isolation")

QUEUES: list[JobQueue[Any]] = [
    JobQueue(models.Email),
    JobQueue(models.Task),
    JobQueue(models.Message, models.Message.channel == "sms"),
    JobQueue(models.Pair),
    JobQueue(models.Cat),
    JobQueue(models.Dog),
    JobQueue(models.Letter),
    JobQueue(models.Order),
    JobQueue(models.Document),
    JobQueue(models.Email, models.Email.recipient.like("a%")),
    JobQueue(models.Email, strict_order=True),
]


def unwell(engine: Engine, queue: Any) -> list[str]:
    return [str(finding) for finding in examined(engine, queue, *OF_QUEUE).findings]


def committed(engine: Engine) -> Engine:
    """Begin transactions as the strategies of InnoDB ask for."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="READ COMMITTED")


def test_an_empty_table_of_any_model_has_no_finding(engine: Engine) -> None:
    models.Base.metadata.create_all(engine)

    assert [unwell(engine, queue) for queue in QUEUES] == [[]] * len(QUEUES)


def test_no_strategy_has_a_finding_whatever_the_size(engine: Engine, db_alias: str) -> None:
    add_mails(engine, 5_000, status="done")
    for number in (3, 5_000):
        add_mails(engine, number)
        for strategy in STRATEGIES[db_alias]:
            assert unwell(committed(engine), JobQueue(Mail, strategy=strategy)) == []


@pytest.mark.only_on("sqlite", "mysql", "mariadb")  # PostgreSQL counts by transactions
def test_a_big_table_is_not_read_as_a_whole(engine: Engine) -> None:
    columns = "recipient, status, owner_date, priority"
    done = f"INSERT INTO doctor_mail ({columns}) SELECT 'r', 'done', '2020-01-01 00:00:00', 0"
    fill(engine, done, 100_000)
    analyze(engine, "doctor_mail")
    with engine.connect() as connection:  # the pool's only one, so that of the doctor
        before = rows_read(connection)

    examined(engine, Mail)

    with engine.connect() as connection:
        assert rows_read(connection) - before < 20_000


@pytest.mark.only_on("postgresql")
def test_a_claim_that_marks_nothing_needs_no_reap_index(engine: Engine) -> None:
    replace_index(engine, "reap")

    assert unwell(engine, JobQueue(Mail, strategy="held")) == []


@pytest.mark.only_on(*SERVERS)
def test_the_indexes_of_partitions_count_as_those_of_their_table(engine: Engine) -> None:
    base, parts = declarative_base(), {"postgresql_partition_by": "HASH (id)"}
    for name in ("mysql", "mariadb"):
        parts |= {f"{name}_partition_by": "HASH (id)", f"{name}_partitions": "2"}
    key = Column(Integer, primary_key=True)
    body = {"__tablename__": "doctor_parcel", "__table_args__": parts, "id": key}
    parcel: Any = type("Parcel", (JobMixin, PriorityMixin, base), body)
    base.metadata.drop_all(engine)
    base.metadata.create_all(engine)
    if engine.dialect.name == "postgresql":
        for number in range(2):
            values = f"FOR VALUES WITH (modulus 2, remainder {number})"
            run(engine, f"CREATE TABLE doctor_parcel_{number} PARTITION OF doctor_parcel {values}")
    with engine.begin() as connection:
        connection.execute(insert(parcel), [{"priority": n % 5} for n in range(5_000)])
    analyze(engine, "doctor_parcel")

    assert unwell(engine, parcel) == []
    on_table = "" if engine.dialect.name == "postgresql" else " ON doctor_parcel"
    run(engine, f"DROP INDEX ix_doctor_parcel_claim{on_table}")
    assert found(engine, parcel, "index")
    base.metadata.drop_all(engine)


# -- a queue's own index ------------------------------------------------

OWN = [
    JobQueue(Mail, order_by=Mail.recipient.desc()),
    JobQueue(Mail, Mail.recipient == "r", order_by=(Mail.recipient, Mail.touched)),
    JobQueue(Mail, ready="new", order_by=Mail.touched),
]


@pytest.mark.parametrize("queue", OWN)
@pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
def test_the_index_that_a_migration_makes_for_a_queue_is_the_one_that_is_wanted(
    engine: Engine, queue: JobQueue[Mail]
) -> None:
    with pytest.raises(AssertionError, match=r"no index serves(.|\n)*fix: CREATE INDEX"):
        assert_claim_is_indexed(engine, queue)

    with migrating(engine) as op:
        create_job_indexes(op, queue)

    assert_claim_is_indexed(engine, queue)
    assert_claim_is_indexed(engine, Mail)
    with migrating(engine) as op:
        drop_job_indexes(op, queue)
    assert_claim_is_indexed(Session(engine), Mail)


@pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
def test_the_statement_that_a_finding_names_removes_the_finding(engine: Engine) -> None:
    add_mails(engine, 5_000)
    (finding,) = found(engine, OWN[0], "index")

    run(engine, finding.fix.partition(" (while")[0].replace("%", "%%"))

    assert found(engine, OWN[0], "index") == []


@pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
def test_a_step_of_a_workflow_is_examined_as_its_queue_is(engine: Engine) -> None:
    workflow = Workflow(Mail)

    @workflow.step("unclaimed", during="claimed", then="done")
    def send(mail: Mail) -> None: ...

    assert_claim_is_indexed(engine, send)
    assert examine(engine, send).queue == repr(send.queue)


# -- what it leaves -----------------------------------------------------


def test_an_examination_waits_for_nobody_and_leaves_nothing_locked_or_changed(
    engine: Engine,
) -> None:
    add_mails(engine, 10)
    with Session(engine) as other:
        claim(other, Mail, owner="w", limit=10)  # all rows are locked

        assert unwell(impatient(engine), Mail) == []

        other.rollback()
    with Session(engine) as session:
        examine(session, Mail)

        assert not session.in_transaction()
        with Session(impatient(engine)) as other:
            assert len(claim(other, Mail, owner="w", limit=10)) == 10
            other.rollback()
    with engine.connect() as connection:
        assert set(connection.scalars(select(Mail.status))) == {"unclaimed"}


@pytest.mark.only_on(*SERVERS)
def test_an_examination_restores_the_settings_of_its_session(engine: Engine) -> None:
    variables = "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout"
    if engine.dialect.name == "postgresql":
        variables = "SELECT current_setting('enable_sort'), current_setting('lock_timeout')"
    with engine.connect() as connection, Session(connection) as session:
        before = connection.execute(text(variables)).one()
        connection.rollback()

        examine(session, Mail)
        examine(session, Mail, checks=["locks"])

        assert connection.execute(text(variables)).one() == before


@pytest.mark.only_on(*SERVERS)
def test_in_autocommit_a_queue_is_examined_too(engine: Engine) -> None:
    add_mails(engine, 10)

    assert unwell(engine.execution_options(isolation_level="AUTOCOMMIT"), Mail) == []


@pytest.mark.only_on("mysql", "mariadb")
def test_the_hooks_of_a_session_count_as_in_a_claim(engine: Engine) -> None:
    with Session(engine) as session:
        (plain,) = examine(session, Mail, checks=["strategy"]).facts
        event.listen(session, "do_orm_execute", lambda _: None)
        (hooked,) = examine(session, Mail, checks=["strategy"]).facts

    assert plain.message == "claims are made by skip_locked"
    assert hooked.message == "claims are made by candidates"


# -- what it takes ------------------------------------------------------

SQLITE = make_engine(URL.create("sqlite"))


@pytest.mark.parametrize(
    ("target", "queue", "how", "words"),
    [
        (SQLITE, Mail, {"checks": ["cost"]}, r"checks= takes some of .*, and not \['cost'\]"),
        (SQLITE, Mail, {"checks": "index"}, r"checks= takes some of .*, and not 'index'"),
        (SQLITE, Subscription, {}, "add JobMixin"),
        (None, Mail, {}, r"run_sync\(doctor\.examine, queue\)"),
    ],
)
def test_what_cannot_be_examined_is_refused(
    target: Any, queue: Any, how: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        examine(target, queue, **how)


@pytest.mark.only_on("sqlite")
def test_a_session_in_a_transaction_is_refused(engine: Engine) -> None:
    with Session(engine) as session:
        session.execute(select(Mail.id))

        with pytest.raises(ArgumentError, match="commit it or roll it back"):
            examine(session, Mail)

        assert session.in_transaction()


def test_an_async_session_examines_through_run_sync(tmp_path: Path) -> None:
    async def report() -> Report:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'jobs.db'}")
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine) as session:
            found = await session.run_sync(examine, Mail, old_snapshot=PATIENT)
        await engine.dispose()
        return found

    assert asyncio.run(report()).findings == ()
