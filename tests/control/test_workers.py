"""The rows of workers, with their liveness."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Engine, MetaData, update
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, OwnerState, utc_now
from sa_jobqueue.control import (
    control_tables,
    pause,
    read_control,
    register_worker,
    workers,
)

from .conftest import TABLES, Letter, Parcel, listed


def test_the_lock_of_a_worker_tells_whether_it_is_alive(engine: Engine, session: Session) -> None:
    def states() -> dict[str, OwnerState]:
        return {worker.name: worker.state for worker in listed(session)}

    with Owner(engine) as owner:
        name = owner.name
        register_worker(session, name, [Letter], tables=TABLES)
        register_worker(session, "plain", [Letter], tables=TABLES)
        session.commit()
        assert states() == {name: OwnerState.ALIVE, "plain": OwnerState.UNKNOWN}

    assert states() == {name: OwnerState.DEAD, "plain": OwnerState.UNKNOWN}


def test_a_dead_worker_is_forgotten_after_a_day_and_a_living_one_never(
    engine: Engine, session: Session, new_session: Callable[[], Session]
) -> None:
    with Owner(engine) as owner:
        for name in (owner.name, "killed", "new"):
            register_worker(session, name, [Letter], tables=TABLES)
        old = utc_now(-(timedelta(days=2) // timedelta(microseconds=1)))
        table = TABLES.workers
        session.execute(update(table).where(table.c.name != "new").values(seen_at=old))
        session.commit()

        register_worker(session, "last", [Letter], tables=TABLES)
        session.commit()

        left = {worker.name for worker in listed(session)}
        assert left == {owner.name, "new", "last"}


def test_queues_tell_which_control_tables_are_theirs(session: Session) -> None:
    other = MetaData()
    control_tables(other)  # in the same process
    pause(session, Letter)

    register_worker(session, "w-1", iter([Letter, Parcel]))

    (found,) = workers(session, tables=TABLES)
    assert found.queues == ("controlled_letter", "controlled_parcel")
    assert read_control(session, iter([Parcel, Letter]), owner="w-1").is_paused(Letter)
