"""rate=: so many jobs begin in a time, of all claimers together; and what a rate refuses."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import (
    Engine,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
    MissingTable,
    UnsupportedDatabase,
    claim_statements,
    enqueue,
    utc_now,
)

# Inner: a server's time as the library reads it.
from sa_jobqueue.databases.clock import as_utc
from sa_jobqueue.rates import Rate, prune_rates, rate_table
from sa_jobqueue.testing import run_all
from tests.contract.claimers import run_processes
from tests.contract.rates.rated import (
    ALL,
    CALLS,
    EACH,
    FIFTY,
    HOUR,
    NOTES,
    NOTES_EACH,
    RATES,
    THREE,
    Mail,
    Note,
    RatedBase,
    add,
    buckets,
    claim_for,
    one,
    take,
)
from tests.contract.rates.rated import (
    other as other_task,
)
from tests.contract.steps import before_statement, unless_refused
from tests.processes import FORKSERVER
from tests.running import running
from tests.support import SERVERS, Sessions, impatient, statements_seen, until

BY_KEY = [False, True]
EVERY = pytest.mark.parametrize("queue", [ALL, EACH, NOTES, NOTES_EACH])


# What a claim takes


@EVERY
def test_claims_take_no_more_than_the_bucket_holds(session: Session, queue: JobQueue[Any]) -> None:
    jobs = add(session, queue.entity, *[1] * 5)

    first = queue.claim(session, owner="w", limit=2)
    session.commit()
    second = queue.claim(session, owner="w", limit=9)
    session.commit()
    third = queue.claim(session, owner="w", limit=9)

    assert ([*first, *second], [*third]) == (jobs[:3], [])
    assert first.refills_in is None
    for limited in (second, third):
        assert limited.refills_in is not None
        assert timedelta(minutes=19) < limited.refills_in <= timedelta(minutes=20)


@EVERY
def test_a_claim_that_finds_too_few_jobs_takes_tokens_for_these_alone(
    session: Session, queue: JobQueue[Any]
) -> None:
    add(session, queue.entity, 1)
    short = queue.claim(session, owner="w", limit=9)
    session.commit()
    add(session, queue.entity, 1, 1, 1)

    assert (len(short), short.refills_in) == (1, None)
    assert take(session, queue) == [1, 1]


@EVERY
def test_a_rollback_gives_the_tokens_back(session: Session, queue: JobQueue[Any]) -> None:
    add(session, queue.entity, *[1] * 9)
    queue.claim(session, owner="w", limit=9)
    session.rollback()
    take(session, queue, 1)
    queue.claim(session, owner="w", limit=9)
    session.rollback()

    assert take(session, queue) == [1, 1]


@pytest.mark.parametrize("by_key", BY_KEY)
def test_tokens_come_back_evenly(session: Session, by_key: bool) -> None:
    rate = Rate(20, per=timedelta(seconds=1), burst=2)
    queue = JobQueue(Note, rate=rate, rate_by=Note.customer if by_key else None)
    add(session, Note, *[1] * 9)
    assert take(session, queue) == [1, 1]

    claim = queue.claim(session, owner="w", limit=9)
    session.commit()
    assert claim.refills_in is not None
    time.sleep(claim.refills_in.total_seconds() + 0.002)

    assert len(take(session, queue)) in (1, 2)  # on a busy machine


def test_a_bucket_that_refills_while_a_claim_looks_is_claimed_from_at_once(
    session: Session,
) -> None:
    """The claim has passed over its jobs: without a time a worker would look for none of them."""
    rate = Rate(10, per=timedelta(seconds=1), burst=1)
    queue = JobQueue(Note, rate=rate, rate_by=Note.customer)
    add(session, Note, *[1] * 3)
    take(session, queue)

    def pauses(*arguments: Any) -> None:
        if "FROM rated_note" in arguments[2]:
            time.sleep(0.2)

    event.listen(session.connection(), "after_cursor_execute", pauses)
    claim = queue.claim(session, owner="w", limit=9)
    session.commit()

    assert (len(claim), claim.refills_in) == (0, timedelta(0))


def test_with_several_keys_each_has_a_bucket(session: Session) -> None:
    queue = JobQueue(Mail, rate=Rate(1, per=HOUR), rate_by=(Mail.customer, Mail.region))
    add(session, Mail, 1, 2, 1, region=1)
    add(session, Mail, 1, 2, region=2)

    jobs = queue.claim(session, owner="w", limit=9)

    assert [(job.customer, job.region) for job in jobs] == [(1, 1), (2, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize("queue", [EACH, NOTES_EACH])
def test_jobs_without_a_key_have_no_rate(session: Session, queue: JobQueue[Any]) -> None:
    add(session, queue.entity, 1, None, 1, None, 1, None, 1, None)

    assert take(session, queue) == [1, None, 1, None, 1, None, None]
    add(session, queue.entity, 1, None)
    assert take(session, queue) == [None]


def test_queues_share_the_buckets_of_one_name(session: Session) -> None:
    rate = Rate(3, per=HOUR, burst=3, name="smtp")
    mails, notes = JobQueue(Mail, rate=rate), JobQueue(Note, rate=rate)
    add(session, Mail, 1, 1)
    add(session, Note, 2, 2)

    assert take(session, mails) + take(session, notes) == [1, 1, 2]
    assert take(session, NOTES) == [2]


def test_claimed_rows_and_a_turn_take_tokens_too(session: Session) -> None:
    for queue in (NOTES, NOTES_EACH):
        session.execute(delete(Note))
        session.execute(delete(RATES))
        add(session, Note, *[1] * 5)
        rows = queue.claim_rows(session, owner="w", limit=1)
        session.commit()

        next_ = queue.turn(session, rows, owner="w", limit=9, rows=True)
        session.commit()

        assert (len(next_), take(session, queue)) == (2, [])


# Keys whose bucket is empty, and busy buckets


@pytest.mark.parametrize("queue", [EACH, NOTES_EACH])
@pytest.mark.parametrize("taken", [0, 2, 3])
def test_a_key_whose_bucket_is_empty_does_not_hold_up_others(
    session: Session, queue: JobQueue[Any], taken: int
) -> None:
    add(session, queue.entity, *[1] * taken)
    take(session, queue)
    enqueue(session, queue.entity, [{"customer": 1}] * 600)
    enqueue(session, queue.entity, [{"customer": 2}] * 600)
    add(session, queue.entity, 3, 4)

    with statements_seen(session.get_bind()) as seen:  # type: ignore[arg-type]  # an engine
        customers = take(session, queue, 12)

    assert customers == [1] * (3 - taken) + [2] * 3 + [3, 4]
    assert sum("AS sa_jobqueue_bucket" in each for each in seen) == (2 if taken == 3 else 3)


@pytest.mark.only_on(*SERVERS)
@EVERY
def test_a_busy_bucket_grants_nothing_and_nobody_waits_for_it(
    engine: Engine, session: Session, new_session: Sessions, queue: JobQueue[Any]
) -> None:
    other = new_session(impatient(engine))
    for taken_before in (0, 1):  # the bucket has no row at first
        session.execute(delete(queue.entity))
        session.execute(delete(RATES))
        add(session, queue.entity, *[1] * (9 + taken_before))
        if taken_before:
            take(session, queue, 1)
        queue.claim(session, owner="a")

        busy = queue.claim(other, owner="b", limit=9)
        other.commit()

        assert (len(busy), busy.refills_in) == (0, timedelta(minutes=20))
        session.rollback()
        assert take(other, queue) == [1] * (3 - taken_before)


@pytest.mark.only_on(*SERVERS)
def test_a_busy_bucket_of_a_key_leaves_the_others_to_everybody(
    session: Session, other: Session
) -> None:
    enqueue(session, Note, [{"customer": 1}] * 100)
    add(session, Note, 2, 2)
    NOTES_EACH.claim(session, owner="a")

    assert take(other, NOTES_EACH) == [2, 2]


@pytest.mark.only_on(*SERVERS)
@EVERY
def test_rows_that_others_have_locked_leave_their_tokens_to_others(
    session: Session, other: Session, queue: JobQueue[Any]
) -> None:
    jobs = add(session, queue.entity, *[1] * 5)
    for job in jobs[:2]:
        other.get(queue.entity, job.id, with_for_update=True)

    assert [*queue.claim(session, owner="w", limit=9)] == jobs[2:]


@pytest.mark.only_on(*SERVERS)
@EVERY
def test_an_empty_bucket_is_not_locked(
    session: Session, other: Session, queue: JobQueue[Any]
) -> None:
    add(session, queue.entity, *[1] * 9)
    take(session, queue)
    assert not queue.claim(session, owner="a", limit=9)  # its transaction stays open

    filled = update(RATES).values(full_at=utc_now())
    other.execute(filled)
    other.commit()

    assert take(other, queue) == [1, 1, 1]


@EVERY
def test_no_step_between_two_statements_takes_too_many_tokens(
    engine: Engine, new_session: Sessions, queue: JobQueue[Any]
) -> None:
    session, other = new_session(), new_session(impatient(engine))

    def overrun() -> None:
        take(other, queue)

    for number in range(12):
        session.execute(delete(RATES))
        add(session, queue.entity, *[1] * 6)

        with before_statement(session, number, unless_refused(overrun, other)):
            queue.claim(session, owner="a", limit=9)
            session.commit()

        of_class = select(queue.entity.id).where(queue.entity.status == "claimed")
        assert len(session.scalars(of_class).all()) in (2, 3), number
        session.execute(delete(queue.entity))
        session.commit()
        session.expunge_all()
        other.expunge_all()


# The database's clock


def shift_clock(session: Session, seconds: int) -> None:
    """Set the clock that this session's statements read."""
    alias = session.get_bind().dialect.name
    driver: Any = session.connection().connection.driver_connection
    if alias == "sqlite":
        plain = sqlite3.connect(":memory:", check_same_thread=False)

        def strftime(pattern: str, *moment: str) -> Any:
            asked = f"SELECT strftime({', '.join('?' * (len(moment) + 2))})"
            return plain.execute(asked, (pattern, *moment, f"{seconds} seconds")).fetchone()[0]

        driver.create_function("strftime", -1, strftime)
    elif alias == "postgresql":
        session.execute(text("CREATE SCHEMA shifted"))
        for name in ("statement_timestamp", "clock_timestamp"):
            session.execute(
                text(
                    f"CREATE FUNCTION shifted.{name}() RETURNS timestamptz LANGUAGE sql AS "
                    f"'SELECT pg_catalog.{name}() + interval ''{seconds} seconds'''"
                )
            )
        session.execute(text("SET search_path = shifted, pg_catalog, public"))
        session.commit()
    else:
        session.execute(text(f"SET TIMESTAMP = UNIX_TIMESTAMP() + {seconds}"))


@pytest.mark.parametrize("by_key", BY_KEY)
def test_the_clock_is_the_databases(own_engine: Engine, by_key: bool) -> None:
    RatedBase.metadata.create_all(own_engine)
    queue = NOTES_EACH if by_key else NOTES
    with Session(own_engine) as session:
        add(session, Note, *[1] * 9)
        assert take(session, queue) == [1, 1, 1]
        shift_clock(session, 25 * 60)

        assert take(session, queue) == [1]


@pytest.mark.parametrize("by_key", BY_KEY)
def test_a_slower_rate_or_a_clock_that_was_set_back_leaves_no_bucket_empty_for_long(
    session: Session, by_key: bool
) -> None:
    """The bucket is empty at first, and fills as the rate says."""
    rate = Rate(100, per=timedelta(seconds=1), burst=2)
    queue = JobQueue(Note, rate=rate, rate_by=Note.customer if by_key else None)
    add(session, Note, *[1] * 9)
    take(session, NOTES_EACH if by_key else NOTES)

    claim = queue.claim(session, owner="w", limit=9)
    session.commit()
    assert not claim
    assert claim.refills_in is not None
    assert claim.refills_in <= timedelta(seconds=0.01)
    time.sleep(0.1)

    assert take(session, queue) == [1, 1]


# Full buckets


def test_full_buckets_are_pruned(session: Session) -> None:
    add(session, Note, 1, 2, 3)
    take(session, NOTES_EACH)
    take(session, NOTES)
    long_ago = utc_now(-3_600_000_000)
    first, *_ = session.scalars(select(RATES.c.bucket).order_by(RATES.c.bucket)).all()
    session.execute(update(RATES).where(RATES.c.bucket == first).values(full_at=long_ago))
    session.commit()

    assert prune_rates(session, NOTES) == 1
    session.commit()

    assert buckets(session) == 3
    session.execute(update(RATES).values(full_at=long_ago))
    session.commit()
    assert prune_rates(session, Note, limit=1) == 1


@pytest.mark.only_on(*SERVERS)
def test_a_pruning_leaves_buckets_alone_that_a_claim_has_locked(
    session: Session, other: Session
) -> None:
    add(session, Note, *[1] * 9)
    take(session, NOTES, 1)
    session.execute(update(RATES).values(full_at=utc_now(-3_600_000_000)))
    session.commit()
    NOTES.claim(session, owner="a", limit=3)

    assert prune_rates(other, NOTES) == 0
    other.commit()
    session.commit()
    assert take(session, NOTES) == []


def test_a_worker_prunes(engine: Engine, session: Session) -> None:
    session.execute(insert(RATES).values(rate="x", bucket="y", full_at=utc_now(-3_600_000_000)))
    session.commit()

    def is_gone() -> bool:
        found = session.execute(select(RATES.c.bucket).where(RATES.c.rate == "x")).all()
        session.rollback()
        return not found

    with running(engine, {JobQueue(Note, rate=THREE): print}):
        until(is_gone)


# Workers


@pytest.mark.parametrize("by_key", BY_KEY)
def test_a_worker_wakes_when_the_bucket_fills_and_claims_nothing_ahead(
    engine: Engine, session: Session, by_key: bool
) -> None:
    rate = Rate(4, per=timedelta(seconds=1), burst=1)
    queue = JobQueue(Note, rate=rate, rate_by=Note.customer if by_key else None)
    add(session, Note, *[1] * 9)
    starts: list[float] = []

    with (
        statements_seen(engine) as seen,
        running(
            engine,
            {queue: lambda job: starts.append(time.monotonic())},
            poll=timedelta(minutes=1),
            concurrency=2,
            reap_every=None,
        ),
    ):
        until(lambda: len(starts) >= 5)

    assert starts[4] - starts[0] > 0.85
    claims = [each for each in seen if "full_at" in each and "UPDATE" in each]
    assert len(claims) < 25


def unfinished(session: Session) -> int:
    number = len(session.scalars(select(Note.id).where(Note.status != "done")).all())
    session.rollback()
    return number


def test_a_drain_waits_for_the_rate(engine: Engine, session: Session) -> None:
    queue = JobQueue(Note, rate=Rate(20, per=timedelta(seconds=1), burst=1))
    add(session, Note, *[1] * 5)
    began = time.monotonic()

    with running(engine, {queue: lambda job: None}, drain=True):
        until(lambda: not unfinished(session))

    assert time.monotonic() - began >= 0.2


def test_tasks_have_a_rate_for_each_function(engine: Engine, session: Session) -> None:
    for number in range(5):
        one.enqueue(session, number)
    other_task.enqueue(session, 5)
    session.commit()

    claimed = CALLS.queue.claim(session, owner="w", limit=9)

    assert [job.name for job in claimed] == ["one"] * 3 + ["other"]


# Refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 3}, "takes a Rate, as in"),
        ({"rate_by": Mail.customer}, "takes a Rate, as in"),
        ({"rate": THREE, "rate_by": "customer"}, "takes attributes of Mail"),
        ({"rate": THREE, "rate_by": Note.customer}, "takes attributes of Mail"),
        ({"rate": THREE, "strategy": "held"}, "leave strategy='held' out"),
        ({"rate": THREE, "strategy": "advisory"}, "leave strategy='advisory' out"),
        ({"rate": THREE, "strict_order": True}, "leave strict_order=True out"),
        ({"rate": THREE, "strategy": "candidates"}, "leave strategy='candidates' out"),
        ({"rate": THREE, "serial_by": Mail.region}, "leave serial_by= and limit_by= out"),
    ],
)
def test_what_cannot_be_a_rate_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        JobQueue(Mail, **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rate(0, per=HOUR), "at least 1"),
        (lambda: Rate(True, per=HOUR), "at least 1"),
        (lambda: Rate(1.5, per=HOUR), "at least 1"),  # type: ignore[arg-type]  # a mistake
        (lambda: Rate(1, per=HOUR, burst=-1), "at least 1"),
        (lambda: Rate(1, per=timedelta(0)), "longer than zero"),
        (lambda: Rate(1, per=60), "takes a timedelta"),  # type: ignore[arg-type]  # a mistake
        (lambda: Rate(1, per=HOUR, name="x" * 151), "at most 150"),
        (lambda: Rate(1, per=timedelta.max), "a hundred years"),
        (lambda: Rate(1, per=HOUR, burst=10**9), "a hundred years"),
    ],
)
def test_what_is_no_rate_is_refused(make: Callable[[], Rate], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()


def test_by_default_one_more_may_begin_at_once_than_come_back_in_a_tenth_of_a_second() -> None:
    second = timedelta(seconds=1)
    bursts = [Rate(count, per=second).burst for count in (1, 10, 50, 1000)]
    assert (bursts, Rate(1000, per=HOUR).burst) == ([1, 2, 6, 101], 1)
    assert Rate(10**16, per=second).burst == 10**15 + 1


class Apart(DeclarativeBase):
    pass


class Lonely(JobMixin, Apart):
    __tablename__ = "rated_lonely"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_rate_needs_its_table(own_engine: Engine) -> None:
    Apart.metadata.info.clear()
    with pytest.raises(ArgumentError, match=r"call rate_table\(metadata\)"):
        JobQueue(Lonely, rate=THREE)
    table = rate_table(Apart.metadata, name="rated_missing")
    try:
        assert rate_table(Apart.metadata) is table
        queue = JobQueue(Lonely, rate=THREE)
        Lonely.__table__.create(own_engine)  # type: ignore[attr-defined]  # a Table

        with Session(own_engine) as session, pytest.raises(MissingTable, match="rated_missing"):
            queue.claim(session, owner="w")
    finally:
        Apart.metadata.remove(table)


@pytest.mark.parametrize("queue", [NOTES, NOTES_EACH])
def test_an_autocommit_connection_is_refused(engine: Engine, queue: JobQueue[Any]) -> None:
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    refused = pytest.raises(UnsupportedDatabase, match="without AUTOCOMMIT")
    with Session(alone) as session, refused:
        queue.claim(session, owner="w")


def test_the_statements_of_a_rated_claim_are_listed() -> None:
    for queue in (NOTES, NOTES_EACH):
        statements: Any = claim_statements(queue, dialect="postgresql")
        compiled: Any = postgresql.dialect
        texts = [str(each.compile(dialect=compiled())) for each in statements]
        assert "job_rates" in " ".join(texts)


# By an async session, and in tests of users


def test_a_test_of_handlers_is_not_limited(session: Session) -> None:
    queue = JobQueue(Note, rate=THREE)
    queue.handler(lambda job: None)
    add(session, Note, *[1] * 5)

    assert len(run_all(session, queue)) == 5


# Many processes


@pytest.mark.load
@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.xdist_group("concurrency")
@pytest.mark.parametrize("by_key", BY_KEY)
def test_four_processes_together_keep_to_the_rate(
    engine: Engine, session: Session, by_key: bool
) -> None:
    keys = 2 if by_key else 1
    enqueue(session, Note, [{"customer": number % keys} for number in range(400)])
    session.commit()
    url = engine.url.render_as_string(hide_password=False)
    all_there = FORKSERVER.Barrier(4)
    began: Any = FORKSERVER.Array("d", 4)

    arguments: list[Any] = [(url, by_key, 1.0, all_there, began, number) for number in range(4)]
    run_processes(claim_for, arguments)

    for key in range(keys):
        ours: Any = select(Note.owner_date).where(Note.status == "claimed", Note.customer == key)
        dates = session.scalars(ours).all()
        elapsed = as_utc(max(dates)).timestamp() - min(began)
        assert 0 < len(dates) <= 50 * elapsed + FIFTY.burst
