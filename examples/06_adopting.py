"""A table with hand-written SKIP LOCKED claims becomes a queue while its workers go on.

    python examples/06_adopting.py
    python examples/06_adopting.py --url postgresql+psycopg2://user@host/database

The example runs on PostgreSQL, MySQL 8, MariaDB 10.6 and SQLite. SQLite has no SKIP LOCKED:
there the old workers claim by one UPDATE, under the write lock.

Old and new workers deliver side by side from one table. One of the old workers dies, and then
the old workers stop. One step is undone and made again. docs/adopting.md explains each step.
The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Engine, bindparam, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue import JobMixin, JobQueue, JobStatus, is_transient, reap
from sa_jobqueue.databases import database_of
from sa_jobqueue.migration import (
    backfill,
    create_job_indexes,
    drop_job_indexes,
    patiently,
    timestamp_type,
)

BATCH = 5
YEAR = timedelta(days=365)

T = TypeVar("T")


# -- before: a table, and workers that know nothing of sa_jobqueue ---------------

OLD_TABLES = (
    """CREATE TABLE example_delivery (
        id INTEGER NOT NULL PRIMARY KEY,
        address VARCHAR(100) NOT NULL,
        state VARCHAR(16) DEFAULT 'new' NOT NULL,
        locked_by VARCHAR(64),
        locked_at TIMESTAMP NULL
    )""",
    "CREATE INDEX ix_example_delivery_state ON example_delivery (state, id)",
    # The finish inserts a row; without a unique key, a repeated delivery would show.
    "CREATE TABLE example_delivered (delivery INTEGER NOT NULL, worker VARCHAR(64) NOT NULL)",
)
LOCK = text(
    "SELECT id FROM example_delivery WHERE state = 'new' ORDER BY id LIMIT :batch "
    "FOR UPDATE SKIP LOCKED"
)
MARK = text(
    "UPDATE example_delivery SET state = 'working', locked_by = :worker, "
    "locked_at = CURRENT_TIMESTAMP WHERE id IN :ids"
).bindparams(bindparam("ids", expanding=True))
#: LOCK and MARK in one statement, for a database with one writer at a time.
TAKE = text(
    "UPDATE example_delivery SET state = 'working', locked_by = :worker, "
    "locked_at = CURRENT_TIMESTAMP WHERE id IN (SELECT id FROM example_delivery "
    "WHERE state = 'new' ORDER BY id LIMIT :batch) RETURNING id"
)
FINISH = text("UPDATE example_delivery SET state = 'sent' WHERE id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
LINE = text("INSERT INTO example_delivered (delivery, worker) VALUES (:delivery, :worker)")
ORDER = text("INSERT INTO example_delivery (id, address) VALUES (:id, 'somewhere')")


def old_claim(session: Session, worker: str) -> list[int]:
    """Claim the next deliveries as the old workers do."""
    if not database_of(session.connection()).skip_locked:
        return list(session.execute(TAKE, {"batch": BATCH, "worker": worker}).scalars())
    ids = list(session.execute(LOCK, {"batch": BATCH}).scalars())
    if ids:
        session.execute(MARK, {"worker": worker, "ids": ids})
    return ids


def old_turn(engine: Engine, worker: str) -> bool:
    """Claim, deliver and finish a batch; tell whether a delivery was claimed."""
    ids = run_transaction(engine, lambda session: old_claim(session, worker))

    def finish(session: Session) -> None:
        session.execute(FINISH, {"ids": ids})
        log_deliveries(session, worker, ids)

    if ids:
        run_transaction(engine, finish)
    return bool(ids)


def log_deliveries(session: Session, worker: str, ids: Sequence[int]) -> None:
    """Insert a row for each delivery."""
    session.execute(LINE, [{"delivery": number, "worker": worker} for number in ids])


def run_transaction(engine: Engine, work: Callable[[Session], T]) -> T:
    """Run a transaction; repeat it after a deadlock."""
    while True:
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)
        except DBAPIError as error:
            if not is_transient(error):
                raise


# -- after: a model of the same table --------------------------------------------


class Base(DeclarativeBase):
    """The base of this example's tables."""


#: The status and the owner are the old columns. The time is a new column, because a fence
#: needs microseconds and UTC, and the old workers' locked_at has neither.
Ours = JobMixin.named(status="state", owner="locked_by", owner_date="claimed_at")
WORDS = {
    JobStatus.UNCLAIMED: "new",
    JobStatus.CLAIMED: "working",
    JobStatus.DONE: "sent",
    JobStatus.FAILED: "broken",
}


class Delivery(Ours, Base):  # type: ignore[misc, valid-type]  # mypy knows no call as a base
    """A delivery, with the table's own status words."""

    __tablename__ = "example_delivery"
    __queue_args__ = {"names": WORDS}  # noqa: RUF012 - read once, as __table_args__ is

    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str] = mapped_column(String(100))


deliveries = JobQueue(Delivery)


def new_turn(engine: Engine, worker: str) -> bool:
    """Claim, deliver and finish a batch with sa_jobqueue; the finish is fenced."""
    claimed = run_transaction(
        engine, lambda session: deliveries.claim(session, owner=worker, limit=BATCH)
    )

    def finish(session: Session) -> None:
        deliveries.complete(session, claimed)
        log_deliveries(session, worker, [delivery.id for delivery in claimed])

    if claimed:
        run_transaction(engine, finish)
    return bool(claimed)


# -- the steps -------------------------------------------------------------------


@contextmanager
def migration(engine: Engine) -> Iterator[Operations]:
    """Give the `op` of an Alembic revision; these changes need no transaction."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield Operations(MigrationContext.configure(connection))


def expand(engine: Engine) -> None:
    """Add the missing column and indexes while others write to the table."""
    claimed_at = Column("claimed_at", timestamp_type())
    with migration(engine) as op:
        patiently(op, lambda: op.add_column("example_delivery", claimed_at))
        create_job_indexes(op, "example_delivery", Ours, queue_args={"names": WORDS})


def contract(engine: Engine) -> None:
    """Undo expand() while the old workers go on."""
    with migration(engine) as op:
        drop_job_indexes(op, "example_delivery")
        patiently(op, lambda: op.drop_column("example_delivery", "claimed_at"))


def reap_old_claims(engine: Engine) -> int:
    """Reap the claims of dead old workers; call this only after all old workers have stopped."""
    with migration(engine) as op:
        left = "state = 'working' AND claimed_at IS NULL"
        backfill(op, "example_delivery", left, values={"claimed_at": text("'1970-01-01'")})
    return len(run_transaction(engine, lambda session: reap(session, Delivery, lease=YEAR)))


def tidy(engine: Engine) -> None:
    """Drop the column and the index of the old workers; this step cannot be undone."""
    with migration(engine) as op:
        patiently(
            op, lambda: op.drop_index("ix_example_delivery_state", table_name="example_delivery")
        )
        patiently(op, lambda: op.drop_column("example_delivery", "locked_at"))


class Crew:
    """Threads that work until they are told to stop."""

    def __init__(self, engine: Engine, turn: Callable[[Engine, str], bool], *names: str) -> None:
        self.engine = engine
        self.turn = turn
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(name,), daemon=True) for name in names
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, name: str) -> None:
        while not self._stop.is_set():
            if not self.turn(self.engine, name):
                time.sleep(0.01)

    def stop(self) -> None:
        """Stop each thread after its turn."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Producer(Crew):
    """The application, which inserts deliveries by plain SQL all the time."""

    def __init__(self, engine: Engine) -> None:
        self.inserted = 0
        super().__init__(engine, self._insert, "application")

    def _insert(self, engine: Engine, name: str) -> bool:
        ids = range(self.inserted + 1, self.inserted + 1 + BATCH)
        lines = [{"id": number} for number in ids]
        run_transaction(engine, lambda session: session.execute(ORDER, lines))
        self.inserted += BATCH
        time.sleep(0.005)
        return True


def delivered(engine: Engine, prefix: str) -> int:
    """Count the deliveries of workers whose names begin with a prefix."""
    with engine.connect() as connection:
        query = text("SELECT COUNT(*) FROM example_delivered WHERE worker LIKE :names")
        return int(connection.execute(query, {"names": f"{prefix}%"}).scalar_one())


def until_delivered(engine: Engine, prefix: str, more: int = 50) -> None:
    """Wait until workers with the prefix have made some more deliveries."""
    wanted = delivered(engine, prefix) + more
    while delivered(engine, prefix) < wanted:
        time.sleep(0.02)


def main() -> None:
    """Adopt the table step by step, and prove that nothing was lost or delivered twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    with tempfile.TemporaryDirectory() as folder:
        url = parser.parse_args().url or f"sqlite:///{Path(folder) / 'shop.db'}"
        engine = create_engine(url)
        make_old_tables(engine)
        adopt(with_read_committed(engine))
        drop_tables(engine)
        engine.dispose()


def with_read_committed(engine: Engine) -> Engine:
    """Use READ COMMITTED; otherwise the old workers deadlock on InnoDB's gap locks."""
    with engine.connect() as connection:
        if database_of(connection).one_writer:
            return engine
    return engine.execution_options(isolation_level="READ COMMITTED")


def adopt(engine: Engine) -> None:
    """Make all steps while the application inserts; undo and repeat one step."""
    producer = Producer(engine)
    old = Crew(engine, old_turn, "old-1", "old-2")
    until_delivered(engine, "old")
    print("0. old workers deliver")

    expand(engine)
    until_delivered(engine, "old")
    print("1. a column and two indexes are added; old workers deliver")

    new = Crew(engine, new_turn, "new-1", "new-2")
    until_delivered(engine, "old")
    until_delivered(engine, "new")
    print("2. old and new workers deliver side by side")

    left: list[int] = []
    while not left:  # what old-3 claims before it dies
        left = run_transaction(engine, lambda session: old_claim(session, "old-3"))
    old.stop()
    until_delivered(engine, "new")
    print("3. only new workers deliver")

    reaped_all = reap_old_claims(engine) == len(left)
    print(f"4. the claims of a dead old worker are claimable again: {reaped_all}")

    new.stop()
    old = Crew(engine, old_turn, "old-4")
    contract(engine)
    until_delivered(engine, "old-4")
    print("   a step back: the column and the indexes are dropped, an old worker delivers alone")

    expand(engine)
    new = Crew(engine, new_turn, "new-3", "new-4")
    until_delivered(engine, "new-4")
    old.stop()
    tidy(engine)
    until_delivered(engine, "new-4")
    print("5. the old index and the old column are dropped; new workers deliver")

    producer.stop()
    while count_unsent(engine):
        time.sleep(0.02)
    new.stop()
    prove(engine, producer.inserted)


def make_old_tables(engine: Engine) -> None:
    """Create the tables of the hand-written queue."""
    drop_tables(engine)
    with engine.begin() as connection:
        for statement in OLD_TABLES:
            connection.execute(text(statement))


def drop_tables(engine: Engine) -> None:
    """Drop the tables of the example."""
    with engine.begin() as connection:
        for table in ("example_delivery", "example_delivered"):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))


def count_unsent(engine: Engine) -> int:
    """Count the deliveries that are not sent."""
    with engine.connect() as connection:
        query = text("SELECT COUNT(*) FROM example_delivery WHERE state <> 'sent'")
        return int(connection.execute(query).scalar_one())


def prove(engine: Engine, inserted: int) -> None:
    """Count the deliveries in the database, independently of the workers' own counts."""
    with engine.connect() as connection:
        lines = connection.execute(text("SELECT delivery, worker FROM example_delivered")).all()
    kinds = Counter(line.worker.partition("-")[0] for line in lines)
    times = Counter(line.delivery for line in lines)
    print(f"both have delivered: {kinds['old'] > 0 and kinds['new'] > 0}")
    print(f"inserted and delivered are the same: {times.keys() == set(range(1, inserted + 1))}")
    print(f"lost: {inserted - len(times)}, delivered twice: {len(lines) - len(times)}")


if __name__ == "__main__":
    main()

# Output:
#
# 0. old workers deliver
# 1. a column and two indexes are added; old workers deliver
# 2. old and new workers deliver side by side
# 3. only new workers deliver
# 4. the claims of a dead old worker are claimable again: True
#    a step back: the column and the indexes are dropped, an old worker delivers alone
# 5. the old index and the old column are dropped; new workers deliver
# both have delivered: True
# inserted and delivered are the same: True
# lost: 0, delivered twice: 0
