"""A table's own columns serve a queue as they are: words, enums, times, priorities."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import (
    URL,
    Column,
    DateTime,
    Engine,
    Enum,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    null,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    claim,
    claimed_by,
    complete,
    count_by_status,
    enqueue,
    renew,
    start_round,
)

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Count, Listed, list_jobs, overview
from sa_jobqueue.events import listen
from sa_jobqueue.migration import timestamp_type
from tests.contract.asyncio.support import (
    DRIVERS_OF_POSTGRESQL,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.support import STRATEGIES, make_engine

WORDS = {
    "unclaimed": "waiting_for_a_delivery",
    "claimed": "out_for_delivery",
    "done": "DELIVERED",
    "failed": "lost",
    "cancelled": "sent_back",
}


class State(enum.Enum):
    """The words of the table are the names of the members, as SQLAlchemy stores them."""

    waiting_for_a_delivery = 1
    out_for_delivery = 2
    DELIVERED = 3
    lost = 4
    sent_back = 5
    draft = 6


TYPES: dict[str, Callable[[], TypeEngine[Any]]] = {
    "String": lambda: String(64),
    "native enum of words": lambda: Enum(*WORDS.values(), "draft", name="own_state"),
    "native enum of members": lambda: Enum(State, name="own_state"),
    "text for members": lambda: Enum(State, native_enum=False, length=64),
}


def queue_of(type_: TypeEngine[Any]) -> Any:
    """Map a queue whose status is a column of the class's own, which may be NULL."""

    class Base(DeclarativeBase):
        metadata = MetaData()

    class Parcel(JobMixin.named(status="state"), RetryMixin, RoundMixin, PriorityMixin, Base):  # type: ignore[misc]  # a call
        __tablename__ = "own_status"
        __queue_args__ = {"names": WORDS, "failed_index": True, "max_attempts": 2}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str | None] = mapped_column(String(9))
        state = mapped_column(type_, index=True)

    return Parcel


def shown(parcel: Any, status: str) -> Any:
    """Return what an entity is to show for a status."""
    word = WORDS[status]
    return State[word] if parcel.__table__.c.state.type.python_type is State else word


def live(session: Session, parcel: Any, strategy: str = "auto") -> None:
    """Lead jobs through every status, and look at what entities, rows and counts show."""
    names = ["a", "b", "c", "d"]
    enqueue(session, parcel, [{"name": name} for name in names], priority=3)
    told: list[str | None] = []
    for name in ("after_enqueue", "after_finish"):
        listen(parcel, name, lambda event: told.extend(job.status for job in event.jobs))
    session.add(parcel(name="e"))
    session.flush()
    session.add(parcel(name="none", state=null()))
    session.commit()
    queue = JobQueue(parcel, strategy=strategy)

    (first,) = queue.claim(session, owner="w", limit=1)
    during = "unclaimed" if strategy == "held" else "claimed"
    assert (first.name, first.state) == ("e", shown(parcel, during))
    queue.complete(session, first)
    assert first.state == shown(parcel, "done")
    session.commit()
    assert {WORDS["unclaimed"], WORDS["done"]} <= set(told) <= {*WORDS.values(), None}

    jobs = queue.claim(session, owner="w", limit=9)
    assert [job.name for job in jobs] == names
    queue.fail(session, jobs[:1], retry_in=timedelta(0))
    queue.release(session, jobs[1:2])
    queue.cancel_claimed(session, jobs[2:3])
    queue.complete(session, jobs[3:])
    session.commit()
    after = ("unclaimed", "unclaimed", "cancelled", "done")
    assert [job.state for job in jobs] == [shown(parcel, status) for status in after]

    again = queue.claim(session, owner="w", limit=9)
    queue.fail(session, [job for job in again if job.name == "a"])
    if strategy != "held":
        session.commit()
        assert len(claimed_by(session, parcel, "w")) == 1
        assert len(queue.reap(session, max_runtime=timedelta(0))) == 1
    session.commit()
    assert counts(session, parcel) == {"unclaimed": 1, "done": 2, "failed": 1, "cancelled": 1}
    (seen,) = overview(session, [queue])
    assert (seen.due, seen.failed) == (Count(1), Count(1))
    for listed in Listed:
        list_jobs(session, queue, listed, limit=9)

    queue.retry(session, jobs[:1])
    queue.cancel(session, jobs[1:2])
    session.commit()
    assert counts(session, parcel) == {"unclaimed": 1, "done": 2, "cancelled": 2}
    start_round(session, parcel)
    session.commit()
    assert counts(session, parcel) == {"unclaimed": 5}
    assert queue.stats(session).due == Count(5)
    assert queue.position(session, jobs[1]) is not None
    rows = queue.claim_rows(session, owner="w", limit=9)
    assert {row.state for row in rows} == {shown(parcel, during)}
    session.commit()


def counts(session: Session, parcel: Any) -> dict[str, int]:
    statuses = {word: status for status, word in WORDS.items()}
    return {statuses[word]: n for word, n in count_by_status(session, parcel).items() if n}


@pytest.fixture
def engine(db_url: URL) -> Any:
    engine = make_engine(db_url)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("kind", TYPES)
def test_an_own_status_of_any_type_serves_every_verb(
    engine: Engine, db_alias: str, kind: str
) -> None:
    parcel = queue_of(TYPES[kind]())
    parcel.metadata.drop_all(engine)
    parcel.metadata.create_all(engine)
    for strategy in STRATEGIES[db_alias]:
        with Session(engine, expire_on_commit=False) as session:
            live(session, parcel, strategy)
            for table in parcel.metadata.sorted_tables:
                session.execute(delete(table))
            session.commit()
    parcel.metadata.drop_all(engine)


@pytest.mark.parametrize("driver", DRIVERS_OF_POSTGRESQL)
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "String"])
@in_event_loop
async def test_an_own_enum_serves_by_every_driver(db_url: URL, driver: str, kind: str) -> None:
    parcel = queue_of(TYPES[kind]())
    engine = make_async_engine(db_url, driver)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(parcel.metadata.drop_all)
            await connection.run_sync(parcel.metadata.create_all)
        async with new_async_session(engine) as session:
            await session.run_sync(live, parcel)
        async with engine.begin() as connection:
            await connection.run_sync(parcel.metadata.drop_all)
    finally:
        await engine.dispose()


def test_each_row_comes_into_a_round_whatever_the_order_of_an_enum_in_its_key(
    engine: Engine,
) -> None:
    """MySQL sorts an ENUM by the numbers of its words, and compares it by the words."""

    class Base(DeclarativeBase):
        metadata = MetaData()

    class Rack(JobMixin, RoundMixin, Base):
        __tablename__ = "own_key"
        hall: Mapped[str] = mapped_column(Enum("west", "east", name="own_hall"), primary_key=True)
        number: Mapped[int] = mapped_column(primary_key=True)

    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all(Rack(hall=hall, number=n) for hall in ("west", "east") for n in range(9))
        session.commit()

    start_round(engine, Rack, chunk=4)

    with Session(engine) as session:
        assert session.scalars(select(Rack.round)).all() == [1] * 18
    Base.metadata.drop_all(engine)


def of_this_test(name: str | None, kind: str, parents: object) -> bool:
    """Leave the tables of other tests out of a comparison."""
    return kind != "table" or "own_status" in str(name)


@pytest.mark.parametrize("kind", TYPES)
def test_autogenerate_leaves_an_own_status_and_its_index_as_they_are(
    engine: Engine, kind: str
) -> None:
    parcel, old = queue_of(TYPES[kind]()), MetaData()
    own = Column("state", TYPES[kind](), index=True)
    key, name = Column("id", Integer, primary_key=True), Column("name", String(9))
    Table("own_status", old, key, name, own)
    parcel.metadata.drop_all(engine)
    old.create_all(engine)

    with engine.connect() as connection:
        opts = {"compare_type": True, "include_name": of_this_test}
        context = MigrationContext.configure(connection, opts=opts)
        changes = compare_metadata(context, parcel.metadata)

    # A changed column would be a list.
    kinds = {"several" if isinstance(change, list) else change[0] for change in changes}
    assert kinds == {"add_table", "add_column", "add_index"}
    old.drop_all(engine)


class Utc(TypeDecorator[datetime]):
    """Store UTC, as many projects do."""

    impl: Any = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class PreciseUtc(Utc):
    impl: Any = timestamp_type()
    cache_ok = True


class Seconds(PreciseUtc):
    """Drop what is less than a second."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC, microsecond=0)


def queue_with(type_: TypeEngine[Any]) -> Any:
    """Map a queue whose owner_date has this type."""

    class Base(DeclarativeBase):
        metadata = MetaData()

    class Dated(JobMixin, Base):
        __tablename__ = "owner_date_type"
        id: Mapped[int] = mapped_column(primary_key=True)
        owner_date = mapped_column("taken_at", type_, nullable=True)

    return Dated


@pytest.mark.parametrize("type_", [Utc(), PreciseUtc(), Seconds()], ids=lambda t: type(t).__name__)
def test_a_type_of_ones_own_is_claimed_renewed_and_finished_or_refused(
    engine: Engine, db_alias: str, type_: TypeEngine[Any]
) -> None:
    cls = queue_with(type_)
    cls.metadata.drop_all(engine)
    cls.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([cls(), cls()])
        session.commit()
        if type(type_) is Seconds or (type(type_) is Utc and db_alias in ("mysql", "mariadb")):
            for take in (JobQueue(cls).claim, JobQueue(cls).claim_rows):
                with pytest.raises(ArgumentError, match="owner_date loses microseconds"):
                    take(session, owner="w", limit=2)
        else:
            jobs = claim(session, cls, owner="w", limit=2)
            session.commit()
            renew(session, jobs)
            complete(session, jobs)
            session.commit()
            assert [job.status for job in jobs] == ["done"] * 2
    cls.metadata.drop_all(engine)
