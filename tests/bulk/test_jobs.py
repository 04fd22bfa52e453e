"""Jobs are loaded as enqueue() makes them, claimable at once or at the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import claim, count_by_status, enqueue
from sa_jobqueue.bulk import BulkLoad, EnqueueSource, FileLog, Log
from tests.support import make_engine, statements_seen
from tests.videos import S
from tests.videos import Video as Job

from .fakes import Killed


def jobs(count: int = 10) -> list[dict[str, Any]]:
    return [{"id": number, "title": f"job {number}"} for number in range(1, count + 1)]


def load_of(engine: Engine, log: Log, rows: Any = None, **options: Any) -> BulkLoad[Any]:
    options = {"batch_size": 3, **options}
    return BulkLoad(EnqueueSource(engine, Job, jobs() if rows is None else rows, **options), log)


def statuses(engine: Engine) -> dict[str, int]:
    with Session(engine) as session:
        return {word: count for word, count in count_by_status(session, Job).items() if count}


def test_jobs_are_as_enqueue_makes_them_and_are_copied(
    engine: Engine, log: FileLog, db_alias: str
) -> None:
    columns = [column for column in Job.__table__.c if column.key != "run_at"]
    with Session(engine) as session, session.begin():
        enqueue(session, Job, jobs())
        made = session.execute(select(*columns).order_by(Job.id)).all()
        session.query(Job).delete()

    with statements_seen(engine) as seen:
        load_of(engine, log).run()

    with Session(engine) as session:
        assert session.execute(select(*columns).order_by(Job.id)).all() == made
        assert len(claim(session, Job, owner="w", limit=20)) == 10
    assert (db_alias == "postgresql") == (not any("INSERT" in statement for statement in seen))


def test_rows_may_have_a_priority_and_a_time_of_their_own(engine: Engine, log: FileLog) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    east = later.astimezone(timezone(timedelta(hours=5)))

    load_of(engine, log, [{"id": 2, "title": "own", "priority": 1, "run_at": east}]).run()

    with Session(engine) as session:
        job = session.scalars(select(Job)).one()
        assert (job.priority, job.run_at) == (1, later)


@pytest.mark.only_on("postgresql")
def test_the_planner_knows_of_a_load_that_is_finished(engine: Engine, log: FileLog) -> None:
    load_of(engine, log, jobs(5_000), batch_size=2_500, visible="at the end").run()

    known = "SELECT reltuples FROM pg_class WHERE oid = CAST(:table AS regclass)"
    with engine.connect() as connection:
        assert connection.scalar(text(known), {"table": Job.__tablename__}) == 5_000


def test_no_job_is_claimable_before_all_are_loaded_whoever_goes_on(
    engine: Engine, new_log: Callable[[], Log]
) -> None:
    seen: list[dict[str, int]] = []

    def look(progress: Any) -> None:
        seen.append(statuses(engine))
        if len(seen) == 2:
            raise Killed

    first = load_of(engine, new_log(), visible="at the end")
    first.progress = look
    with pytest.raises(Killed):
        first.run()
    again = load_of(engine, new_log())  # its own word does not count any more
    again.progress = look
    again.run()

    assert seen == [{"loading": number} for number in (3, 6, 9, 10)]
    assert statuses(engine) == {S.UPLOADED: 10}


def test_a_load_that_is_killed_while_jobs_become_claimable_goes_on(
    engine: Engine, new_log: Callable[[], Log]
) -> None:
    own = make_engine(engine.url)
    left = [2]

    @event.listens_for(own, "before_cursor_execute")
    def die(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        left[0] -= statement.startswith("UPDATE video ")
        if left[0] < 0:
            raise Killed

    with pytest.raises(Killed):
        load_of(own, new_log(), visible="at the end").run()
    assert statuses(engine) == {S.UPLOADED: 6, "loading": 4}
    with Session(engine) as session, session.begin():
        claim(session, Job, owner="w", limit=2)

    load_of(engine, new_log()).run()

    assert statuses(engine) == {S.UPLOADED: 8, S.CHECKING: 2}
    load_of(engine, new_log()).rollback()
    assert statuses(engine) == {}
    own.dispose()
