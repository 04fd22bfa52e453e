"""run_due(): ticks become jobs, each once; pauses, run now, failures."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, UpdateBase, delete, event, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, utc_now
from sa_jobqueue.dialects.clock import as_utc
from sa_jobqueue.schedules import Ran, ScheduleInfo, Schedules
from tests.contract.worker.faults import transient
from tests.models import Email
from tests.support import make_engine

from .models import SCHEDULES, Base, LongNamed, Plain, Report, reports, ticks_of

ROW = SCHEDULES.entity
HOUR = timedelta(hours=1)


def hours_ago(session: Session, hours: int) -> datetime:
    now: datetime = as_utc(session.execute(select(utc_now())).scalar_one())
    return now.replace(minute=0, second=0, microsecond=0) - hours * HOUR


def add(session: Session, *, late: int = 0, missed: str = "once", title: str = "r") -> datetime:
    """Add an hourly schedule, whose next tick was some hours ago; return that tick."""
    values = {"title": title}
    SCHEDULES.add(session, title, reports(), "0 * * * *", values=values, missed=missed)
    tick = hours_ago(session, late)
    times = update(ROW).where(ROW.name == title).values(next_tick=tick, run_at=tick)
    session.execute(times, execution_options={"synchronize_session": False})
    session.commit()
    session.expire_all()
    return tick


def run(session: Session, **options: int) -> list[Ran]:
    found = SCHEDULES.run_due(session, [reports()], **options)
    session.commit()
    return found


def row(session: Session, name: str = "r") -> ScheduleInfo:
    (found,) = (each for each in SCHEDULES.all(session) if each.name == name)
    return found


def test_a_tick_becomes_a_job_and_the_schedule_waits_for_the_next(session: Session) -> None:
    tick = add(session)

    (ran,) = run(session)

    assert ran == Ran("r", (tick,), None, tick + HOUR)
    assert ticks_of(session) == [tick]
    assert (row(session).last_tick, row(session).next_tick) == (tick, tick + HOUR)
    assert run(session) == []


@pytest.mark.parametrize(("missed", "count"), [("once", 1), ("all", 4)])
def test_missed_ticks_become_jobs(session: Session, missed: str, count: int) -> None:
    tick = add(session, late=3, missed=missed)

    run(session)

    ticks = [tick + hour * HOUR for hour in range(4)]
    assert ticks_of(session) == ticks[-count:]
    info = row(session)
    gap = None if missed == "all" else (tick, ticks[-1])
    assert (None if gap is None else (info.skipped_from, info.skipped_to)) == gap


def test_skipped_ticks_become_no_jobs_and_are_seen(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    tick = add(session, late=3, missed="skip")

    with caplog.at_level(logging.WARNING):
        (ran,) = run(session)

    assert ran.skipped == tick
    assert set(ticks_of(session)) <= {tick + 3 * HOUR}  # the last one, in its first minute
    assert row(session).skipped_from == tick
    assert "the schedule r has missed its ticks" in caplog.text


def test_all_catches_up_by_a_hundred_in_a_transaction(session: Session) -> None:
    tick = add(session, late=150, missed="all")

    assert [len(run(session)[0].ticks) for _ in "ab"] == [100, 51]
    assert run(session) == []
    assert ticks_of(session) == [tick + hour * HOUR for hour in range(151)]


def test_the_jobs_and_the_next_tick_are_one_transaction(session: Session) -> None:
    tick = add(session)

    SCHEDULES.run_due(session, [reports()])
    session.rollback()

    assert ticks_of(session) == []
    assert row(session).next_tick == tick
    assert len(run(session)) == 1


def test_two_schedulers_never_have_the_same_schedule(
    session: Session, new_session: Callable[[], Session], db_alias: str
) -> None:
    for title in ("a", "b"):
        add(session, title=title)
    if db_alias == "sqlite":  # it has one writer at a time: by turns
        assert len(run(session, limit=1)) == len(run(new_session(), limit=10)) == 1
        return
    other = new_session()

    first = SCHEDULES.run_due(session, [reports()], limit=1)
    second = SCHEDULES.run_due(other, [reports()], limit=10)
    session.commit()
    other.commit()

    assert sorted(ran.name for ran in (*first, *second)) == ["a", "b"]


def test_jobs_have_the_status_that_their_queue_claims_from(session: Session) -> None:
    checked = JobQueue(Report, ready="unchecked", during="checking", then="checked")
    SCHEDULES.add(session, "r", checked, "0 * * * *", values={"title": "r"})
    session.execute(update(ROW).values(next_tick=utc_now(), run_at=utc_now()))
    session.commit()

    SCHEDULES.run_due(session, [checked])
    session.commit()

    assert session.scalars(select(Report.status)).all() == ["unchecked"]


def test_a_paused_schedule_rests_until_it_is_resumed(session: Session) -> None:
    tick = add(session, late=1)

    assert SCHEDULES.pause(session, "r")
    assert not SCHEDULES.pause(session, "r")
    session.commit()
    assert run(session) == []
    assert row(session).paused

    assert SCHEDULES.resume(session, "r")
    assert not SCHEDULES.resume(session, "r")
    session.commit()
    (ran,) = run(session)
    assert ran.ticks == (tick + HOUR,)


def test_a_schedule_that_is_resumed_before_its_tick_waits_for_it(session: Session) -> None:
    tick = add(session, late=-1)
    SCHEDULES.pause(session, "r")
    SCHEDULES.resume(session, "r")
    session.commit()

    assert [ran.ticks for ran in run(session)] == [()]
    assert run(session) == []
    assert row(session).next_tick == tick


def test_run_now_inserts_a_job_and_leaves_the_ticks(session: Session) -> None:
    tick = add(session, late=-1)

    SCHEDULES.run_now(session, "r", reports())
    session.commit()

    (run_at,) = ticks_of(session)
    assert run_at < tick
    assert row(session).next_tick == tick
    with pytest.raises(ArgumentError, match="not of"):
        SCHEDULES.run_now(session, "r", JobQueue(Plain))


def test_a_schedule_whose_job_is_refused_holds_up_no_other(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    plain = JobQueue(Plain)
    session.add(Plain(title="taken"))
    SCHEDULES.add(session, "bad", plain, "0 * * * *", values={"title": "taken"})
    SCHEDULES.add(session, "good", plain, "0 * * * *", values={"title": "free"})
    tick = hours_ago(session, 0)
    session.execute(update(ROW).values(next_tick=tick, run_at=tick))
    session.commit()

    found = {ran.name: ran for ran in SCHEDULES.run_due(session, [plain])}
    session.commit()

    assert session.scalars(select(Plain.title).order_by(Plain.id)).all() == ["taken", "free"]
    assert found["bad"].error == row(session, "bad").last_error is not None
    assert row(session, "bad").next_tick == tick  # it is tried again in a minute
    assert SCHEDULES.run_due(session, [plain]) == []
    assert "the schedule bad inserted no job" in caplog.text
    assert "parameters" not in caplog.text  # they may be secret


@pytest.mark.parametrize(
    "values",
    [{"id": 2**70, "title": "large"}, {"title": "a\0b"}, {"title": "a", "gone": 1}],
    ids=["too large", "a null character", "no such column"],
)
def test_no_error_of_a_schedule_holds_up_another(session: Session, values: dict[str, Any]) -> None:
    for title in ("bad", "good"):
        add(session, title=title)
    bad = update(ROW).where(ROW.name == "bad").values(values_json=json.dumps(values))
    session.execute(bad, execution_options={"synchronize_session": False})
    session.commit()

    found = run(session)

    assert {ran.name for ran in found} == {"bad", "good"}
    assert len(ticks_of(session, "good")) == 1
    assert run(session) == []  # what has failed is tried again in a minute


def test_values_of_another_version_are_an_error_that_names_schedule_and_column(
    session: Session,
) -> None:
    tick = add(session)
    session.execute(update(ROW).values(values_json='{"gone": 1}'))
    session.commit()

    (ran,) = run(session)

    what = "in the values of the schedule 'r': Report has no column gone"
    assert what in str(ran.error)
    assert row(session).next_tick == tick
    with pytest.raises(ArgumentError, match=what):
        SCHEDULES.run_now(session, "r", reports())


@pytest.mark.parametrize("kind", ["deadlock", "lost connection"])
def test_an_error_that_ends_the_transaction_is_raised(
    engine: Engine, session: Session, db_alias: str, kind: str
) -> None:
    tick = add(session)
    error = OperationalError("INSERT", {}, transient(db_alias))
    if kind == "lost connection":
        error = OperationalError("INSERT", {}, Exception("gone"), connection_invalidated=True)

    def fail(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            raise error

    event.listen(engine, "before_cursor_execute", fail)
    try:
        with pytest.raises(OperationalError):
            run(session)
    finally:
        event.remove(engine, "before_cursor_execute", fail)
    session.rollback()

    assert (row(session).next_tick, row(session).last_error) == (tick, None)


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
def test_an_error_that_its_column_cannot_store_is_written_in_ascii(
    fresh_database: URL, charset: str
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.execute(text(f"ALTER TABLE report_schedules CONVERT TO CHARACTER SET {charset}"))
        session.add(Plain(title="taken 😀"))
        for title in ("taken 😀", "free"):
            SCHEDULES.add(session, title[:4], Plain, "0 * * * *", values={"title": title})
        session.execute(update(ROW).values(next_tick=utc_now(), run_at=utc_now()))
        session.commit()

        found = {ran.name: ran for ran in SCHEDULES.run_due(session, [Plain])}
        session.commit()

        assert found["take"].error == row(session, "take").last_error
        assert "taken \\U0001f600" in str(found["take"].error)
        assert len(found["free"].ticks) == 1
    engine.dispose()


def test_a_skipping_schedule_tries_a_refused_tick_again(session: Session) -> None:
    plain = JobQueue(Plain)
    session.add(Plain(title="taken"))
    values = {"title": "taken"}
    SCHEDULES.add(session, "r", plain, "0 0 1 1 *", values=values, missed="skip")
    session.execute(update(ROW).values(next_tick=utc_now(), run_at=utc_now()))
    session.commit()
    (refused,) = SCHEDULES.run_due(session, [plain])
    session.execute(delete(Plain))
    late = as_utc(session.execute(select(utc_now())).scalar_one()) - timedelta(minutes=3)
    session.execute(update(ROW).values(next_tick=late, run_at=late))
    session.commit()
    session.expire_all()

    (ran,) = SCHEDULES.run_due(session, [plain])
    session.commit()

    assert refused.error is not None
    assert (len(ran.ticks), ran.skipped) == (1, None)
    assert session.scalars(select(Plain.title)).all() == ["taken"]
    assert row(session).last_error is None


def test_a_name_is_given_once_and_unknown_names_are_errors(session: Session) -> None:
    add(session)

    with pytest.raises(IntegrityError):
        SCHEDULES.add(session, "r", reports(), "0 * * * *", values={"title": "r"})
    session.rollback()
    with pytest.raises(ArgumentError, match="no schedule 'x'"):
        SCHEDULES.pause(session, "x")
    SCHEDULES.remove(session, "r")
    assert SCHEDULES.all(session) == []


def test_in_autocommit_schedules_are_refused(engine: Engine) -> None:
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        Session(connection) as session,
        pytest.raises(ArgumentError, match="one transaction"),
    ):
        SCHEDULES.run_due(session, [reports()])


def test_a_session_that_is_bound_to_classes_runs_schedules(engine: Engine) -> None:
    with Session(binds={Report: engine, ROW: engine}) as session:
        run_added(session)

        assert len(ticks_of(session)) == 1


def test_a_routing_session_asks_the_clock_of_its_writer(engine: Engine, session: Session) -> None:
    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **given: Any) -> Engine:
            assert self._flushing or isinstance(clause, UpdateBase), "a read of a replica"
            return engine

    with Routing() as routing:
        run_added(routing)

    assert len(ticks_of(session)) == 1


def run_added(session: Session) -> None:
    """Add a schedule, and run it at once."""
    SCHEDULES.add(session, "r", Report, "0 * * * *", values={"title": "r"})
    session.execute(update(ROW).values(next_tick=utc_now(), run_at=utc_now()))
    session.commit()
    SCHEDULES.run_due(session, [Report])
    session.commit()


@pytest.mark.only_on("sqlite")
def test_schedules_are_found_beside_a_queue() -> None:
    assert Schedules.beside(reports()) is SCHEDULES
    assert Schedules.beside(Email) is None
    with pytest.raises(ArgumentError, match="schedules already"):
        Schedules(Report.metadata)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"values": {"title": datetime.now(UTC)}}, "JSON"),
        ({"values": {"tilte": "a"}}, "no column tilte"),
        ({"missed": "twice"}, "'skip', 'once' or 'all'"),
        ({"timezone": "Mars"}, "does not know the time zone"),
        ({"timezone": "../etc/passwd"}, "does not know the time zone"),
        ({"cron": "61 * * * *"}, "is no cron expression: Bad minute"),
        ({"cron": "* * *"}, "is no cron expression"),
        ({"cron": "0 0 30 2 *"}, "is no cron expression"),
        ({"timezone": None}, "the time zone of a schedule is text.*Europe/Berlin"),
        ({"timezone": "a" * 65}, "the time zone of a schedule is text, of at most 64 characters"),
        ({"name": ""}, "1 to 100 characters"),
        ({"name": 5}, "1 to 100 characters"),
        ({"cron": None}, "the cron expression of a schedule is text"),
        ({"cron": "0," * 150 + "0 0 * * *"}, "of at most 200 characters.*two schedules"),
        ({"values": [1]}, "values= maps attributes"),
        ({"values": "title"}, "values= maps attributes"),
        ({"queue": "email"}, "'email' is not a mapped class"),
        ({"queue": LongNamed}, "name of a queue has at most 150 characters"),
    ],
)
def test_what_makes_no_schedule_is_refused(
    session: Session, given: dict[str, object], what: str
) -> None:
    arguments: dict[str, object] = {"name": "r", "queue": reports(), "cron": "0 * * * *", **given}
    with pytest.raises(ArgumentError, match=what):
        SCHEDULES.add(session, **arguments)  # type: ignore[arg-type]  # that is the test


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("revision", [None, "2", True, 2**31])
def test_a_revision_is_a_number(revision: object) -> None:
    with pytest.raises(ArgumentError, match="revision= is a whole number"):
        reports().every("0 * * * *", name="r", revision=revision)  # type: ignore[arg-type]
