"""A queue in use gets groups, expiry and a rate, and loses them, in an application's env.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, inspect
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ExpiryMixin, JobMixin, JobQueue, RetryMixin, is_transient, utc_now
from sa_jobqueue.groups import GroupMixin, WaitingMixin, after
from sa_jobqueue.rates import Rate, rate_table
from sa_jobqueue.worker import Worker
from tests.migration.support import column_names, index_names
from tests.migration.test_autogenerate import HOOK, bill, body, generate
from tests.migration.test_autogenerate import project as project  # a fixture
from tests.running import running
from tests.support import until

HOUR = 3_600_000_000  # in microseconds


def test_a_queue_in_use_gets_groups_expiry_and_a_rate_and_loses_them_while_a_worker_runs(
    project: Config, engine: Engine
) -> None:
    project.attributes["settings"] = HOOK
    before = bill(JobMixin, RetryMixin)
    generate(project, "a1", before.metadata)
    command.upgrade(project, "head")
    columns, indexes = column_names(engine, "bill"), index_names(engine, "bill")
    later = bill(WaitingMixin, GroupMixin, ExpiryMixin, JobMixin, RetryMixin)
    rate_table(later.metadata)
    handled = threading.Semaphore(0)

    def add_and_wait() -> None:
        with Session(engine) as session, session.begin():
            session.add(before(amount=0))
        assert handled.acquire(timeout=30)

    with running(engine, {before: lambda job: handled.release()}):
        add_and_wait()
        generate(project, "a2", later.metadata)
        until_unlocked(lambda: command.upgrade(project, "head"))
        add_and_wait()
        assert body(generate(project, "a3"), "upgrade") == "pass"

    assert use(engine, later) == [1, 2, 3]

    with running(engine, {before: lambda job: handled.release()}):
        until_unlocked(lambda: command.downgrade(project, "a1"))
        add_and_wait()
    assert column_names(engine, "bill") == columns
    assert index_names(engine, "bill") == indexes
    assert {"job_groups", "job_rates"}.isdisjoint(inspect(engine).get_table_names())


def until_unlocked(migrate: Callable[[], None]) -> None:
    """Migrate, again while SQLite's file is locked: who has read waits for no writer."""

    def has_migrated() -> bool:
        try:
            migrate()
        except OperationalError as error:
            if not is_transient(error):
                raise
            return False
        return True

    until(has_migrated)


def use(engine: Engine, entity: Any) -> list[int]:
    """Run a group under a rate, and wait until a job that is too late is cancelled."""
    handled: list[int] = []
    with Session(engine) as session, session.begin():
        session.add(late := entity(amount=0, expires_at=utc_now(), run_at=utc_now(HOUR)))
        after(session, [entity(amount=1), entity(amount=2)], then=entity(amount=3))
        late_id = late.id
    rated = JobQueue(entity, rate=Rate(10, per=timedelta(seconds=1), burst=3))

    def is_cancelled() -> bool:
        Worker(engine, rated, lambda job: handled.append(job.amount), drain=True).run()
        with Session(engine) as session:
            return bool(session.get_one(entity, late_id).status == "cancelled")

    until(is_cancelled)
    return handled
