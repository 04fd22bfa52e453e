"""Schedules that the code declares, in several versions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.schedules import Declared, ScheduleInfo

from .models import SCHEDULES, Plain, Report, forget, reports

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

HOURLY, DAILY = "0 * * * *", "0 0 * * *"


def declare(session: Session, *queues: JobQueue[object]) -> Declared:
    found = SCHEDULES.declare(session, queues)
    session.commit()
    return found


def version(cron: str, revision: int, **values: str) -> JobQueue[object]:
    """Make the queue of a version of an application; the versions before it are over."""
    forget()
    return beside(cron, revision, **values)


def beside(cron: str, revision: int, **values: str) -> JobQueue[object]:
    """Make the queue of a version that runs beside the others."""
    queue: JobQueue[object] = reports()  # type: ignore[assignment]  # any job will do
    queue.every(cron, name="r", values={"title": "r", **values}, revision=revision)
    return queue


def row(session: Session) -> ScheduleInfo:
    (found,) = SCHEDULES.all(session)
    return found


def test_a_newer_revision_replaces_an_older_one_and_never_the_reverse(session: Session) -> None:
    assert declare(session, version(HOURLY, 1)) == Declared(added=("r",))
    assert declare(session, version(HOURLY, 1)) == Declared()

    assert declare(session, version(DAILY, 2)) == Declared(updated=("r",))
    assert (row(session).cron, row(session).revision) == (DAILY, 2)
    assert row(session).next_tick.hour == 0

    assert declare(session, version(HOURLY, 1)) == Declared(older=("r",))
    assert (row(session).cron, row(session).revision) == (DAILY, 2)


def test_a_revision_that_leaves_the_times_leaves_the_next_tick(session: Session) -> None:
    declare(session, version(HOURLY, 1))
    past = row(session).next_tick - timedelta(hours=5)
    schedule = session.get_one(SCHEDULES.entity, "r")
    schedule.next_tick, schedule.run_at, schedule.last_error = past, past, "refused"
    session.commit()

    declare(session, version(HOURLY, 2, title="new"))
    assert (row(session).next_tick, row(session).values) == (past, {"title": "new"})
    assert row(session).last_error == "refused"

    declare(session, version(DAILY, 3))
    assert row(session).next_tick > past
    assert row(session).last_error is None


def test_other_contents_with_the_same_revision_are_reported_and_not_written(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    declare(session, version(HOURLY, 1))

    assert declare(session, version(DAILY, 1)) == Declared(different=("r",))
    assert row(session).cron == HOURLY
    assert "higher revision" in caplog.text


def test_what_is_no_longer_declared_is_reported_and_goes_on(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    declare(session, version(HOURLY, 1))
    SCHEDULES.add(session, "by hand", reports(), HOURLY, values={"title": "r"})
    plain: JobQueue[object] = JobQueue(Plain)
    forget()

    assert declare(session, plain) == Declared()  # another queue's
    queue: JobQueue[object] = reports()  # type: ignore[assignment]  # as above
    assert declare(session, queue) == Declared(undeclared=("r",))
    assert "They go on until you remove them" in caplog.text
    assert len(SCHEDULES.all(session)) == 2


def test_any_queue_of_a_table_and_a_status_stands_for_the_declaring_one(session: Session) -> None:
    declaring = version(HOURLY, 1)
    other: JobQueue[object] = JobQueue(Report, Report.title == "a", ready="new")

    assert declare(session, other) == Declared()
    assert declare(session, reports()) == Declared(added=("r",))  # type: ignore[arg-type]  # as above
    assert declare(session, declaring) == Declared()


def test_a_schedule_made_at_run_time_is_not_taken_over_before_it_is_removed(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    SCHEDULES.add(session, "r", reports(), HOURLY, values={"title": "r"})
    session.commit()
    queue = version(DAILY, 1)
    queue.every(DAILY, name="s", values={"title": "s"})
    queue.every(DAILY, name="a", values={"title": "a"})

    assert declare(session, queue) == Declared(added=("a", "s"), refused=("r",))

    assert [info.revision for info in SCHEDULES.all(session)] == [1, None, 1]
    assert "the schedule 'r' is not written: ArgumentError: add() has made it" in caplog.text
    assert "schedules.remove(session, 'r') and start the workers again" in caplog.text


@pytest.mark.parametrize("revision", [1, 2])
def test_the_schedule_of_another_queue_is_not_taken_over(
    session: Session, caplog: pytest.LogCaptureFixture, revision: int
) -> None:
    declare(session, version(HOURLY, 1))  # by a process that is over
    forget()
    plain: JobQueue[object] = JobQueue(Plain)
    plain.every(DAILY, name="r", values={"title": "p"}, revision=revision)

    assert declare(session, plain) == Declared(refused=("r",))

    assert (row(session).queue, row(session).cron) == ("scheduled_report", HOURLY)
    (record,) = caplog.records
    assert (record.levelname, "name=" in record.message) == ("ERROR", True)
    assert "'scheduled_plain'" in record.message
    assert "'scheduled_report'" in record.message


def test_two_queues_of_a_table_declare_different_schedules_or_other_names(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = version(HOURLY, 1), beside(DAILY, 1)
    other.every(DAILY, name="s", values={"title": "s"})

    assert declare(session, one) == Declared(added=("s",), refused=("r",))
    assert "two of the queues declare it: give one another name=" in caplog.text
    forget(other)
    same = beside(HOURLY, 1)
    assert declare(session, one, same) == Declared(added=("r",), undeclared=("s",))


@pytest.mark.by_turns
@pytest.mark.only_on("postgresql", "mysql", "mariadb")  # SQLite has one writer at a time
def test_of_two_versions_that_start_at_once_the_newer_is_in_the_table(
    session: Session, new_session: Callable[[], Session]
) -> None:
    other = new_session()
    other.connection()
    SCHEDULES.declare(session, [version(HOURLY, 1)])

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(lambda: declare(other, version(DAILY, 2)))
        wait([waiting], timeout=0.3)  # for the row of the first
        session.commit()
        waiting.result(10)

    assert (row(session).cron, row(session).revision) == (DAILY, 2)


def test_a_schedule_ticks_in_each_of_several_databases_or_in_the_one_that_it_names(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    queue: JobQueue[object] = reports()  # type: ignore[assignment]  # any job will do
    queue.every(HOURLY, name="everywhere")
    queue.every(HOURLY, name="in eu", database="eu")

    in_us = SCHEDULES.declare(session, [queue], database="us")
    in_eu = SCHEDULES.declare(session, [queue], database="eu")
    assert caplog.messages == []
    without_name = SCHEDULES.declare(session, [queue])

    assert (in_us.added, in_eu.added) == (("everywhere",), ("in eu",))
    assert without_name.undeclared == ("in eu",)
    assert "the schedules in eu are each declared for a database" in caplog.messages[0]
    assert [info.name for info in SCHEDULES.all(session)] == ["everywhere", "in eu"]
