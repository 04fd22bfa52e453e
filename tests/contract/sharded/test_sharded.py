"""ShardedSession: jobs go where shard_chooser says, and every verb stays on the shard it means."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, String, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.ext.horizontal_shard import ShardedSession, set_shard_id
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import sa_jobqueue.asyncio as in_asyncio
from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    cancel,
    cancel_claimed,
    claim,
    claimed_by,
    complete,
    control,
    count_by_status,
    enqueue,
    events,
    fail,
    position,
    reap,
    release,
    renew,
    reprioritize,
    retry,
    stats,
    wait,
)
from sa_jobqueue.doctor import examine
from sa_jobqueue.worker import Worker
from sa_jobqueue.workflow import Workflow
from tests.contract.asyncio.support import make_async_engine
from tests.models import Cat
from tests.plugin import Databases, chosen_databases
from tests.running import ASYNC_DRIVERS, running
from tests.support import as_new, make_engine, only_seeing, statements_seen, with_empty_tables


class Base(DeclarativeBase):
    pass


class Parcel(JobMixin, PriorityMixin, RetryMixin, Base):
    """A queue whose rows live where their region says."""

    __tablename__ = "sharded_parcel"
    __queue_args__ = {"notify": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    region: Mapped[str | None] = mapped_column(String(10))
    code: Mapped[str | None] = mapped_column(String(10), unique=True)
    text: Mapped[str | None] = mapped_column(String(10))


REGIONS = ("eu", "us", "file")

#: What names a shard in a claim.
EU, US, FILE = (set_shard_id(region) for region in REGIONS)


def choose(mapper: Any, instance: Any, clause: Any = None) -> str:
    """Choose a shard for a parcel; one without a region stays in the file."""
    instance.region = instance.region or "file"
    found: str = instance.region
    return found


ROUTING: dict[str, Any] = {
    "shard_chooser": choose,
    "identity_chooser": lambda *_, **__: REGIONS,
    "execute_chooser": lambda _: REGIONS,
    "expire_on_commit": False,
}


@pytest.fixture(scope="module")
def engines(
    databases: Databases, db_alias: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Engine]]:
    """Two databases of one kind, and a file of SQLite."""
    server = databases.run.servers[db_alias]
    second = f"{databases.run.prefix}_{databases.worker}_us"
    file: Path = tmp_path_factory.mktemp("shard") / "file.db"
    made = {
        "eu": make_engine(databases.url(db_alias)),
        "us": make_engine(databases.create(server, second)),
        "file": make_engine(f"sqlite:///{file}"),
    }
    yield made
    for engine in made.values():
        engine.dispose()
    server.drop_database(second)


@pytest.fixture
def shards(engines: dict[str, Engine]) -> dict[str, Engine]:
    """The databases with empty tables."""
    return {
        name: with_empty_tables(as_new(engine), Base.metadata) for name, engine in engines.items()
    }


@pytest.fixture
def session(shards: dict[str, Engine]) -> Iterator[ShardedSession]:
    with ShardedSession(shards=shards, **ROUTING) as session:
        yield session


def there(engine: Engine) -> list[tuple[Any, ...]]:
    """Return code and status of each parcel of a database, as everybody sees them."""
    with Session(engine) as session:
        found = session.execute(select(Parcel.code, Parcel.status).order_by(Parcel.id))
        return list(map(tuple, found))


def add_parcels(session: Session, *codes: str) -> None:
    """Add a parcel with each code to each region, and commit."""
    both = itertools.product(codes, REGIONS)
    session.add_all(Parcel(region=region, code=code) for code, region in both)
    session.commit()


def claimed_everywhere(session: Session, **arguments: Any) -> list[Parcel]:
    """Claim a parcel in each region, and commit."""
    found = [
        job
        for region in (EU, US, FILE)
        for job in claim(session, Parcel, owner="w", options=[region], **arguments)
    ]
    session.commit()
    return found


# -- new jobs -------------------------------------------------------------------


def test_enqueue_asks_the_shard_chooser_as_session_add_does(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    session.add(Parcel(region="us", code="a"))
    count = enqueue(
        session,
        Parcel,
        ({"region": region, "code": code} for region, code in zip(REGIONS, "bcd", strict=True)),
        priority=3,
    )
    JobQueue(Parcel).enqueue(session, [{"code": "e"}, {"region": "eu", "code": "f", "priority": 1}])
    session.commit()

    assert count == 3
    assert [code for code, _ in there(shards["eu"])] == ["b", "f"]
    assert [code for code, _ in there(shards["us"])] == ["a", "c"]
    assert [code for code, _ in there(shards["file"])] == ["d", "e"]
    with Session(shards["file"]) as own:
        # What the chooser has set is in the row.
        found = own.execute(select(Parcel.region, Parcel.priority).order_by(Parcel.id)).all()
    assert list(map(tuple, found)) == [("file", 3), ("file", 0)]


def test_enqueue_may_be_the_first_use_of_a_class(engines: dict[str, Engine]) -> None:
    class Own(DeclarativeBase):
        pass

    class Letter(JobMixin, Own):
        __tablename__ = "sharded_letter"
        id: Mapped[int] = mapped_column(primary_key=True)
        region: Mapped[str] = mapped_column(String(10))

    Own.metadata.create_all(engines["file"])
    routing = {**ROUTING, "shard_chooser": lambda mapper, instance, clause=None: instance.region}
    with ShardedSession(shards=engines, **routing) as session:
        assert enqueue(session, Letter, [{"region": "file"}]) == 1


def test_a_row_that_is_wrong_is_refused(session: ShardedSession) -> None:
    with pytest.raises(ArgumentError, match="has no column colour"):
        enqueue(session, Parcel, [{"region": "eu", "colour": "red"}])
    with pytest.raises(ArgumentError, match="a row must map"):
        enqueue(session, Parcel, ["eu"])  # type: ignore[list-item]  # the mistake under test


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
def test_rows_that_sqlalchemy_cannot_insert_by_shards_are_refused(session: ShardedSession) -> None:
    session.shard_chooser = lambda *_: "file"

    with pytest.raises(ArgumentError, match=r"Cat for a ShardedSession.*session\.add_all"):
        enqueue(session, Cat, [{}])


def test_many_rows_go_to_their_shards(session: ShardedSession, shards: dict[str, Engine]) -> None:
    rows = ({"region": REGIONS[number % 2]} for number in range(6_001))

    assert enqueue(session, Parcel, rows) == 6_001
    session.commit()

    assert [len(there(shards[region])) for region in REGIONS] == [3_001, 3_000, 0]


def test_a_key_is_unique_within_its_shard(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    rows = [{"region": region, "code": "a", "text": "old"} for region in ("eu", "us")]
    enqueue(session, Parcel, rows)
    session.commit()

    again = [{**row, "text": "new"} for row in rows]
    enqueue(session, Parcel, [again[0]], skip_duplicates=True)
    enqueue(
        session, Parcel, [again[1], {**again[1], "region": "file"}], update_duplicates=Parcel.code
    )
    session.commit()

    def texts(region: str) -> list[str | None]:
        with Session(shards[region]) as own:
            return list(own.scalars(select(Parcel.text)))

    assert list(map(texts, REGIONS)) == [["old"], ["new"], ["new"]]
    with pytest.raises(IntegrityError):
        enqueue(session, Parcel, [rows[0]])


# -- claims and their ends ------------------------------------------------------


def test_a_claim_takes_from_the_shard_that_its_option_names(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    add_parcels(session, "a", "b")

    mine = claim(session, Parcel, owner="w", limit=5, options=[US])
    session.commit()

    assert [(job.region, job.code) for job in mine] == [("us", "a"), ("us", "b")]
    assert there(shards["us"]) == [("a", "claimed"), ("b", "claimed")]
    for region in ("eu", "file"):
        assert there(shards[region]) == [("a", "unclaimed"), ("b", "unclaimed")]


def test_a_claim_obeys_the_hooks_of_the_application(session: ShardedSession) -> None:
    add_parcels(session, "a", "b")
    only_seeing(session, Parcel, Parcel.code == "b")

    mine = claim(session, Parcel, owner="w", limit=5, options=[US])

    assert [(job.region, job.code) for job in mine] == [("us", "b")]


def test_one_finish_reaches_the_jobs_of_all_shards(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    session.add_all(
        Parcel(id=key, region=region, code=code)
        for region in REGIONS
        for key, code in [(1, "a"), (2, "b")]
    )
    session.commit()
    jobs = claimed_everywhere(session)

    complete(session, jobs, values=lambda job: {Parcel.text: f"to {job.region}"})
    session.commit()

    assert [(job.status, job.text) for job in jobs] == [
        ("done", f"to {region}") for region in REGIONS
    ]
    for region in REGIONS:
        assert there(shards[region]) == [("a", "done"), ("b", "unclaimed")]


@pytest.mark.parametrize(
    ("verb", "status", "attempts"),
    [
        (lambda session, jobs: fail(session, jobs, error="no"), "unclaimed", 1),
        (lambda session, jobs: fail(session, jobs, retry_in=timedelta(0)), "unclaimed", 1),
        (release, "unclaimed", 0),
        (renew, "claimed", 1),
        (cancel_claimed, "cancelled", 1),
    ],
    ids=["fail", "fail at once", "release", "renew", "cancel_claimed"],
)
def test_each_verb_for_claims_writes_where_its_jobs_are(
    session: ShardedSession,
    shards: dict[str, Engine],
    verb: Callable[[Session, Any], None],
    status: str,
    attempts: int,
) -> None:
    add_parcels(session, "a")
    jobs = claimed_everywhere(session)
    left_alone = jobs.pop()

    verb(session, jobs)
    session.commit()

    assert [(job.status, job.attempts) for job in jobs] == [(status, attempts)] * 2
    assert [there(shards[region]) for region in ("eu", "us")] == [[("a", status)]] * 2
    assert there(shards["file"]) == [("a", "claimed")]
    complete(session, left_alone)


def test_what_is_lost_in_one_shard_is_finished_in_the_others(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    add_parcels(session, "a")
    jobs = claimed_everywhere(session)
    with Session(shards["us"]) as own:
        release(own, claimed_by(own, Parcel, "w"))
        own.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, jobs)
    session.commit()

    assert [job.region for job in lost.value.lost] == ["us"]
    assert [job.region for job in lost.value.kept] == ["eu", "file"]
    assert [there(shards[region]) for region in REGIONS] == [
        [("a", status)] for status in ("done", "unclaimed", "done")
    ]


def test_a_rollback_takes_back_the_claims_of_all_shards(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    add_parcels(session, "a")
    for region in (EU, US):
        (job,) = claim(session, Parcel, owner="w", options=[region])
        with session.begin_nested() as savepoint:
            complete(session, job)
            savepoint.rollback()
        assert job.status == "claimed"

    session.rollback()

    assert [there(shards[region]) for region in REGIONS] == [[("a", "unclaimed")]] * 3


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        (cancel, "unclaimed", "cancelled"),
        (retry, "failed", "unclaimed"),
        (lambda session, jobs: reprioritize(session, jobs, 7), "unclaimed", "unclaimed"),
    ],
    ids=["cancel", "retry", "reprioritize"],
)
def test_verbs_for_jobs_that_nobody_has_claimed_find_their_shards(
    session: ShardedSession,
    shards: dict[str, Engine],
    verb: Callable[[Session, Any], list[Parcel]],
    before: str,
    after: str,
) -> None:
    session.add_all(Parcel(region=region, code="a", status=before) for region in REGIONS)
    session.commit()
    eu, us, _ = session.scalars(select(Parcel)).all()

    changed = verb(session, [eu, us])
    session.commit()

    assert changed == [eu, us]
    assert [job.priority for job in changed] == [7 if after == before else 0] * 2
    assert [there(shards[region]) for region in REGIONS] == [
        [("a", status)] for status in (after, after, before)
    ]


def test_a_signal_reaches_the_shard_of_its_job(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    workflow = Workflow(Parcel)
    workflow.waiting("asked", signals=["unclaimed"])
    workflow.step("unclaimed", during="claimed", then="done")(lambda job: None)
    session.add_all(Parcel(region=region, status="asked") for region in REGIONS)
    session.commit()
    _, us, _ = session.scalars(select(Parcel)).all()

    workflow.signal(session, us, "unclaimed")
    session.commit()

    assert us.status == "unclaimed"
    assert [there(shards[region])[0][1] for region in REGIONS] == ["asked", "unclaimed", "asked"]


def test_a_position_is_that_in_the_shard_of_the_job(session: ShardedSession) -> None:
    session.add_all(us := [Parcel(id=key, region="us") for key in (1, 2, 3)])
    session.add(eu := Parcel(id=3, region="eu", priority=5))
    session.commit()

    assert (position(session, us[-1]), position(session, eu)) == (3, 1)


# -- what does not name its shard -------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda session, jobs: claim(session, Parcel, owner="w"),
        lambda session, jobs: JobQueue(Parcel).claim(session, owner="w"),
        lambda session, jobs: JobQueue(Parcel).claim_rows(session, owner="w"),
        lambda session, jobs: JobQueue(Parcel).turn(session, jobs, owner="w"),
        lambda session, jobs: claimed_by(session, Parcel, "w"),
        lambda session, jobs: complete(session, jobs.fences),
        lambda session, jobs: reap(session, Parcel),
        lambda session, jobs: count_by_status(session, Parcel),
        lambda session, jobs: stats(session, Parcel),
        lambda session, jobs: control.pause(session, JobQueue(Parcel)),
        lambda session, jobs: examine(session, Parcel),
    ],
)
def test_a_call_that_names_no_shard_is_refused_with_the_way_out(
    session: ShardedSession, shards: dict[str, Engine], call: Callable[[Session, Any], Any]
) -> None:
    add_parcels(session, "a")
    jobs = claim(session, Parcel, owner="w", options=[EU])
    session.commit()

    with pytest.raises(ArgumentError, match=r"set_shard_id.*a plain Session of one shard"):
        call(session, jobs)
    session.rollback()

    assert there(shards["eu"]) == [("a", "claimed")]


def test_rows_are_claimed_on_the_connection_of_a_shard(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    add_parcels(session, "a")
    connection = session.connection(bind_arguments={"shard_id": "us"})

    rows = JobQueue(Parcel).claim_rows(connection, owner="w", limit=5)
    complete(connection, rows)
    session.commit()

    assert there(shards["us"]) == [("a", "done")]


def test_a_worker_on_a_sharded_session_is_refused(shards: dict[str, Engine]) -> None:
    maker = sessionmaker(class_=ShardedSession, shards=shards, **ROUTING)
    queue = JobQueue(Parcel)
    queue.handler(lambda job: None)

    with pytest.raises(ArgumentError, match=r'Worker\({"eu": engine'):
        Worker(maker, queue)


# -- who is told ------------------------------------------------------------------


def test_listeners_are_told_when_all_shards_have_committed(session: ShardedSession) -> None:
    told: list[tuple[str, int | None]] = []

    def tell(event: events.Event) -> None:
        told.append((event.name, event.count))

    names = ("after_enqueue", "after_claim", "after_finish")
    for name in names:
        events.listen(Parcel, name, tell)
    try:
        enqueue(session, Parcel, [{"region": region} for region in ("eu", "us", "us")])
        complete(session, claim(session, Parcel, owner="w", limit=5, options=[US]))
        assert told == []
        session.rollback()
        assert told == []
        enqueue(session, Parcel, [{"region": region} for region in ("eu", "us", "us")])
        complete(session, claim(session, Parcel, owner="w", limit=5, options=[US]))
        session.commit()
    finally:
        for name in names:
            events.remove(Parcel, name, tell)

    assert told == [
        ("after_enqueue", 1),
        ("after_enqueue", 2),
        ("after_claim", 2),
        ("after_finish", 2),
    ]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("add", ["add", "enqueue"])
def test_a_commit_notifies_in_the_shard_that_got_jobs(
    session: ShardedSession, shards: dict[str, Engine], add: str
) -> None:
    with statements_seen(shards["us"]) as us, statements_seen(shards["eu"]) as eu:
        session.scalars(select(Parcel)).all()  # a transaction in each
        if add == "add":
            session.add_all([Parcel(region="us"), Parcel(region="file")])
        else:
            enqueue(session, Parcel, [{"region": "us"}, {"region": "file"}])
        session.commit()

    assert [sum("NOTIFY" in statement for statement in seen) for seen in (us, eu)] == [1, 0]


@pytest.mark.parametrize("region", ["eu", "file"])
def test_a_worker_wakes_for_what_its_shard_gets(
    session: ShardedSession, shards: dict[str, Engine], region: str
) -> None:
    handled = threading.Event()

    with running(shards[region], {Parcel: lambda job: handled.set()}, poll=timedelta(hours=1)):
        enqueue(session, Parcel, [{"region": region, "code": "a"}])
        session.commit()
        assert handled.wait(20)

    assert there(shards[region]) == [("a", "done")]


def test_wait_looks_in_the_shard_of_the_job(
    session: ShardedSession, shards: dict[str, Engine]
) -> None:
    add_parcels(session, "a")
    eu, us, _ = session.scalars(select(Parcel)).all()
    with Session(shards["us"]) as own:
        complete(own, claim(own, Parcel, owner="w"))
        own.commit()
    maker = sessionmaker(class_=ShardedSession, shards=shards, **ROUTING)

    found = wait(maker, us, timeout=timedelta(seconds=20))

    assert found is not None
    assert (found.region, found.status) == ("us", "done")
    with pytest.raises(TimeoutError):
        wait(maker, eu, timeout=timedelta(0))


# -- other sessions, and other shards -----------------------------------------------


def test_an_async_session_of_shards_does_the_same(
    databases: Databases, db_alias: str, shards: dict[str, Engine]
) -> None:
    async def main() -> None:
        made = {
            name: make_async_engine(engine.url, ASYNC_DRIVERS[engine.dialect.name])
            for name, engine in shards.items()
        }
        sessions = async_sessionmaker(
            sync_session_class=ShardedSession,
            shards={name: engine.sync_engine for name, engine in made.items()},
            **ROUTING,
        )
        try:
            async with sessions() as session:
                session.add(Parcel(region="us", code="a"))
                await in_asyncio.enqueue(session, Parcel, [{"region": "file", "code": "b"}])
                await session.commit()
                jobs: list[Parcel] = []
                for option in (US, FILE):
                    jobs += await in_asyncio.claim(session, Parcel, owner="w", options=[option])
                await session.commit()
                await in_asyncio.complete(session, jobs)
                await session.commit()
                with pytest.raises(ArgumentError, match="set_shard_id"):
                    await in_asyncio.claim(session, Parcel, owner="w")
        finally:
            for engine in made.values():
                await engine.dispose()

    asyncio.run(main())

    assert there(shards["us"]) == [("a", "done")]
    assert there(shards["file"]) == [("b", "done")]


@pytest.mark.only_on("postgresql")
def test_two_schemas_of_one_database_are_two_shards(engines: dict[str, Engine]) -> None:
    engine = engines["eu"]
    shards = {
        name: engine.execution_options(schema_translate_map={None: f"sharded_{name}"})
        for name in ("eu", "us")
    }
    with engine.begin() as connection:
        for name in shards:
            connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS sharded_{name} CASCADE")
            connection.exec_driver_sql(f"CREATE SCHEMA sharded_{name}")
    for shard in shards.values():
        Base.metadata.create_all(shard)

    with ShardedSession(shards=shards, **ROUTING) as session:
        enqueue(session, Parcel, [{"region": region, "code": region} for region in ("eu", "us")])
        session.add(Parcel(region="us", code="b"))
        session.commit()
        complete(session, claim(session, Parcel, owner="w", limit=5, options=[US]))
        session.commit()

    assert there(shards["us"]) == [("us", "done"), ("b", "done")]
    assert there(shards["eu"]) == [("eu", "unclaimed")]


def test_servers_of_every_kind_serve_one_session(
    databases: Databases, pytestconfig: pytest.Config
) -> None:
    kinds = chosen_databases(pytestconfig)
    shards = {
        kind: with_empty_tables(make_engine(databases.url(kind)), Base.metadata) for kind in kinds
    }
    everywhere = {
        **ROUTING,
        "execute_chooser": lambda _: kinds,
        "identity_chooser": lambda *_, **__: kinds,
    }

    with ShardedSession(shards=shards, **everywhere) as session:
        session.add_all(Parcel(region=kind, code="a") for kind in kinds)
        enqueue(session, Parcel, [{"region": kind, "code": "b"} for kind in kinds])
        session.commit()
        jobs = [
            job
            for kind in kinds
            for job in claim(session, Parcel, owner="w", limit=2, options=[set_shard_id(kind)])
        ]
        session.commit()
        complete(session, jobs[:-1])
        session.commit()

    expected = [[("a", "done"), ("b", "done")] for _ in kinds]
    expected[-1][-1] = ("b", "claimed")
    assert [there(shards[kind]) for kind in kinds] == expected
    for engine in shards.values():
        engine.dispose()
