"""Places in claim order, rates, and priorities that change while others claim."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Engine,
    Enum,
    Float,
    Index,
    String,
    delete,
    event,
    func,
    inspect,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    Session,
    mapped_column,
    with_loader_criteria,
)

from sa_jobqueue import (
    ArgumentError,
    Claim,
    JobMixin,
    JobQueue,
    PriorityMixin,
    ScheduleMixin,
    cancel,
    cancel_claimed,
    claim,
    complete,
    enqueue,
    fail,
    fence_of,
    finish_rate,
    position,
    positions,
    reprioritize,
    utc_now,
    waiting_time,
)
from sa_jobqueue.dialects import database_of
from tests.models import (
    Animal,
    Cat,
    Document,
    Dog,
    Email,
    Letter,
    Message,
    Order,
    Pair,
    Task,
    add_emails,
    add_tasks,
)
from tests.models import Base as ModelsBase
from tests.support import impatient, make_engine, statements_seen

from .test_interleaved import unless_refused
from .test_plans import analyze, fill, rows_read

Sessions = Callable[..., Session]

HOUR = timedelta(hours=1)


class Size(enum.Enum):
    """In this order, which is not that of the words."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Base(DeclarativeBase):
    pass


class Ticket(JobMixin, Base):
    """An order of its own, of columns that may be empty."""

    __tablename__ = "ticket"
    __queue_args__ = {"order_by": ["weight desc", "size", "owner_name"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    weight: Mapped[float | None] = mapped_column(Float(24))
    size: Mapped[Size | None] = mapped_column(Enum(Size))
    owner_name: Mapped[str | None] = mapped_column(String(20))


class Print(JobMixin, PriorityMixin, ScheduleMixin, Base):
    """A queue whose finishes an index finds, on every engine."""

    __tablename__ = "print"
    __table_args__ = (Index("ix_print_finish", "status", "owner_date"),)
    id: Mapped[int] = mapped_column(primary_key=True)


class Fax(JobMixin, Base):
    """A queue with an index of its done rows only."""

    __tablename__ = "fax"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10), default="a")


class Memo(JobMixin, Base):
    """A queue with an index that has nothing to do with the time of a finish."""

    __tablename__ = "memo"
    __table_args__ = (Index("ix_memo_status", "status", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)


Index(
    "ix_fax_done",
    Fax.__table__.c.owner_date,
    postgresql_where=text("status = 'done'"),
    sqlite_where=text("status = 'done'"),
)


@pytest.fixture(scope="module")
def own_tables(db_url: URL) -> Iterator[None]:
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def mine(own_tables: None, session: Session) -> Session:
    """A session beside which the tables of this module are empty."""
    for table in Base.metadata.sorted_tables:
        session.execute(delete(table))
    session.commit()
    return session


# -- the claim order ----------------------------------------------------


def claimed_in_order(session: Session, queue: JobQueue[Any]) -> list[Any]:
    """Return the keys of all jobs in the order in which they are claimed, and claim none."""
    claimed = queue.claim(session, owner="oracle", limit=1_000)
    keys = [key_of(job) for job in claimed]
    session.rollback()
    return keys


def key_of(job: Any) -> Any:
    return inspect(job).identity


def held_against_claims(session: Session, queue: JobQueue[Any]) -> None:
    """Hold the place of each row against the claims of the whole queue."""
    jobs = list(session.scalars(select(queue.entity)).unique())
    random.Random(7).shuffle(jobs)
    order = claimed_in_order(session, queue)
    expected = [order.index(key_of(job)) + 1 if key_of(job) in order else None for job in jobs]

    found = queue.positions(session, jobs)

    assert 0 < len(order) < len(jobs)
    assert found == expected
    assert sorted(place for place in found if place) == [*range(1, len(order) + 1)]
    for job, place in [*zip(jobs, expected, strict=True)][:8]:
        assert queue.position(session, job) == place


def rows_of(entity: type[Any]) -> list[Any]:
    """Make rows with many equal values, due and not, and some that are done."""
    by_chance = random.Random(entity.__name__)
    return [row_of(entity, number, by_chance) for number in range(40)]


def row_of(entity: type[Any], number: int, by_chance: random.Random) -> Any:
    columns = inspect(entity).columns
    given: dict[str, Any] = {}
    for name in ("priority", "job_priority", "sequence", "created"):
        if name in columns and not (entity is Order and name == "priority"):
            given[name] = by_chance.randint(-2, 2)
    if "run_at" in columns:
        hours = by_chance.choice([-2, -2, -1, 1])
        given["run_at"] = datetime.now(UTC).replace(microsecond=7) + hours * HOUR
    if entity is Pair:
        given |= {"left": number % 7, "right": f"r{number}"}
    if entity is Ticket:
        given["weight"] = by_chance.choice([None, 0.1, 0.7])
        given["size"] = by_chance.choice([None, *Size])
        given["owner_name"] = by_chance.choice([None, "a", "b"])
    for name, value in {"name": "n", "recipient": "r", "channel": "sms"}.items():
        if name in columns:
            given[name] = value
    if number % 6 == 0:
        status = "job_status" if entity is Order else "status"
        given[status] = "done"
    return entity(**given)


QUEUES = [
    JobQueue(Email),
    JobQueue(Email, order_by=Email.id.desc()),
    JobQueue(Email, order_by=[func.length(Email.recipient), Email.subject]),
    JobQueue(Task),
    JobQueue(Task, strict_order=True),
    JobQueue(Task, Task.id % 3 > 0),
    JobQueue(Task, order_by=Task.run_at.desc()),
    JobQueue(Task, order_by=[Task.run_at, Task.priority.desc()]),
    JobQueue(Order),
    JobQueue(Message, Message.channel == "sms"),
    JobQueue(Message),
    JobQueue(Pair),
    JobQueue(Document),
    JobQueue(Letter),
    JobQueue(Animal),
    JobQueue(Cat),
    JobQueue(Dog),
    JobQueue(Print),
    JobQueue(Ticket),
    JobQueue(Ticket, order_by=[Ticket.size.desc(), Ticket.weight]),
]


@pytest.mark.parametrize("queue", QUEUES, ids=str)
def test_places_are_those_of_the_claim_order(mine: Session, queue: JobQueue[Any]) -> None:
    mine.add_all(rows_of(queue.entity))
    if queue.entity in (Animal, Cat):
        mine.add_all(rows_of(Cat if queue.entity is Animal else Animal))
    mine.commit()

    held_against_claims(mine, queue)


@pytest.mark.only_on("postgresql", "sqlite")
def test_empty_values_stand_where_the_order_says(mine: Session) -> None:
    mine.add_all(rows_of(Ticket))
    mine.commit()

    for order in (
        [Ticket.weight.desc().nulls_last(), Ticket.owner_name.nulls_first()],
        [Ticket.owner_name.nulls_last(), Ticket.weight.desc().nulls_first()],
    ):
        held_against_claims(mine, JobQueue(Ticket, order_by=order))


@pytest.mark.only_on("sqlite")
def test_times_written_as_other_text_keep_their_place(session: Session) -> None:
    """SQLite compares them as text; read and bound again, they would be other text."""
    for name in ("a", "b", "c"):
        session.execute(
            text("INSERT INTO task (name, run_at) VALUES (:name, '2020-01-01 00:00:00')"),
            {"name": name},
        )
    session.commit()
    jobs = session.scalars(select(Task).order_by(Task.id)).all()

    assert positions(session, jobs) == [1, 2, 3]
    assert position(session, jobs[2]) == 3


# -- who has a place ----------------------------------------------------


def test_a_job_has_no_place_once_it_is_claimed_or_before_it_is_due(
    session: Session, strategy: str
) -> None:
    a, b, c = add_tasks(session, "a", "b", "c")
    (later,) = add_tasks(session, "later", run_at=datetime.now(UTC) + HOUR, priority=-1)
    assert positions(session, [a, b, c, later]) == [1, 2, 3, None]

    claimed = claim(session, Task, owner="w", strategy=strategy)
    if strategy == "held":
        assert position(session, a) == 1  # nothing was written yet
        complete(session, claimed)

    assert positions(session, [later, c, b, a]) == [None, 2, 1, None]
    assert position(session, later) is None
    assert position(session, a) is None


def test_a_finished_a_cancelled_and_a_deleted_job_have_no_place(session: Session) -> None:
    a, b, c, d = add_emails(session, "a", "b", "c", "d")
    complete(session, claim(session, Email, owner="w"))
    cancel(session, b)
    session.execute(delete(Email).where(Email.id == c.id), execution_options=NO_SYNC)

    assert positions(session, [a, b, c, d]) == [None, None, None, 1]
    assert position(session, c) is None


NO_SYNC = {"synchronize_session": False}


def test_pending_changes_count(session: Session) -> None:
    session.autoflush = False
    first, second = add_tasks(session, "a", "b")
    second.priority = -1

    assert positions(session, [first, second]) == [2, 1]


def test_places_come_in_the_order_of_the_jobs_whatever_their_class(session: Session) -> None:
    emails, tasks = add_emails(session, "a", "b"), add_tasks(session, "a", "b")

    found = positions(session, iter([tasks[1], emails[0], emails[1], tasks[0], emails[0]]))

    assert found == [2, 1, 2, 1, 1]
    assert positions(session, []) == []
    assert positions(session, emails[1]) == [2]


def test_a_claim_and_its_fences_have_no_places(session: Session) -> None:
    add_emails(session, "a", "b")
    claimed = claim(session, Email, owner="w", limit=2)

    assert positions(session, claimed) == [None, None]
    assert position(session, fence_of(claimed[0])) is None


def test_what_is_no_job_of_the_queue_is_refused(session: Session) -> None:
    (email,) = add_emails(session, "a")

    with pytest.raises(ArgumentError, match="flush"):
        position(session, Email(recipient="b"))
    with pytest.raises(ArgumentError, match="queue"):
        JobQueue(Task).position(session, email)
    with pytest.raises(ArgumentError, match="is not a job"):
        position(session, [email])


def test_criteria_of_hooks_hold_for_places(session: Session, new_session: Sessions) -> None:
    jobs = add_tasks(session, *["one", "two"] * 3)
    emails = add_emails(session, *["one", "two"] * 3)
    tenant = new_session()

    @event.listens_for(tenant, "do_orm_execute")
    def of_tenant(state: ORMExecuteState) -> None:
        if state.is_select:
            ours = with_loader_criteria(Task, Task.name == "two")
            emails_too = with_loader_criteria(Email, Email.recipient == "two")
            state.statement = state.statement.options(ours, emails_too)

    for all_of_them in (jobs, emails):
        assert positions(tenant, all_of_them) == [None, 1, None, 2, None, 3]
        assert [position(tenant, job) for job in all_of_them] == [None, 1, None, 2, None, 3]


def test_many_jobs_with_wide_keys_are_looked_up(session: Session) -> None:
    enqueue(session, Pair, ({"left": number // 9, "right": str(number)} for number in range(450)))
    session.commit()
    jobs = session.scalars(select(Pair)).all()

    found = positions(session, jobs)

    assert sorted(place or 0 for place in found) == [*range(1, 451)]


def test_many_jobs_take_few_statements(session: Session, engine: Engine) -> None:
    jobs = add_emails(session, *map(str, range(30)))

    with statements_seen(engine) as seen:
        positions(session, jobs)

    assert len([one for one in seen if "FROM email" in one]) == 2


def test_without_window_functions_each_job_is_counted(
    session: Session, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = add_tasks(session, "a", "b", "c")
    monkeypatch.setattr(database_of(session.connection()), "window_functions", False)

    with statements_seen(engine) as seen:
        found = positions(session, reversed(jobs))

    assert found == [3, 2, 1]
    assert not [one for one in seen if RANKING in one]


def test_autocommit_sessions_are_told_too(engine: Engine, new_session: Sessions) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    jobs = add_tasks(session, "a", "b", "c")

    assert positions(session, jobs) == [1, 2, 3]
    assert position(session, jobs[2]) == 3


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("scans", ["on", "off"])
def test_the_planner_is_left_as_it_was(session: Session, scans: str) -> None:
    jobs = add_emails(session, "a", "b")
    names = ("enable_seqscan", "enable_indexscan")
    for name in names:
        session.execute(text(f"SET LOCAL {name} = {scans}"))

    positions(session, jobs)
    with (
        pytest.raises(RuntimeError),
        database_of(session.connection()).by_index(session.connection()),
    ):
        raise RuntimeError

    assert [session.scalar(text(f"SHOW {name}")) for name in names] == [scans] * 2


# -- while others claim -------------------------------------------------


def test_a_claim_that_is_not_committed_is_not_waited_for(session: Session, other: Session) -> None:
    jobs = add_tasks(session, "a", "b")
    claim(other, Task, owner="w")

    assert positions(session, jobs) == [1, 2]
    assert position(session, jobs[0]) == 1


@contextmanager
def before(engine: Engine, words: str, step: Callable[[], object]) -> Iterator[list[int]]:
    """Take a step of the other session before the first statement with these words."""
    taken: list[int] = []

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if not taken and words in statement:
            taken.append(1)
            step()

    event.listen(engine, "before_cursor_execute", see)
    try:
        yield taken
    finally:
        event.remove(engine, "before_cursor_execute", see)


COUNTING, RANKING = "count(*)", "row_number()"


@pytest.mark.parametrize("entity", [Email, Task])
def test_the_rest_keep_their_places_when_the_last_is_claimed_meanwhile(
    session: Session, other: Session, engine: Engine, entity: type[Any]
) -> None:
    add = add_emails if entity is Email else add_tasks
    jobs: list[Any] = add(session, "a", "b", "c")

    def take_last() -> None:
        claim(other, entity, entity.id == jobs[2].id, owner="w")
        other.commit()

    with before(engine, RANKING, take_last) as taken:
        found = positions(session, jobs)

    assert (found, taken) == ([1, 2, None], [1])


def test_a_job_that_is_deleted_meanwhile_has_no_place(
    session: Session, other: Session, engine: Engine
) -> None:
    jobs = add_emails(session, "a", "b", "c")

    def delete_last() -> None:
        other.execute(delete(Email).where(Email.id == jobs[2].id))
        other.commit()

    with before(engine, RANKING, delete_last) as taken:
        found = positions(session, jobs)

    assert (found, taken) == ([1, 2, None], [1])


def test_a_job_that_is_put_off_meanwhile_has_no_place(
    session: Session, other: Session, engine: Engine
) -> None:
    jobs = add_tasks(session, "a", "b", "c")

    def put_off_last() -> None:
        later = update(Task).where(Task.id == jobs[2].id).values(run_at=datetime.now(UTC) + HOUR)
        other.execute(later)
        other.commit()

    with before(engine, RANKING, put_off_last) as taken:
        found = positions(session, jobs)

    assert (found, taken) == ([1, 2, None], [1])


def test_a_job_that_is_moved_behind_the_others_meanwhile_is_found_there(
    session: Session, other: Session, engine: Engine
) -> None:
    jobs = add_tasks(session, "a", "b", "c", "d")

    def move() -> None:
        reprioritize(other, other.get_one(Task, jobs[0].id), 5)
        other.commit()

    with before(engine, RANKING, move) as taken:
        found = positions(session, jobs[:3])

    assert (found, taken) == ([4, 1, 2], [1])


@pytest.mark.parametrize(("priority", "place"), [(5, 4), (-5, 1), (None, None)])
def test_the_place_of_a_job_that_changes_meanwhile_is_its_new_one(
    session: Session, other: Session, engine: Engine, priority: int | None, place: int | None
) -> None:
    first = add_tasks(session, "a", "b", "c", "d")[0]
    reprioritize(session, first, 2)
    session.commit()

    def change() -> None:
        job = other.get_one(Task, first.id)
        cancel(other, job) if priority is None else reprioritize(other, job, priority)
        other.commit()

    with before(engine, COUNTING, change) as taken:
        found = position(session, first)

    assert (found, taken) == (place, [1])


@pytest.mark.parametrize("words", [COUNTING, RANKING])
@pytest.mark.parametrize("weight", [None, 0.5])
def test_a_value_that_becomes_empty_meanwhile_is_noticed(
    mine: Session, other: Session, engine: Engine, weight: float | None, words: str
) -> None:
    tickets = [Ticket(weight=one) for one in (None, 0.9, 0.1, 0.5 if weight is None else None)]
    mine.add_all(tickets)
    mine.commit()

    def change() -> None:
        other.execute(update(Ticket).where(Ticket.id == tickets[3].id).values(weight=weight))
        other.commit()

    asked = tickets if words == RANKING else tickets[3:]
    with before(engine, words, change) as taken:
        found = positions(mine, asked)

    order = claimed_in_order(mine, JobQueue(Ticket))
    assert taken == [1]
    assert found == [order.index(key_of(ticket)) + 1 for ticket in asked]


# -- reprioritize -------------------------------------------------------


@pytest.mark.strategies("skip_locked", "candidates", "compare_and_set", "update_then_select")
@pytest.mark.parametrize("between", ["SELECT", "UPDATE"])
def test_a_job_claimed_meanwhile_keeps_its_priority_and_is_left_out(
    engine: Engine, new_session: Sessions, strategy: str, between: str
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    a, b = add_tasks(session, "a", "b")
    stolen: list[int] = []

    def steal() -> None:
        stolen.extend(job.id for job in claim(other, Task, owner="w", strategy=strategy))
        other.commit()

    with before(engine, between, unless_refused(steal, other)) as taken:
        changed = reprioritize(session, [a, b], 7)
    session.commit()

    left = [job for job in (a, b) if job.id not in stolen]
    found = {job.id: job.priority for job in new_session().scalars(select(Task))}
    assert taken
    assert changed == left
    assert found == {job.id: 7 if job in left else 0 for job in (a, b)}


def test_a_change_waits_for_the_claim_and_then_changes_the_others(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    session = new_session()
    a, b = add_tasks(session, "a", "b")
    ids = [a.id, b.id]
    claimed = claim(session, Task, owner="w", strategy=strategy)
    assert [job.id for job in claimed] == ids[:1]
    changed: list[int] = []
    begun = Event()

    def change() -> None:
        with Session(engine) as theirs:
            jobs = [theirs.get_one(Task, number) for number in ids]
            begun.set()
            changed.extend(job.id for job in reprioritize(theirs, jobs, 7))
            theirs.commit()

    thread = Thread(target=change)
    thread.start()
    assert begun.wait(10)
    complete(session, claimed)
    session.commit()
    thread.join(30)

    assert changed == ids[1:]
    priorities = new_session().scalars(select(Task.priority).order_by(Task.id)).all()
    assert priorities == [0, 7]


def test_a_new_priority_is_a_new_place_at_once(session: Session) -> None:
    a, b, c = add_tasks(session, "a", "b", "c")
    (later,) = add_tasks(session, "later", run_at=datetime.now(UTC) + HOUR)

    changed = reprioritize(session, [c, later], -1)

    assert changed == [c, later]
    assert positions(session, [a, b, c, later]) == [2, 3, 1, None]


# -- rates --------------------------------------------------------------


def prints(session: Session, number: int) -> Claim[Print]:
    """Commit prints, and claim them."""
    session.add_all(Print() for _ in range(number))
    session.commit()
    return claim(session, Print, owner="w", limit=number)


def ago(session: Session, jobs: Sequence[Any], **time: float) -> None:
    """Date finishes back."""
    age = -(timedelta(**time) // timedelta(microseconds=1))
    entity = type(jobs[0])
    session.execute(
        update(entity)
        .where(entity.id.in_([job.id for job in jobs]))
        .values(owner_date=utc_now(literal_column(str(age)))),
        execution_options=NO_SYNC,
    )
    session.commit()


def test_the_rate_is_that_of_the_finishes_in_the_window(mine: Session) -> None:
    jobs = prints(mine, 20)
    complete(mine, jobs[:12])
    fail(mine, jobs[12:15])
    cancel_claimed(mine, jobs[15:16])
    waiting = [Print(), Print()]
    mine.add_all(waiting)
    mine.flush()
    cancel(mine, waiting[0])  # by nobody's work
    ago(mine, jobs[:2], minutes=6)

    assert finish_rate(mine, Print) == pytest.approx(14 / 300)
    assert finish_rate(mine, Print, over=timedelta(minutes=7)) == pytest.approx(16 / 420)
    assert waiting_time(mine, waiting[1]) == timedelta(seconds=1 / (14 / 300))
    assert waiting_time(mine, waiting[0]) is None


def test_a_queue_counts_what_it_completes(mine: Session) -> None:
    queue = JobQueue(Print, then="printed")
    queue.complete(mine, prints(mine, 3))

    assert queue.finish_rate(mine) == pytest.approx(3 / 300)
    assert finish_rate(mine, Print) is None


def test_the_waiting_time_is_the_place_at_the_rate(mine: Session) -> None:
    complete(mine, prints(mine, 30))
    jobs = [Print(priority=-number) for number in range(10)]
    mine.add_all(jobs)
    mine.flush()
    queue = JobQueue(Print)

    assert queue.position(mine, jobs[0]) == 10
    assert queue.waiting_time(mine, jobs[0]) == timedelta(seconds=100)
    assert queue.waiting_time(mine, jobs[0], over=2 * HOUR) == timedelta(hours=2) / 3


def test_nothing_finished_lately_is_no_rate(mine: Session) -> None:
    jobs = prints(mine, 3)
    assert finish_rate(mine, Print) is None
    complete(mine, jobs[:2])
    ago(mine, jobs[:2], minutes=10)
    job = Print()
    mine.add(job)
    mine.flush()

    assert finish_rate(mine, Print) is None
    assert waiting_time(mine, job) is None
    with pytest.raises(ArgumentError, match="longer than nothing"):
        finish_rate(mine, Print, over=timedelta(0))


def test_deleted_rows_tell_no_rate(session: Session) -> None:
    session.add_all([Message(sequence=1), Message(sequence=2)])
    session.commit()
    complete(session, claim(session, Message, owner="w"))
    (job,) = session.scalars(select(Message))

    assert (finish_rate(session, Message), waiting_time(session, job)) == (None, None)
    assert position(session, job) == 1


def test_more_finishes_than_are_counted_are_measured_by_their_own_time(
    mine: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.queue_position.finish_rate.MOST_FINISHES", 10)
    jobs = prints(mine, 20)
    complete(mine, jobs)
    for number, job in enumerate(jobs):
        ago(mine, [job], seconds=10 * (number + 1))

    rate = finish_rate(mine, Print)

    assert rate is not None
    assert 10 / 110 < rate < 10 / 99


@pytest.mark.only_on("postgresql", "sqlite")
def test_without_an_index_the_rate_is_refused_with_the_way_out(session: Session) -> None:
    (email,) = add_emails(session, "a")

    with pytest.raises(ArgumentError, match=r'Index\("ix_email_finish", "status", "owner_date"\)'):
        finish_rate(session, Email)
    with pytest.raises(ArgumentError, match="no index finds"):
        waiting_time(session, email)


@pytest.mark.only_on("postgresql", "sqlite")
def test_an_index_of_the_status_alone_is_no_index_of_finishes(mine: Session) -> None:
    with pytest.raises(ArgumentError, match="ix_memo_finish"):
        finish_rate(mine, Memo)


@pytest.mark.only_on("mysql", "mariadb")
def test_the_index_of_reapers_finds_the_finishes(session: Session) -> None:
    add_emails(session, "a", "b")
    complete(session, claim(session, Email, owner="w"))

    assert finish_rate(session, Email) == pytest.approx(1 / 300)


def test_an_index_of_done_rows_finds_those(mine: Session, db_alias: str) -> None:
    mine.add_all(Fax() for _ in range(6))
    mine.commit()
    jobs = claim(mine, Fax, owner="w", limit=5)
    complete(mine, jobs[:4])
    fail(mine, jobs[4])

    failed = db_alias in ("mysql", "mariadb")  # the reap index has them
    assert finish_rate(mine, Fax) == pytest.approx((4 + failed) / 300)


def test_a_queue_counts_its_own_finishes(mine: Session, new_session: Sessions) -> None:
    mine.add_all(Fax(kind=kind) for kind in "aabbb")
    mine.commit()
    complete(mine, claim(mine, Fax, owner="w", limit=5), then="sent")
    mine.commit()
    tenant = new_session()

    @event.listens_for(tenant, "do_orm_execute")
    def of_tenant(state: ORMExecuteState) -> None:
        state.statement = state.statement.options(with_loader_criteria(Fax, Fax.kind == "a"))

    mine.execute(update(Fax).where(Fax.id == mine.scalar(func.max(Fax.id))).values(status="done"))
    mine.execute(update(Fax).where(Fax.status == "sent").values(status="done"))
    mine.commit()
    of_b = JobQueue(Fax, Fax.kind == "b")
    assert of_b.finish_rate(mine) == pytest.approx(3 / 300)
    assert JobQueue(Fax).finish_rate(tenant) == pytest.approx(2 / 300)


# -- plans --------------------------------------------------------------

#: Jobs that wait; jobs due tomorrow at a better priority; rows that are done.
WAITING, LATER, DONE = 40_000, 40_000, 40_000
IN_FULL = 100_000


@pytest.fixture(scope="module")
def big(db_url: URL, full: bool) -> Iterator[Engine]:
    """A long queue with rows of every kind."""
    engine = make_engine(db_url)
    ModelsBase.metadata.drop_all(engine)  # what other tests have left counts in plans
    ModelsBase.metadata.create_all(engine)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
    waiting, later, done = [IN_FULL] * 3 if full else [WAITING, LATER, DONE]
    fill(engine, "INSERT INTO task (name, priority) SELECT 'now', number % 3", waiting)
    fill(engine, f"INSERT INTO task (name, priority, run_at) SELECT 'l', -1, '{tomorrow}'", later)
    dated = "INSERT INTO email (recipient, status, owner_date) "
    fill(engine, f"{dated} SELECT 'n', 'done', '2020-01-01 00:00:00'", done)
    fill(engine, "INSERT INTO email (recipient) SELECT 'r'", waiting)
    analyze(engine, "task")
    analyze(engine, "email")
    yield engine
    ModelsBase.metadata.drop_all(engine)
    ModelsBase.metadata.create_all(engine)
    engine.dispose()


@contextmanager
def counted(session: Session) -> Iterator[list[int]]:
    """Count the rows that statements read, as each engine can tell: at least so many.

    PostgreSQL tells pages; SQLite its steps, of which one row takes about ten.
    """
    connection, found = session.connection(), list[int]()
    alias = connection.dialect.name
    if alias == "sqlite":
        driver: Any = connection.connection.driver_connection
        steps: list[int] = []
        driver.set_progress_handler(lambda: bool(steps.append(1)), 100)  # type: ignore[func-returns-value]  # False: go on
        yield found
        driver.set_progress_handler(None, 0)
        found.append(len(steps) * 10)
    elif alias == "postgresql":
        with explained_pages(connection.engine) as pages:
            yield found
        found.append(sum(pages))
    else:
        begun = rows_read(connection)
        yield found
        found.append(rows_read(connection) - begun)


@contextmanager
def explained_pages(engine: Engine) -> Iterator[list[int]]:
    """Have PostgreSQL tell the pages that each SELECT touches, before it runs it."""
    pages: list[int] = []

    def explain(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
            plan = cursor.fetchone()[0][0]["Plan"]
            pages.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield pages
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def at(session: Session, entity: Any, place: int) -> Any:
    """Return the job at a place."""
    claimed = claim(session, entity, owner="w", limit=place)
    key = claimed[-1].id
    session.rollback()
    return session.get_one(entity, key)


in_one_worker = pytest.mark.xdist_group("positions")


@in_one_worker
@pytest.mark.parametrize("entity", [Email, Task])
def test_a_place_near_the_head_reads_few_rows(big: Engine, entity: type[Any]) -> None:
    with Session(big) as session:
        job = at(session, entity, 20)

        with counted(session) as read:
            place = position(session, job)

        assert place == 20
        assert read[0] < 150


@in_one_worker
@pytest.mark.only_on("postgresql")
def test_a_place_near_the_head_reads_few_rows_under_autocommit(big: Engine) -> None:
    with Session(big) as session:
        key = at(session, Email, 20).id
    autocommit = big.execution_options(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session:
        job = session.get_one(Email, key)

        with counted(session) as read:
            place = position(session, job)

        assert place == 20
        assert 0 < read[0] < 150


@in_one_worker
@pytest.mark.parametrize("entity", [Email, Task])
def test_many_places_near_the_head_read_few_rows(big: Engine, entity: type[Any]) -> None:
    with Session(big) as session:
        jobs = list(claim(session, entity, owner="w", limit=20))
        session.rollback()
        session.scalars(select(entity).where(entity.id.in_([job.id for job in jobs]))).all()

        with counted(session) as read:
            places = positions(session, jobs)

        assert places == [*range(1, 21)]
        assert read[0] < 800


@in_one_worker
def test_a_job_due_later_or_claimed_is_told_without_a_walk(big: Engine) -> None:
    with Session(big) as session:
        later = session.scalars(select(Task).where(Task.priority == -1).limit(1)).one()
        (claimed,) = claim(session, Task, owner="w")

        with counted(session) as read:
            places = [position(session, later), position(session, claimed)]

        assert places == [None, None]
        assert read[0] < 100
        session.rollback()


@in_one_worker
def test_jobs_due_later_are_not_walked_over_for_a_place_behind_them(big: Engine) -> None:
    """Behind two better priorities, of which all due rows count, and none that is not."""
    with Session(big) as session:
        behind = func.min(Task.id)
        key = session.scalar(select(behind).where(Task.status == "unclaimed", Task.priority == 1))
        job = session.get_one(Task, key)
        sooner = (Task.priority == 0, Task.status == "unclaimed")
        expected = session.scalar(select(func.count()).where(*sooner)) or 0

        with counted(session) as read:
            place = position(session, job)

        assert place == expected + 1
        assert read[0] < expected + 100 if rows_are_counted(session) else read[0] < expected


def rows_are_counted(session: Session) -> bool:
    return session.connection().dialect.name in ("mysql", "mariadb")


@in_one_worker
@pytest.mark.only_on("mysql", "mariadb")
def test_old_finishes_are_not_read_for_the_rate(big: Engine) -> None:
    with Session(big) as session:
        complete(session, claim(session, Email, owner="w", limit=10))

        with counted(session) as read:
            rate = finish_rate(session, Email)

        assert rate == pytest.approx(10 / 300)
        assert read[0] < 100
        session.rollback()
