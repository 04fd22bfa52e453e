"""Schedules that the code declares, in several versions."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import URL, Engine, MetaData
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.schedules import Declared, ScheduleInfo, Schedules
from tests.migration.support import differences
from tests.support import make_engine

from .models import SCHEDULES, Plain, Report, reports
from .test_working import chore_of

HOURLY, DAILY = "0 * * * *", "0 0 * * *"


def declare(session: Session, *queues: JobQueue[object]) -> Declared:
    found = SCHEDULES.declare(session, queues)
    session.commit()
    return found


def version(cron: str, revision: int, **values: str) -> JobQueue[object]:
    """Make the queue of a version of an application."""
    queue: JobQueue[object] = reports()  # type: ignore[assignment]  # any job will do
    queue.every(cron, name="r", values={"title": "r", **values}, revision=revision)
    return queue


def row(session: Session) -> ScheduleInfo:
    (found,) = SCHEDULES.all(session)
    return found


def test_a_decorated_function_stays_as_it_is_and_names_its_schedule(session: Session) -> None:
    queue: JobQueue[object] = reports()  # type: ignore[assignment]  # any job will do

    @queue.every(HOURLY, timezone="Europe/Berlin", values={"title": "a"}, missed="all")
    def morning(job: object) -> str:
        return "sent"

    assert morning(None) == "sent"
    assert declare(session, queue) == Declared(added=("morning",))
    found = row(session)
    assert (found.name, found.queue, found.cron) == ("morning", "scheduled_report", HOURLY)
    assert (found.timezone, found.values) == ("Europe/Berlin", {"title": "a"})
    assert (found.missed, found.revision) == ("all", 1)


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
    schedule.next_tick = schedule.run_at = past
    session.commit()

    declare(session, version(HOURLY, 2, title="new"))

    assert (row(session).next_tick, row(session).values) == (past, {"title": "new"})


def test_a_revision_with_other_times_forgets_the_error_of_the_old_tick(session: Session) -> None:
    declare(session, version(HOURLY, 1))
    session.get_one(SCHEDULES.entity, "r").last_error = "refused"
    session.commit()

    declare(session, version(HOURLY, 2))
    assert row(session).last_error == "refused"
    declare(session, version(DAILY, 3))

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
    gc.collect()  # the process that declared it is over

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


def test_a_schedule_made_at_run_time_is_not_taken_over(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    SCHEDULES.add(session, "r", reports(), HOURLY, values={"title": "r"})
    session.commit()

    assert declare(session, version(DAILY, 1)) == Declared(refused=("r",))

    assert row(session).cron == HOURLY
    assert "the schedule 'r' was made at run time" in caplog.text
    assert "schedules.remove(session, 'r') and start the workers again" in caplog.text


def test_a_removed_schedule_is_declared_by_the_next_worker_that_starts(
    engine: Engine, session: Session
) -> None:
    SCHEDULES.add(session, "r", reports(), HOURLY, values={"title": "r"})
    session.commit()
    queue = version(DAILY, 1)
    running = chore_of(engine, queue)
    running.run()
    SCHEDULES.remove(session, "r")
    session.commit()

    running.run()
    assert SCHEDULES.all(session) == []
    session.commit()
    chore_of(engine, queue).run()

    assert (row(session).cron, row(session).revision) == (DAILY, 1)


def test_a_declaration_that_is_refused_holds_up_no_other(session: Session) -> None:
    SCHEDULES.add(session, "r", reports(), HOURLY, values={"title": "r"})
    queue = version(DAILY, 1)
    queue.every(DAILY, name="s", values={"title": "s"})
    queue.every(DAILY, name="a", values={"title": "a"})

    assert declare(session, queue) == Declared(added=("a", "s"), refused=("r",))

    assert [info.name for info in SCHEDULES.all(session)] == ["a", "r", "s"]


@pytest.mark.only_on("mysql", "mariadb")  # elsewhere a column of text is as long as you like
def test_a_declaration_that_the_database_refuses_holds_up_no_other(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    queue = version(HOURLY, 1)
    queue.every(DAILY, name="long", values={"title": "x" * 70_000})

    assert declare(session, queue) == Declared(added=("r",), refused=("long",))

    assert "the database refuses the schedule 'long'" in caplog.text


@pytest.mark.parametrize("revision", [1, 2])
def test_the_schedule_of_another_queue_is_not_taken_over(
    session: Session, caplog: pytest.LogCaptureFixture, revision: int
) -> None:
    declare(session, version(HOURLY, 1))  # by a process that is over
    gc.collect()
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
    one, other = version(HOURLY, 1), version(DAILY, 1)
    other.every(DAILY, name="s", values={"title": "s"})

    assert declare(session, one) == Declared(added=("s",), refused=("r",))
    assert "two of the queues declare a schedule 'r'" in caplog.text
    del other
    same = version(HOURLY, 1)
    assert declare(session, one, same) == Declared(added=("r",), undeclared=("s",))


@pytest.mark.only_on("sqlite")
def test_a_queue_declares_a_name_once() -> None:
    queue = version(HOURLY, 1)

    with pytest.raises(ArgumentError, match="two schedules 'r'"):
        queue.every(DAILY, name="r")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("cron", "values"), [("not a cron", {"title": "r"}), (HOURLY, {"nix": "r"})]
)
def test_the_arguments_are_checked_at_the_call(
    session: Session, cron: str, values: dict[str, str]
) -> None:
    queue = reports()

    with pytest.raises(ArgumentError):
        queue.every(cron, values=values)

    assert SCHEDULES.declare(session, [queue]) == Declared()


def test_a_schedule_without_a_name_or_a_function_is_refused(session: Session) -> None:
    queue = version(HOURLY, 1)
    queue.every(DAILY, values={"title": "nameless"})

    with pytest.raises(ArgumentError, match=r"every\('0 0 \* \* \*'\).*name="):
        declare(session, queue)

    assert SCHEDULES.all(session) == []


@pytest.mark.only_on("sqlite")
def test_what_has_no_name_of_its_own_needs_one() -> None:
    with pytest.raises(ArgumentError, match="name="):
        reports().every(HOURLY, values={"title": "r"})(partial(print, "sent"))


def test_autogenerate_adds_the_table_of_schedules_once(fresh_database: URL) -> None:
    engine, metadata = make_engine(fresh_database), MetaData()
    Schedules(metadata)

    missing = {change[1].name for change in differences(engine, metadata)}
    metadata.create_all(engine)

    assert "job_schedules" in missing
    assert differences(engine, metadata) == []
    engine.dispose()


@pytest.mark.only_on("postgresql", "mysql", "mariadb")  # SQLite has one writer at a time
def test_of_two_versions_that_start_at_once_the_newer_is_in_the_table(
    session: Session, new_session: Callable[[], Session]
) -> None:
    other = new_session()
    other.connection()
    SCHEDULES.declare(session, [version(HOURLY, 1)])

    def start_too() -> None:
        declare(other, version(DAILY, 2))

    waiting = threading.Thread(target=start_too)
    waiting.start()
    waiting.join(0.3)  # it waits for the row of the first
    session.commit()
    waiting.join(10)

    assert (row(session).cron, row(session).revision) == (DAILY, 2)
