"""Jobs are inserted in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.orm import ORMExecuteState, Session

from sa_jobqueue import ArgumentError, claim, complete, enqueue
from tests.models import Animal, Cat, Email, Order, Task, add_emails, add_tasks, names


def test_enqueue_inserts_in_bulk_with_priority_and_time(session: Session) -> None:
    yesterday = datetime.now(timezone(timedelta(hours=5))) - timedelta(days=1)

    def rows() -> Iterator[dict[str, object]]:
        yield {"name": "own", "priority": -1}
        for number in range(2_500):
            yield {"name": str(number)}

    inserted = enqueue(session, Task, rows(), priority=4, run_at=yesterday)
    session.commit()

    first, second = claim(session, Task, owner="w", limit=2)
    assert inserted == 2_501
    assert (names([first, second]), second.priority) == (["own", "0"], 4)
    assert second.run_at == yesterday


def test_enqueued_jobs_are_first_in_first_out(session: Session) -> None:
    enqueue(session, Task, ({"name": str(number)} for number in range(1_200)))

    assert names(claim(session, Task, owner="w", limit=1_200)) == [str(n) for n in range(1_200)]


def test_enqueue_refuses_what_the_model_has_no_column_for(session: Session) -> None:
    with pytest.raises(ArgumentError, match="PriorityMixin"):
        enqueue(session, Email, [{"recipient": "a"}], priority=1)
    with pytest.raises(ArgumentError, match="ScheduleMixin"):
        enqueue(session, Email, [{"recipient": "a"}], run_at=datetime.now(UTC))
    with pytest.raises(ArgumentError, match="time zone"):
        enqueue(session, Task, [{"name": "a"}], run_at=datetime(2020, 1, 1))
    with pytest.raises(ArgumentError, match=r"a row must map .* for entities use"):
        enqueue(session, Task, [Task(name="a")])  # type: ignore[list-item]


def test_enqueue_sets_renamed_attributes(session: Session) -> None:
    enqueue(session, Order, [{"status": "paid", "owner": 1, "priority": "vip"}], priority=3)

    order = session.scalars(select(Order)).one()
    assert (order.status, order.priority, order.job_priority) == ("paid", "vip", 3)


def test_no_job_starves_under_steady_inserts(session: Session) -> None:
    """Jobs that are inserted later do not overtake retried and scheduled jobs."""
    add_tasks(session, "old")
    seen = []

    for number in range(5):
        add_tasks(session, f"new{number}")
        seen += names(claimed := claim(session, Task, owner="w"))
        complete(session, claimed)
        session.commit()

    assert seen == ["old", "new0", "new1", "new2", "new3"]


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


def test_enqueue_leaves_to_the_mapper_what_the_mapper_writes(session: Session) -> None:
    enqueue(session, Cat, [{"id": 9}])
    session.commit()

    (cat,) = claim(session, Animal, owner="w")
    assert (type(cat), cat.status) == (Cat, "claimed")


def test_hooks_of_the_session_see_what_is_enqueued(session: Session) -> None:
    seen: list[bool] = []

    @event.listens_for(session, "do_orm_execute")
    def hook(state: ORMExecuteState) -> None:
        seen.append(state.is_insert)

    enqueue(session, Email, [{"recipient": "a"}])

    assert seen == [True]


@pytest.mark.only_on("mysql", "mariadb")
def test_a_chunk_is_one_statement_to_the_server(session: Session) -> None:
    def inserts() -> int:
        found = session.execute(text("SHOW SESSION STATUS LIKE 'Com_insert'")).one()
        return int(found[1])

    before = inserts()
    enqueue(session, Email, [{"recipient": str(number)} for number in range(500)])

    assert inserts() - before == 1
