"""Workers end the members of groups, and run what waits for them once, whatever is killed."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, complete, is_transient
from sa_jobqueue.groups import after, group_progress, recount
from sa_jobqueue.testing import run_all
from sa_jobqueue.worker import Done, Worker
from tests.running import SOON, runs
from tests.support import make_engine, until, with_empty_tables

from .models import Base, Part, Report, Run, Task, bind, draw, grouped, tasks

GROUPS, MEMBERS = 20, 10

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def tables(engine: Engine) -> None:
    with_empty_tables(engine, Base.metadata)


def ended(session: Session, number: int) -> bool:
    """Tell whether so many reports are done."""
    session.rollback()
    done = select(func.count()).select_from(Report).where(Report.status == "done")
    return session.scalar(done) == number


def queues() -> list[JobQueue[Any]]:
    """Make queues of parts, some of which fail for good, and of the reports that wait for them."""
    parts, reports = JobQueue(Part), JobQueue(Report)
    chance = random.Random()

    @parts.handler
    def make(part: Part) -> Any:
        time.sleep(chance.random() * 0.01)
        if part.name == "bad":
            raise LookupError(part.id)
        return chance.choice([None, None, Done({Part.name: "made"})])

    @reports.handler(transactional=True)
    def write(session: Session, report: Report) -> None:
        unfinished = ~Part.status.in_(["done", "failed"])
        open_ = select(func.count()).where(Part.group_id == int(report.name), unfinished)
        session.add(Run(report_id=report.id, unfinished=session.scalar(open_) or 0))

    return [parts, reports]


@pytest.mark.parametrize("kind", ["Worker", "AsyncWorker"])
def test_workers_end_members_and_run_what_waits(
    engine: Engine, session: Session, kind: str
) -> None:
    for _ in range(3):
        grouped(session, 5)
    made: list[int] = []

    with runs(kind, engine)({Part: lambda part: None, Report: lambda it: made.append(it.id)}):
        until(lambda: ended(session, 3))

    assert sorted(made) == sorted(session.scalars(select(Report.id)))


@pytest.mark.only_on("postgresql")
def test_workers_whose_transactions_keep_a_snapshot_end_members_too(
    engine: Engine, session: Session
) -> None:
    for _ in range(3):
        _, _, report = grouped(session, 30)
        report.name = "0"
    session.commit()
    strict = engine.execution_options(isolation_level="REPEATABLE READ")

    with ExitStack() as stack:
        for _ in range(3):
            worker = Worker(strict, queues(), limit=5, poll=SOON)
            thread = threading.Thread(target=worker.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
        until(lambda: ended(session, 3))

    assert session.scalar(select(func.count()).select_from(Run)) == 3
    assert recount(session, Part) == []


def test_a_transactional_handler_ends_its_member_in_its_own_transaction(
    engine: Engine, session: Session
) -> None:
    group, _, report = grouped(session, 2)
    report.name = str(group.id)
    session.commit()
    parts = JobQueue(Part)

    @parts.handler(transactional=True)
    def make(own: Session, part: Part) -> None:
        own.add(Run(report_id=0, unfinished=0))

    Worker(engine, [parts, queues()[1]], drain=True).run()

    session.rollback()
    assert session.scalars(select(Run.report_id).order_by(Run.id)).all() == [0, 0, report.id]


def test_calls_of_functions_are_grouped(engine: Engine, session: Session) -> None:
    pages = [draw.enqueue(session, page) for page in range(3)]
    book = bind.enqueue(session, 3)
    group = after(session, pages, then=book)
    session.commit()
    assert [page.group_id for page in pages] == [group.id] * 3

    Worker(engine, tasks, drain=True).run()

    session.expire_all()
    assert (book.status, bind.result(book)) == ("done", "3 pages")
    assert session.scalar(select(Task.id).order_by(Task.owner_date.desc()).limit(1)) == book.id


def test_handlers_under_test_end_members(session: Session) -> None:
    group, _, report = grouped(session, 2)
    report.name = str(group.id)
    for queue in queues():
        run_all(session, queue)

    assert report.status == "done"


def test_a_worker_corrects_the_counts_that_plain_sql_has_left(
    engine: Engine, session: Session
) -> None:
    group, _, report = grouped(session, 2)
    report.name = str(group.id)
    session.execute(delete(Part))
    session.commit()

    with runs("Worker", engine)({Report: lambda report: None}):
        until(lambda: ended(session, 1))

    assert group_progress(session, group).done == 2


# -- the order of locks -------------------------------------------------------


def test_members_that_end_at_once_do_not_deadlock(engine: Engine, session: Session) -> None:
    """Each transaction ends members of all groups, in an order of its own."""
    for number in range(4):  # each claim of four has a member of each group
        parts = [Part(id=number + 4 * row + 1, run_at=LONG_AGO) for row in range(40)]
        after(session, parts, then=Report())
    session.commit()
    errors: list[BaseException] = []

    def linger(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith("UPDATE job_groups"):
            time.sleep(0.005)

    def end_some(number: int) -> None:
        chance = random.Random(number)
        own = make_engine(engine.url)
        event.listen(own, "after_cursor_execute", linger)
        try:
            for _ in range(10):
                with Session(own) as each:
                    jobs = list(claim(each, Part, owner=f"w{number}", limit=4))
                    each.commit()
                    chance.shuffle(jobs)
                    names = {job.id: str(chance.random())[:9] for job in jobs}
                    complete(each, jobs, values=lambda job, names=names: {Part.name: names[job.id]})
                    each.commit()
        except Exception as error:
            if not (is_transient(error) and engine.dialect.name == "sqlite"):
                errors.append(error)
        finally:
            own.dispose()

    threads = [threading.Thread(target=end_some, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert recount(session, Part) == []
    assert session.scalars(select(Report.status).distinct()).all() == ["unclaimed"]
