"""Jobs are loaded in bulk as enqueue() makes them, claimable at once or at the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, claim, complete, count_by_status, enqueue
from sa_jobqueue.bulk import BulkLoad, EnqueueSource, FileLog
from sa_jobqueue.bulk.states import BLOCKED, CLEANING
from tests.bulk.fakes import Killed
from tests.bulk.models import Item, Job
from tests.bulk.support import killed_in_commit
from tests.support import statements_seen

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def jobs(count: int = 10) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"job {number}"} for number in range(count)]


def load_of(engine: Engine, log: FileLog, rows: Any = None, **options: Any) -> BulkLoad[Any]:
    source = EnqueueSource(engine, Job, jobs() if rows is None else rows, batch_size=3, **options)
    return BulkLoad(source, log)


def statuses(engine: Engine) -> dict[str, int]:
    with Session(engine) as session:
        return {word: count for word, count in count_by_status(session, Job).items() if count}


def rows_of(engine: Engine) -> list[tuple[Any, ...]]:
    columns = [column for column in Job.__table__.c if column.key != "run_at"]
    with Session(engine) as session:
        return [tuple(row) for row in session.execute(select(*columns).order_by(Job.id))]


def test_jobs_are_as_enqueue_makes_them(engine: Engine, log: FileLog) -> None:
    with Session(engine) as session:
        enqueue(session, Job, jobs())
        session.commit()
        expected = rows_of(engine)
        session.query(Job).delete()
        session.commit()

    load_of(engine, log).run()

    assert rows_of(engine) == expected
    with Session(engine, expire_on_commit=False) as session:
        assert len(claim(session, Job, owner="w", limit=20)) == 10


def test_priority_and_time_apply_to_rows_without_their_own(engine: Engine, log: FileLog) -> None:
    east = (LATER + timedelta(1)).astimezone(timezone(timedelta(hours=5)))
    rows = [*jobs(2), {"id": 2, "name": "own", "priority": 1, "run_at": east}]

    load_of(engine, log, rows, priority=5, run_at=LATER).run()

    with Session(engine) as session:
        found = session.scalars(select(Job).order_by(Job.id)).all()
        assert [job.priority for job in found] == [5, 5, 1]
        assert [job.run_at for job in found] == [LATER, LATER, LATER + timedelta(1)]


def test_an_update_of_existing_jobs_keeps_status_and_owner(engine: Engine, log: FileLog) -> None:
    with Session(engine, expire_on_commit=False) as session:
        enqueue(session, Job, jobs(3), priority=5)
        session.commit()
        claimed = claim(session, Job, owner="w", limit=2)
        session.commit()
        rows = [{"id": number, "name": "new"} for number in range(4)]

        load_of(engine, log, rows, priority=7, on_existing="update").run()

        complete(session, claimed)
        session.commit()
    with Session(engine) as session:
        found = session.scalars(select(Job).order_by(Job.id)).all()
        assert [job.name for job in found] == ["new"] * 4
        assert [job.status for job in found] == ["done", "done", "unsent", "unsent"]
        assert [job.priority for job in found] == [5, 5, 5, 7]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("visible", ["as inserted", "at the end"])
def test_the_planner_knows_of_a_load_that_is_finished(
    engine: Engine, log: FileLog, visible: str
) -> None:
    load_of(engine, log, jobs(5_000), visible=visible).run()

    known = "SELECT reltuples FROM pg_class WHERE oid = CAST(:table AS regclass)"
    with engine.connect() as connection:
        assert connection.scalar(text(known), {"table": Job.__tablename__}) == 5_000


@pytest.mark.parametrize("at_once", [True, False])
def test_no_job_is_claimable_before_all_are_loaded(
    engine: Engine, log: FileLog, at_once: bool
) -> None:
    seen: list[dict[str, int]] = []
    load = load_of(engine, log, visible="at the end", at_once=at_once)
    load.progress = lambda progress: seen.append(statuses(engine))

    load.run()

    assert seen == [{"loading": 3}, {"loading": 6}, {"loading": 9}, {"loading": 10}]
    assert statuses(engine) == {"unsent": 10}
    assert load.state is CLEANING


@pytest.mark.parametrize(
    ("at_once", "seen", "then"),
    [
        (False, {"unsent": 6, "loading": 4}, {"unsent": 8, "claimed": 2}),
        (True, {"loading": 10}, {"unsent": 10}),
    ],
)
def test_a_load_that_is_killed_while_jobs_become_visible_shows_the_rest_later(
    engine: Engine,
    log: FileLog,
    at_once: bool,
    seen: dict[str, int],
    then: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show, left = EnqueueSource._make_claimable, [2]

    def die(source: EnqueueSource, connection: Any, batch: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        show(source, connection, batch)

    with monkeypatch.context() as patched:
        patched.setattr(EnqueueSource, "_make_claimable", die)
        with pytest.raises(Killed):
            load_of(engine, log, visible="at the end", at_once=at_once).run()
    assert statuses(engine) == seen
    with Session(engine) as session:
        claim(session, Job, owner="w", limit=2)
        session.commit()
    load = load_of(engine, log)
    assert load.state is BLOCKED

    load.run()

    assert statuses(engine) == then


def test_the_jobs_of_a_killed_load_stay_hidden_whoever_goes_on(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = load_of(engine, log, visible="at the end")
    killed_in_commit(monkeypatch, load.run, 1, committed=True)
    seen: list[dict[str, int]] = []
    load = load_of(engine, log)
    load.progress = lambda progress: seen.append(statuses(engine))

    load.run()

    assert seen[-1] == {"loading": 10}
    assert statuses(engine) == {"unsent": 10}


def test_a_source_of_jobs_gets_its_own_description_back(engine: Engine) -> None:
    said = EnqueueSource(engine, Job, [], batch_size=3, visible="at the end").metadata()
    source = EnqueueSource(engine, Job, [], batch_size=7)

    source.resume(said)

    assert source.metadata() == said


@pytest.mark.only_on("postgresql")
def test_jobs_without_a_time_are_copied(engine: Engine, log: FileLog) -> None:
    with statements_seen(engine) as seen:
        load_of(engine, log).run()

    assert statuses(engine) == {"unsent": 10}
    assert [statement for statement in seen if "INSERT" in statement] == []


def test_a_rollback_deletes_hidden_and_claimed_jobs_alike(engine: Engine, log: FileLog) -> None:
    load_of(engine, log).run()
    with Session(engine) as session:
        claim(session, Job, owner="w", limit=2)
        session.commit()

    load_of(engine, log).rollback()

    assert statuses(engine) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"entity": Item}, "JobMixin"),
        ({"visible": "never"}, "as inserted, at the end"),
        ({"run_at": datetime(2024, 1, 1)}, "no time zone"),
        ({"visible": "at the end", "on_existing": "update"}, "would hide existing jobs"),
    ],
)
def test_invalid_arguments_are_refused(engine: Engine, given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        EnqueueSource(engine, **{"entity": Job, "rows": [], **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [({"priority": 1}, "add PriorityMixin"), ({"run_at": LATER}, "add ScheduleMixin")],
)
def test_an_option_without_a_column_in_the_model_is_refused(
    engine: Engine, given: Any, message: str
) -> None:
    class Bare(DeclarativeBase):
        pass

    class Call(JobMixin, Bare):
        __tablename__ = "call"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ArgumentError, match=message):
        EnqueueSource(engine, Call, [], **given)


def test_a_naive_time_in_a_row_is_refused(engine: Engine, log: FileLog) -> None:
    rows = [{"id": 1, "name": "a", "run_at": datetime(2024, 1, 1)}]

    with pytest.raises(ArgumentError, match="no time zone"):
        load_of(engine, log, rows).run()
