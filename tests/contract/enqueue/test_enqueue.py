"""Jobs are inserted in bulk, or by plain SQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, claim, enqueue
from tests.models import Dog, Email, Order, Task, add_emails, add_tasks, names
from tests.support import statements_seen


def test_enqueue_inserts_in_bulk_in_order_with_priority_and_time(session: Session) -> None:
    yesterday = datetime.now(timezone(timedelta(hours=5))) - timedelta(days=1)

    def rows() -> Iterator[dict[str, object]]:
        yield {"name": "own", "priority": -1}
        for number in range(2_500):
            yield {"name": str(number)}

    inserted = enqueue(session, Task, rows(), priority=4, run_at=yesterday)
    session.commit()

    tasks = claim(session, Task, owner="w", limit=3_000)
    assert inserted == 2_501
    assert names(tasks) == ["own", *map(str, range(2_500))]
    assert (tasks[0].priority, tasks[1].priority, tasks[1].run_at) == (-1, 4, yesterday)


@pytest.mark.parametrize(
    ("entity", "row", "options", "words"),
    [
        (Email, {"recipient": "a"}, {"priority": 1}, "PriorityMixin"),
        (Email, {"recipient": "a", "colour": 1}, {}, "Email has no column colour"),
        (Email, {"recipient": "a"}, {"run_at": datetime.now(UTC)}, "ScheduleMixin"),
        (Task, {"name": "a"}, {"run_at": datetime(2020, 1, 1)}, "time zone"),
        (Task, Task(name="a"), {}, r"a row must map .* for entities use"),
        (Dog, {"id": 1}, {"skip_duplicates": True}, "a row of Dog is spread over 2 tables"),
    ],
)
def test_enqueue_refuses_what_the_model_has_no_place_for(
    session: Session, entity: Any, row: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        enqueue(session, entity, [row], **options)


def test_enqueue_sets_renamed_attributes(session: Session) -> None:
    enqueue(session, Order, [{"status": "paid", "owner": 1, "priority": "vip"}], priority=3)

    order = session.scalars(select(Order)).one()
    assert (order.status, order.priority, order.job_priority) == ("paid", "vip", 3)


def test_times_read_back_as_aware_utc(session: Session, other: Session) -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=-7)))
    add_tasks(session, "a", run_at=when)

    loaded = other.scalars(select(Task)).one()

    assert loaded.run_at == when
    assert loaded.run_at.tzinfo is UTC
    with pytest.raises(ArgumentError, match="time zone"):
        loaded.run_at = datetime(2030, 1, 1)


def test_jobs_are_enqueued_by_a_listener_of_a_flush(session: Session) -> None:
    @event.listens_for(session, "after_flush_postexec", once=True)
    def follow_up(session: Session, context: object) -> None:
        enqueue(session, Email, [{"recipient": "b"}])

    add_emails(session, "a")
    session.commit()

    assert set(session.scalars(select(Email.recipient))) == {"a", "b"}


def test_rows_that_name_different_columns_are_inserted_in_their_order(session: Session) -> None:
    rows: list[dict[str, Any]] = [{"name": "a"}, {"name": "b", "priority": 1}, {"name": "c"}]

    enqueue(session, Task, rows, priority=2)

    assert names(claim(session, Task, owner="w", limit=3)) == ["b", "a", "c"]
    assert rows == [{"name": "a"}, {"name": "b", "priority": 1}, {"name": "c"}]


@pytest.mark.parametrize("skip", [False, True])
def test_a_chunk_is_one_statement_to_the_server(
    engine: Engine, session: Session, db_alias: str, skip: bool
) -> None:
    server = db_alias in ("mysql", "mariadb")

    def sent() -> int:
        status = "SHOW SESSION STATUS LIKE 'Com_insert'"
        return int(session.execute(text(status)).one()[1]) if server else 0

    before = sent()
    rows = [{"recipient": str(number)} for number in range(500)]
    with statements_seen(engine) as seen:
        enqueue(session, Email, rows, skip_duplicates=skip)

    inserts = sent() - before if server else sum(line.startswith("INSERT") for line in seen)
    assert inserts == 1


# Jobs that are inserted by plain SQL, which knows nothing of the mixins' defaults

PLAIN = text("INSERT INTO task (name) VALUES ('plain'), ('sql'), ('last')")


def test_a_plain_row_is_due_at_the_databases_time_and_behind_those_before_it(
    session: Session,
) -> None:
    enqueue(session, Task, [{"name": "first"}])
    session.commit()
    session.execute(PLAIN)
    session.commit()

    tasks = claim(session, Task, owner="w", limit=4)

    assert names(tasks) == ["first", "plain", "sql", "last"]  # equal times: by the primary key
    assert all(abs(datetime.now(UTC) - task.run_at) < timedelta(minutes=1) for task in tasks)


def test_a_time_in_another_zone_of_the_connection_is_still_utc(
    session: Session, db_alias: str
) -> None:
    zone = {"postgresql": "SET TIME ZONE '+09:00'", "sqlite": "SELECT 1"}
    session.execute(text(zone.get(db_alias, "SET time_zone = '+09:00'")))

    session.execute(PLAIN)

    due = session.scalars(select(Task.run_at)).first()
    assert due is not None
    assert abs(datetime.now(UTC) - due.replace(tzinfo=due.tzinfo or UTC)) < timedelta(minutes=1)
    session.connection().invalidate()  # the zone is that of the connection
