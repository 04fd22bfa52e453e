"""Queues on partitioned tables: claims, finishes, plans and locks over all partitions."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    delete,
    event,
    func,
    insert,
    inspect,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    ScheduleMixin,
    advisory_session,
    cancel,
    cancel_claimed,
    claim,
    claim_statements,
    complete,
    fail,
    is_transient,
    prune,
    reap,
    release,
    renew,
    reprioritize,
    retry,
)
from sa_jobqueue.dialects import database_of_dialect
from sa_jobqueue.migration import (
    add_job_columns,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_reap_index,
    patiently,
    reset_storage,
    timestamp_type,
    tune_storage,
)
from sa_jobqueue.verbs.claim import dialect_of
from tests.innodb_locks import locked_rows
from tests.migration.support import migrating
from tests.support import make_engine, statements_seen

from .claimers import Finished, LogBase, claim_some
from .test_concurrency import run_processes
from .test_plans import analyze, fill, locking, nodes, rows_read

Sessions = Callable[..., Session]

SERVERS = ("postgresql", "mysql", "mariadb")
PARTITIONS = 8
FIRST_DAY = dt.date(2030, 1, 1)
DAYS = [FIRST_DAY + dt.timedelta(days=number) for number in range(PARTITIONS)]

pytestmark = [pytest.mark.xdist_group("partitions"), pytest.mark.timeout(240)]


class Base(DeclarativeBase):
    pass


def on_innodb(partition_by: str, **options: str) -> dict[str, Any]:
    """Give MySQL and MariaDB the same options."""
    options = {"partition_by": partition_by, **options}
    return {f"{name}_{key}": v for name in ("mysql", "mariadb") for key, v in options.items()}


def by_day(days: list[dt.date]) -> str:
    """Say the partitions of InnoDB: one for each day."""
    ends = [f"PARTITION d{n} VALUES LESS THAN ('{day}')" for n, day in enumerate(days[1:])]
    ends.append(f"PARTITION d{len(ends)} VALUES LESS THAN (MAXVALUE)")
    return f"RANGE COLUMNS (day) ({', '.join(ends)})"


class Parcel(JobMixin, Base):
    """Partitioned by a hash of its key, which is one column."""

    __tablename__ = "parcel"
    __table_args__ = {  # noqa: RUF012 - as users write it
        "postgresql_partition_by": "HASH (id)",
        **on_innodb("HASH (id)", partitions=str(PARTITIONS)),
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str | None] = mapped_column(String(20))


class Report(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """Partitioned by day, which is part of the key, with every mixin."""

    __tablename__ = "report"
    __table_args__ = {  # noqa: RUF012 - as users write it
        "postgresql_partition_by": "RANGE (day)",
        **on_innodb(by_day(DAYS)),
    }
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    day: Mapped[dt.date] = mapped_column(primary_key=True)
    name: Mapped[str | None] = mapped_column(String(20))


def add_partition(table: Any, number: int, values: str) -> None:
    """Have PostgreSQL create a partition with the table."""
    create = f"CREATE TABLE {table.name}_{number} PARTITION OF {table.name} FOR VALUES {values}"

    @event.listens_for(table, "after_create")
    def add(table: Any, connection: Connection, **options: Any) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text(create))


for number, day in enumerate(DAYS):
    add_partition(Parcel.__table__, number, f"WITH (MODULUS {PARTITIONS}, REMAINDER {number})")
    end = day + dt.timedelta(days=1)
    add_partition(Report.__table__, number, f"FROM ('{day}') TO ('{end}')")

#: The keys of the second table begin where those of the first have ended.
FIRST_KEY: dict[type[Any], int] = {Parcel: 1, Report: 100_001}
ENTITIES = tuple(FIRST_KEY)
entities = pytest.mark.parametrize("entity", ENTITIES)
servers = pytest.mark.only_on(*SERVERS)


@pytest.fixture(scope="module")
def shared_engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    for metadata in (Base.metadata, LogBase.metadata):
        metadata.drop_all(engine)
        metadata.create_all(engine)
    yield engine
    for metadata in (Base.metadata, LogBase.metadata):
        metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    shared_engine.dispose()
    with shared_engine.begin() as connection:
        for table in (*Base.metadata.sorted_tables, *LogBase.metadata.sorted_tables):
            connection.execute(delete(table))
    return shared_engine


def add(session: Session, entity: Any, rows: int, **columns: Any) -> list[int]:
    """Commit unclaimed rows, one after the other into each partition; return their ids."""
    first = FIRST_KEY.get(entity, 1)
    ids = list(range(first, first + rows))
    lines: list[dict[str, Any]] = [{"id": number, **columns} for number in ids]
    if entity is Report:
        lines = [{**line, "day": DAYS[line["id"] % PARTITIONS]} for line in lines]
    session.execute(insert(entity), lines)
    session.commit()
    return ids


def ids(jobs: Any) -> list[int]:
    return [job.id for job in jobs]


def statuses(session: Session, entity: Any) -> dict[int, str]:
    """Read the status of every row, in a transaction of its own."""
    session.rollback()
    found = {row.id: row.status for row in session.execute(select(entity.id, entity.status))}
    session.rollback()
    return found


# -- the verbs -------------------------------------------------------------------


@servers
@entities
def test_a_claim_takes_the_first_of_all_partitions_in_order(
    session: Session, entity: Any, strategy: str
) -> None:
    there = add(session, entity, 40)

    first = claim(session, entity, owner="w", limit=20, strategy=strategy)
    rest = [] if strategy == "held" else claim(session, entity, owner="w", limit=40)

    assert ids(first) == there[:20]
    assert ids(rest) == ([] if strategy == "held" else there[20:])


VERBS: dict[str, tuple[Callable[[Session, Any], object], str | None]] = {
    "complete": (complete, "done"),
    "delete": (lambda session, jobs: complete(session, jobs, delete=True), None),
    "fail": (lambda session, jobs: fail(session, jobs, error="no"), "failed"),
    "cancel_claimed": (cancel_claimed, "cancelled"),
    "release": (release, "unclaimed"),
    "renew": (renew, "claimed"),
}


@servers
@entities
@pytest.mark.parametrize("verb", VERBS)
def test_a_finish_writes_to_the_claimed_rows_of_every_partition(
    session: Session, entity: Any, strategy: str, verb: str
) -> None:
    there = add(session, entity, 16, **({"max_attempts": 1} if entity is Report else {}))
    write, word = VERBS[verb]
    jobs = claim(session, entity, owner="w", limit=12, strategy=strategy)
    if strategy != "held":
        session.commit()

    write(session, jobs)
    session.commit()

    if strategy == "held" and verb == "renew":
        word = "unclaimed"  # nothing was marked
    found = statuses(session, entity)
    assert [found.get(key) for key in there] == [word] * 12 + ["unclaimed"] * 4


@servers
@entities
@pytest.mark.strategies("skip_locked", "candidates", "update_then_select")
def test_a_claim_that_was_reaped_is_lost_and_nothing_is_written(
    session: Session, other: Session, entity: Any, strategy: str
) -> None:
    there = add(session, entity, 10)
    jobs = claim(session, entity, owner="w", limit=10, strategy=strategy)
    session.commit()
    reaped = reap(other, entity, max_runtime=dt.timedelta(0))
    other.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, jobs)

    assert (len(reaped), len(lost.value.lost)) == (10, 10)
    assert statuses(session, entity) == dict.fromkeys(there, "unclaimed")


@servers
def test_a_failed_job_waits_for_its_time_and_is_claimed_again(session: Session) -> None:
    there = add(session, Report, 10)
    jobs = claim(session, Report, owner="w", limit=10)

    fail(session, jobs[:5], retry_in=dt.timedelta(hours=1))
    fail(session, jobs[5:])
    session.commit()

    assert ids(claim(session, Report, owner="w", limit=10)) == there[5:]


CHANGES: dict[str, tuple[Callable[[Session, Any], list[Any]], str]] = {
    "cancel": (cancel, "cancelled"),
    "retry": (lambda session, jobs: retry(session, cancel(session, jobs)), "unclaimed"),
}


@servers
@entities
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_without_a_claim_reaches_every_partition(
    session: Session, entity: Any, change: str
) -> None:
    there = add(session, entity, 12)
    write, word = CHANGES[change]
    jobs = session.scalars(select(entity).where(entity.id.in_(there[:10]))).all()

    changed = write(session, jobs)
    session.commit()

    found = statuses(session, entity)
    assert len(changed) == 10
    assert [found[key] for key in there] == [word] * 10 + ["unclaimed"] * 2


@servers
def test_a_new_priority_puts_jobs_of_every_partition_first(session: Session) -> None:
    there = add(session, Report, 16)
    session.commit()
    later = session.scalars(select(Report).where(Report.id.in_(there[8:]))).all()

    reprioritize(session, later, -1)
    session.commit()

    assert ids(claim(session, Report, owner="w", limit=16)) == there[8:] + there[:8]


@servers
@entities
def test_done_rows_are_pruned_from_every_partition(session: Session, entity: Any) -> None:
    there = add(session, entity, 20)
    complete(session, claim(session, entity, owner="w", limit=15))
    session.commit()

    pruned = prune(session, entity, older_than=dt.timedelta(0))
    session.commit()

    assert pruned == 15
    assert ids(claim(session, entity, owner="w", limit=20)) == there[15:]


@pytest.mark.only_on("postgresql")
@entities
def test_advisory_claims_of_two_sessions_share_the_partitions(engine: Engine, entity: Any) -> None:
    with Session(engine) as session:
        there = add(session, entity, 20)

    with advisory_session(engine) as session, advisory_session(engine) as other:
        first = claim(session, entity, strategy="advisory", limit=8)
        second = claim(other, entity, strategy="advisory", limit=20)
        complete(session, first)
        session.commit()
        release(other, second)

        assert (ids(first), ids(second)) == (there[:8], there[8:])
        assert ids(claim(session, entity, strategy="advisory", limit=20)) == there[8:]


@servers
def test_strict_order_waits_for_no_partition_but_keeps_the_order(session: Session) -> None:
    there = add(session, Report, 20)
    queue = JobQueue(Report, strict_order=True)

    batches = [queue.claim(session, owner="w", limit=7) for _ in range(3)]

    assert [key for batch in batches for key in ids(batch)] == there


# -- several at once -------------------------------------------------------------


@servers
@entities
def test_a_claim_leaves_the_rows_of_other_partitions_to_others(
    session: Session, other: Session, entity: Any
) -> None:
    """A locking read over partitions looks at the head of each; InnoDB keeps them locked."""
    there = add(session, entity, PARTITIONS)

    first = claim(session, entity, owner="1", limit=1)
    second = claim(other, entity, owner="2", limit=PARTITIONS)

    assert (ids(first), ids(second)) == (there[:1], there[1:])


def drain(url: str, strategy: str, seed: int) -> None:
    """Claim and finish batches of both tables until nothing is left."""
    engine = make_engine(url)
    chance = random.Random(seed)
    for entity in ENTITIES:
        queue = JobQueue(entity, strategy=strategy)
        empty = 0
        while empty < 3:
            claimed = claim_some(engine, queue, chance.randint(1, 20))
            empty = 0 if claimed or claimed.lost else empty + 1
    engine.dispose()


def drain_by_locks(url: str, seed: int) -> None:
    """Do the same by advisory locks."""
    engine = make_engine(url)
    chance = random.Random(seed)
    with advisory_session(engine) as session:
        for entity in ENTITIES:
            empty = 0
            while empty < 3:
                jobs = claim(session, entity, strategy="advisory", limit=chance.randint(1, 20))
                complete(session, jobs)
                lines = [{"job": job.id, "process": seed} for job in jobs]
                if lines:
                    session.execute(insert(Finished), lines)
                session.commit()
                empty = 0 if jobs or jobs.lost else empty + 1
    engine.dispose()


ROWS = 400


@servers
def test_four_processes_finish_every_row_of_every_partition_once(
    engine: Engine, session: Session, strategy: str
) -> None:
    there = {*add(session, Parcel, ROWS), *add(session, Report, ROWS)}
    url = engine.url.render_as_string(hide_password=False)

    run_processes(drain, [(url, strategy, seed) for seed in range(4)])

    assert_finished_once(session, there)


@pytest.mark.only_on("postgresql")
def test_four_processes_finish_every_row_once_by_advisory_locks(
    engine: Engine, session: Session
) -> None:
    there = {*add(session, Parcel, ROWS), *add(session, Report, ROWS)}
    url = engine.url.render_as_string(hide_password=False)

    run_processes(drain_by_locks, [(url, seed) for seed in range(4)])

    assert_finished_once(session, there)


def assert_finished_once(session: Session, there: set[int]) -> None:
    finished = Counter(session.scalars(select(Finished.job)))
    assert set(finished) == there
    assert set(finished.values()) == {1}
    for entity in ENTITIES:
        assert set(statuses(session, entity).values()) == {"done"}


# -- plans and locks -------------------------------------------------------------

#: Rows of each table at least; one of a hundred waits.
MANY = 40_000


@pytest.fixture
def many(shared_engine: Engine) -> Iterator[Session]:
    """A session on both tables with 40,000 rows or more, 1 % of which wait; it is rolled back."""
    with Session(shared_engine) as session:
        if session.scalars(select(func.count()).select_from(Report)).one() < MANY:
            fill_tables(shared_engine)
        session.rollback()
        yield session


def fill_tables(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(delete(table))
    status = "CASE WHEN number % 100 = 0 THEN 'unclaimed' ELSE 'done' END"
    # Not number % 8: all that wait would stand in two partitions.
    days = " ".join(f"WHEN {n} THEN '{day}'" for n, day in enumerate(DAYS))
    day = f"CAST(CASE (number % 800 - number % 100) / 100 {days} END AS date)"
    fill(engine, f"INSERT INTO parcel (id, status) SELECT number, {status}", MANY)
    fill(engine, f"INSERT INTO report (id, day, status) SELECT number, {day}, {status}", MANY)
    for table in Base.metadata.sorted_tables:
        analyze(engine, table.name)


@servers
@entities
@pytest.mark.parametrize("limit", [1, 50])
def test_claim_and_finish_read_what_they_take_and_the_head_of_each_partition(
    many: Session, entity: Any, strategy: str, limit: int
) -> None:
    def act() -> None:
        jobs = claim(many, entity, owner="w", limit=limit, strategy=strategy)
        complete(many, jobs)
        assert len(jobs) == limit

    read = rows_walked(many, act)

    # A finish reads each row twice, candidates draws four for one.
    assert limit <= read < 20 * limit + 10 * PARTITIONS, read


def rows_walked(session: Session, act: Callable[[], None]) -> int:
    """Count the rows that an act reads: InnoDB counts them, PostgreSQL says so in its plans."""
    connection = session.connection()
    if connection.dialect.name != "postgresql":
        before = rows_read(connection)
        act()
        walked = rows_read(connection) - before
        session.rollback()
        return walked
    seen: list[tuple[str, Any]] = []

    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        seen.append((statement, parameters))

    event.listen(connection.engine, "before_cursor_execute", see)
    try:
        act()
    finally:
        event.remove(connection.engine, "before_cursor_execute", see)
    session.rollback()
    connection = session.connection()
    walked = sum(map(rows_of, (plan_of(connection, *statement) for statement in seen)))
    session.rollback()
    return walked


def plan_of(connection: Connection, statement: str, parameters: Any) -> dict[str, Any]:
    found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
    plan: dict[str, Any] = found.scalar_one()[0]["Plan"]
    return plan


def rows_of(plan: dict[str, Any]) -> int:
    """Add up the rows that the scans of a plan have read."""
    return sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in nodes(plan)
        if "Relation Name" in node and node["Node Type"] != "ModifyTable"
    )


@pytest.mark.only_on("postgresql")
@pytest.mark.strategies("skip_locked", "held")
@entities
def test_the_claim_merges_the_claim_indexes_and_locks_what_it_takes(
    many: Session, entity: Any, strategy: str
) -> None:
    connection = many.connection()
    statements = claim_statements(entity, dialect=connection.dialect, strategy=strategy)
    given = {"claim_limit": 20, "claim_owner": "w", "claim_priority": 0}
    finding: Any = locking(statements, connection.engine)
    compiled = finding.compile(dialect=connection.dialect)
    parameters = {**compiled.params, **{k: v for k, v in given.items() if k in compiled.params}}

    plan = list(nodes(plan_of(connection, str(compiled), parameters)))

    lock_rows = next(node for node in plan if node["Node Type"] == "LockRows")
    below = list(nodes(lock_rows))
    indexes = {node["Index Name"] for node in below if "Index Name" in node}
    assert lock_rows["Actual Rows"] == 20
    assert len(indexes) == PARTITIONS
    assert not [node for node in below if node["Node Type"] in ("Sort", "Seq Scan")]


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.strategies("skip_locked", "held", "candidates", "update_then_select")
@entities
@pytest.mark.parametrize("limit", [1, 50])
def test_innodb_locks_the_head_of_each_partition_at_most(
    many: Session, entity: Any, strategy: str, limit: int
) -> None:
    jobs = claim(many, entity, owner="w", limit=limit, strategy=strategy)

    locked = locked_rows(many.connection(), entity.__tablename__)

    assert len(jobs) == limit
    extra = 0 if strategy == "candidates" else PARTITIONS
    # MariaDB counts a row in each index that led to it.
    each = 1 if many.get_bind().dialect.name == "mysql" else 2
    assert limit <= locked <= each * (limit + extra), locked


@pytest.mark.only_on("mysql", "mariadb")
@entities
def test_auto_locks_nothing_but_what_it_takes(many: Session, entity: Any) -> None:
    jobs = claim(many, entity, owner="w", limit=3)

    assert (len(jobs), jobs.lost) == (3, 0)
    assert locked_rows(many.connection(), entity.__tablename__) == 3


# -- partitions that come and go -------------------------------------------------


@servers
def test_a_partition_of_done_rows_is_dropped_and_claims_go_on(
    fresh_database: URL, db_alias: str
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        there = add(session, Report, 24)
        first_day = Report.day == FIRST_DAY
        complete(session, claim(session, Report, first_day, owner="w", limit=24))
        session.commit()
        drop = {"postgresql": "DROP TABLE report_0"}.get(
            db_alias, "ALTER TABLE report DROP PARTITION d0"
        )
        session.execute(text(drop))
        session.commit()

        jobs = claim(session, Report, owner="w", limit=24)

        assert ids(jobs) == [key for key in there if key % PARTITIONS]
    engine.dispose()


# -- tables that are there already -----------------------------------------------

#: How a table is divided, and PostgreSQL's partitions.
IN_PARTITIONS = {
    "hash": {
        "postgresql": [
            "HASH (id)",
            "WITH (MODULUS 2, REMAINDER 0)",
            "WITH (MODULUS 2, REMAINDER 1)",
        ],
        "mysql": ["HASH (id) PARTITIONS 2"],
    },
    "range": {
        "postgresql": ["RANGE (id)", "FROM (MINVALUE) TO (50)", "FROM (50) TO (MAXVALUE)"],
        "mysql": [
            "RANGE (id) (PARTITION low VALUES LESS THAN (50), "
            "PARTITION high VALUES LESS THAN MAXVALUE)"
        ],
    },
}


@servers
@pytest.mark.parametrize("by", IN_PARTITIONS)
def test_a_table_in_partitions_becomes_a_queue(fresh_database: URL, db_alias: str, by: str) -> None:
    engine = make_engine(fresh_database)
    whole, *parts = IN_PARTITIONS[by].get(db_alias, IN_PARTITIONS[by]["mysql"])
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE parcel (id INT PRIMARY KEY) PARTITION BY {whole}"))
        for number, values in enumerate(parts):
            create = f"CREATE TABLE parcel_{number} PARTITION OF parcel FOR VALUES {values}"
            connection.execute(text(create))
        connection.execute(text(f"INSERT INTO parcel VALUES {NUMBERS}"))

    with migrating(engine) as op:
        add_job_columns(op, "parcel", JobMixin, RetryMixin, existing_rows="id % 10 = 0")
        create_claim_index(op, "parcel")
        create_reap_index(op, "parcel")
        tune_storage(op, "parcel")
        patiently(op, lambda: op.add_column("parcel", Column("name", String(20))))

    with Session(engine) as session:
        assert ids(claim(session, Parcel, owner="w", limit=100)) == list(range(10, 101, 10))

    with migrating(engine) as op:
        reset_storage(op, "parcel")
        drop_reap_index(op, "parcel")
        drop_claim_index(op, "parcel")
        drop_job_columns(op, "parcel", JobMixin, RetryMixin)

    assert {column["name"] for column in inspect(engine).get_columns("parcel")} == {"id", "name"}
    assert inspect(engine).get_indexes("parcel") == []
    engine.dispose()


NUMBERS = ", ".join(f"({number})" for number in range(1, 101))

# -- rows that move --------------------------------------------------------------


class Urgent(JobMixin, PriorityMixin, Base):
    """Partitioned by its priority, which is part of the key; made by the test."""

    __table__ = Table(
        "urgent",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("priority", SmallInteger, primary_key=True, server_default="0"),
        Column("status", String(16), nullable=False, server_default="unclaimed"),
        Column("owner", String(64)),
        Column("owner_date", timestamp_type()),
        postgresql_partition_by="RANGE (priority)",
        **on_innodb(
            "RANGE (priority) (PARTITION urgent VALUES LESS THAN (0), "
            "PARTITION normal VALUES LESS THAN MAXVALUE)"
        ),
    )


for number, values in enumerate(("FROM (MINVALUE) TO (0)", "FROM (0) TO (MAXVALUE)")):
    add_partition(Urgent.__table__, number, values)


@servers
def test_a_new_priority_moves_rows_whose_partition_goes_by_it(
    engine: Engine, session: Session, other: Session
) -> None:
    urgent: Any = Urgent
    urgent.__table__.create(engine)
    add(session, urgent, 6)
    first, *_ = rows = session.scalars(select(urgent).order_by(urgent.id)).all()

    reprioritize(session, rows[:2], -1)
    session.commit()

    jobs = claim(other, urgent, owner="w", limit=6)
    assert [(job.id, job.priority) for job in jobs[:3]] == [(1, -1), (2, -1), (3, 0)]
    complete(other, jobs)
    other.commit()
    assert set(statuses(other, urgent).values()) == {"done"}
    with pytest.raises(InvalidRequestError, match="Could not refresh"):
        session.refresh(first)
    session.rollback()
    urgent.__table__.drop(engine)


class Moving(JobMixin, Base):
    """Partitioned by the status itself: every claim moves its rows; made by the test."""

    __table__ = Table(
        "moving",
        MetaData(),
        Column("id", Integer),
        Column("status", String(16), nullable=False, server_default="unclaimed"),
        Column("owner", String(64)),
        Column("owner_date", timestamp_type()),
        postgresql_partition_by="LIST (status)",
    )
    __mapper_args__ = {"primary_key": [__table__.c.id]}  # noqa: RUF012 - as users write it


for number, word in enumerate(("unclaimed", "claimed", "done")):
    add_partition(Moving.__table__, number, f"IN ('{word}')")


@pytest.fixture
def moving(engine: Engine) -> Iterator[None]:
    Moving.__table__.create(engine)
    yield
    Moving.__table__.drop(engine)


#: Waits, after the statement has seen what it will claim, until the lock is given back.
GATE = literal_column("(SELECT 1 FROM pg_advisory_xact_lock_shared(4242))", Integer) == 1


def claimed_behind_its_back(new_session: Sessions, entity: Any) -> Callable[[], list[int]]:
    """Have a claim see the first row, which somebody else claims before it is locked."""
    session, other, gate = new_session(), new_session(), new_session()
    gate.execute(select(func.pg_advisory_lock(4242)))
    result: list[Any] = []

    def late() -> None:
        try:
            result.append(ids(claim(session, entity, GATE, owner="late", limit=1)))
        except DBAPIError as error:
            result.append(error)
        session.rollback()

    thread = threading.Thread(target=late)
    thread.start()
    waiting = text(  # at this gate: other tests wait for locks of their own
        "SELECT 1 FROM pg_locks JOIN pg_database ON database = pg_database.oid "
        "WHERE locktype = 'advisory' AND NOT granted AND objid = 4242 "
        "AND datname = current_database()"
    )
    while not gate.execute(waiting).first():
        assert thread.is_alive()
    claim(other, entity, owner="early", limit=1)
    other.commit()
    gate.execute(select(func.pg_advisory_unlock(4242)))
    thread.join(30)

    def outcome() -> list[int]:
        (found,) = result
        if isinstance(found, DBAPIError):
            raise found
        return list(found)

    return outcome


@pytest.mark.only_on("postgresql")
@entities
def test_a_row_that_was_claimed_meanwhile_is_passed_over(
    session: Session, new_session: Sessions, entity: Any
) -> None:
    there = add(session, entity, 20)

    outcome = claimed_behind_its_back(new_session, entity)

    assert outcome() == there[1:2]


@pytest.mark.only_on("postgresql")
@pytest.mark.usefixtures("moving")
def test_a_row_that_moved_to_another_partition_meanwhile_is_a_transient_error(
    session: Session, new_session: Sessions
) -> None:
    """Nobody gets it twice, but the claim fails: so partition by what never changes."""
    there = add(session, Moving, 20)

    outcome = claimed_behind_its_back(new_session, Moving)

    with pytest.raises(DBAPIError, match="moved to another partition") as moved:
        outcome()
    assert is_transient(moved.value)
    assert ids(claim(session, Moving, owner="w", limit=20)) == there[1:]


class Restless(JobMixin, Base):
    """A key that a claim would change, as MySQL asks for where the status partitions."""

    __table__ = Table(
        "restless",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("status", String(16), primary_key=True, server_default="unclaimed"),
        Column("owner", String(64)),
        Column("owner_date", timestamp_type()),
    )


@pytest.mark.parametrize("dialect", ["sqlite", *SERVERS])
def test_a_key_that_a_claim_would_change_is_refused(dialect: str) -> None:
    with pytest.raises(ArgumentError, match=r"'status', which a claim writes.*never changes"):
        claim_statements(Restless, dialect=dialect)


@pytest.mark.parametrize("dialect", SERVERS)
@entities
def test_auto_draws_candidates_where_a_look_at_each_partition_would_lock(
    entity: Any, dialect: str
) -> None:
    plan = JobQueue(entity).plan

    chosen = plan.built_for(database_of_dialect(dialect_of(dialect)))

    assert chosen.name == ("skip_locked" if dialect == "postgresql" else "candidates")


# -- keys of several columns -----------------------------------------------------


@servers
def test_many_keys_of_several_columns_are_written_in_statements_that_are_planned_fast(
    engine: Engine, session: Session
) -> None:
    """PostgreSQL plans (a, b) IN (..) in the square of their number."""
    there = add(session, Report, 450)
    jobs = claim(session, Report, owner="w", limit=450)
    session.commit()

    with statements_seen(engine) as seen:
        complete(session, jobs)
        session.commit()

    assert len([one for one in seen if one.startswith("UPDATE report")]) == 3
    assert statuses(session, Report) == dict.fromkeys(there, "done")


def test_mysql_draws_the_candidates_of_partitions_by_the_claim_index() -> None:
    """It was seen to read the whole backlog by the reap index, and sort it."""
    draw, *_ = claim_statements(Parcel, dialect="mysql")

    assert "/*+ INDEX(parcel ix_parcel_claim) */" in str(draw.compile(dialect=dialect_of("mysql")))  # type: ignore[attr-defined]  # ours can
