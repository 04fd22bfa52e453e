"""run_due(): ticks become jobs, each once; pauses, run now, failures; the values of the jobs."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, UpdateBase, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import utc_now
from sa_jobqueue.schedules import Ran, ScheduleInfo, Schedules
from tests.contract.worker.faults import transient
from tests.models import Email
from tests.support import heard, make_engine

from .models import SCHEDULES, Base, Kind, Plain, Report, Typed, in_utc, reports, ticks_of

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

ROW = SCHEDULES.entity
HOUR = timedelta(hours=1)


def hours_ago(session: Session, hours: int) -> datetime:
    now: datetime = in_utc(session.execute(select(utc_now())).scalar_one())
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


def test_missed_ticks_become_one_job_or_none_or_all_of_them(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    for missed in ("once", "all", "skip"):
        tick = add(session, late=150, missed=missed, title=missed)
    ticks = [tick + hour * HOUR for hour in range(151)]

    found = {ran.name: ran for ran in run(session)}
    run(session)

    assert len(found["all"].ticks) == 100  # in a transaction
    assert ticks_of(session, "all") == ticks
    assert ticks_of(session, "once") == ticks[-1:]
    assert set(ticks_of(session, "skip")) <= {ticks[-1]}  # it is kept for a minute
    assert found["skip"].skipped == tick
    gaps = [(info.name, info.skipped_from, info.skipped_to) for info in SCHEDULES.all(session)]
    assert gaps[:2] == [("all", None, None), ("once", tick, ticks[-1])]
    assert "the schedule skip has missed its ticks" in caplog.text


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


def test_run_now_inserts_a_job_and_leaves_the_ticks(session: Session) -> None:
    tick = add(session, late=-1)

    SCHEDULES.run_now(session, "r", reports())
    session.commit()

    (run_at,) = ticks_of(session)
    assert run_at < tick
    assert row(session).next_tick == tick


BAD: dict[str, dict[str, Any]] = {
    "too large": {"id": 2**70, "title": "large"},
    "null character": {"title": "a\0b"},
    "of another version": {"title": "a", "gone": 1},
}


def test_no_error_of_a_schedule_holds_up_another(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    for title in (*BAD, "good"):
        tick = add(session, title=title)
        bad = update(ROW).where(ROW.name == title, ROW.name != "good")
        bad = bad.values(values_json=json.dumps(BAD.get(title)))
        session.execute(bad, execution_options={"synchronize_session": False})
    session.commit()

    found = {ran.name: ran for ran in run(session)}

    assert len(ticks_of(session, "good")) == 1
    other = "of another version"
    assert found[other].error == row(session, other).last_error
    assert "Report has no column gone" in str(found[other].error)
    assert row(session, other).next_tick == tick
    assert run(session) == []  # what has failed is tried again in a minute
    assert f"the schedule {other} inserted no job" in caplog.text
    assert "parameters" not in caplog.text  # they may be secret


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

    with heard(engine, "before_cursor_execute", fail), pytest.raises(OperationalError):
        run(session)
    session.rollback()

    assert (row(session).next_tick, row(session).last_error) == (tick, None)


@pytest.mark.only_on("mysql", "mariadb")
def test_an_error_that_its_column_cannot_store_is_written_in_ascii(fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.execute(text("ALTER TABLE report_schedules CONVERT TO CHARACTER SET latin1"))
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


def test_a_name_is_given_once_until_its_schedule_is_removed(session: Session) -> None:
    add(session)

    with pytest.raises(IntegrityError):
        SCHEDULES.add(session, "r", reports(), "0 * * * *", values={"title": "r"})
    session.rollback()
    SCHEDULES.remove(session, "r")
    assert SCHEDULES.all(session) == []


def test_a_routing_session_asks_the_clock_of_its_writer(engine: Engine, session: Session) -> None:
    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **given: Any) -> Engine:
            assert self._flushing or isinstance(clause, UpdateBase), "a read of a replica"
            return engine

    with Routing() as routing:
        SCHEDULES.add(routing, "r", Report, "0 * * * *", values={"title": "r"})
        routing.execute(update(ROW).values(next_tick=utc_now(), run_at=utc_now()))
        routing.commit()
        SCHEDULES.run_due(routing, [Report])
        routing.commit()

    assert len(ticks_of(session)) == 1


@pytest.mark.only_on("sqlite")
def test_schedules_are_found_beside_a_queue() -> None:
    assert Schedules.beside(reports()) is SCHEDULES
    assert Schedules.beside(Email) is None


KEY = "12345678-1234-5678-1234-567812345678"

#: A column, a value of a schedule, and what is stored.
VALUES: list[tuple[str, Any, Any]] = [
    ("at", "2030-01-31T07:00:00", datetime(2030, 1, 31, 7)),
    ("day", "2030-01-31", date(2030, 1, 31)),
    ("hour", "07:30", time(7, 30)),
    ("price", "12.50", Decimal("12.50")),
    ("key", KEY, UUID(KEY)),
    ("kind", "BILL", Kind.BILL),
    ("more", {"a": 1}, {"a": 1}),
    ("count", 5, 5),
    ("share", 1, 1.0),
    ("urgent", True, True),
    ("takes", None, None),
]


def test_values_become_what_their_columns_take(session: Session) -> None:
    values = {"run_at": "2030-01-31T07:00:00+02:00", **{name: given for name, given, _ in VALUES}}
    SCHEDULES.add(session, "t", Typed, "0 * * * *", values=values)

    SCHEDULES.run_now(session, "t", Typed)
    session.commit()

    job = session.query(Typed).one()
    assert [getattr(job, name) for name, _, _ in VALUES] == [stored for _, _, stored in VALUES]
    assert in_utc(job.run_at) == datetime(2030, 1, 31, 5, tzinfo=UTC)
    assert SCHEDULES.all(session)[0].values == values
