"""A user's application, typed strictly: mypy and pyright find no error in it.

It is never run. ``assert_type`` holds what the type checkers are to infer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_type

from sqlalchemy import Engine, Row, String, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from sa_jobqueue import (
    Backoff,
    Claim,
    ClaimLost,
    ConstantBackoff,
    ExponentialBackoff,
    Fence,
    JobMixin,
    JobQueue,
    JobStatus,
    OwnerState,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
    cancel,
    cancel_claimed,
    claim,
    claim_statements,
    claimed_by,
    complete,
    enqueue,
    fail,
    fence_of,
    prune,
    reap,
    release,
    renew,
    retry,
    round_progress,
    start_round,
    stats,
    wait,
    with_fence,
)
from sa_jobqueue import asyncio as aio
from sa_jobqueue.bulk import (
    BulkLoad,
    DatabaseLog,
    DivisibleSource,
    EnqueueSource,
    FileLog,
    InsertSource,
    LoadState,
    Metadata,
    Progress,
    load_table,
)
from sa_jobqueue.control import (
    Pause,
    control_tables,
    pause,
    paused,
    read_control,
    request_stop,
    workers,
)

# Inner: a user names the types of results in annotations alone.
from sa_jobqueue.counts import QueueStats
from sa_jobqueue.events import Event, HistoryTable, history_table, listens_for
from sa_jobqueue.groups import (
    Group,
    GroupMixin,
    GroupProgress,
    WaitingMixin,
    add_to_group,
    after,
    group_progress,
    recount,
)
from sa_jobqueue.rounds import RoundProgress
from sa_jobqueue.schedules import Ran, Schedules
from sa_jobqueue.tasks import TaskMixin, TaskQueue

# Inner: as above.
from sa_jobqueue.verbs import Reaped, ReapedJob
from sa_jobqueue.worker import Cancel, Done, JobContext, Retry, Worker, job_context
from sa_jobqueue.workflow import InvalidTransition, NotWaiting, Step, Transition, Workflow


class Base(DeclarativeBase):
    pass


class Email(JobMixin, RoundMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    __tablename__ = "email"

    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(100))


class Order(
    JobMixin.named(status="job_status", owner="job_owner"),  # type: ignore[misc]  # as documented
    Base,
):
    __tablename__ = "customer_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(10))


if TYPE_CHECKING:

    class ParcelJob:
        job_status: Mapped[str]
        job_owner: Mapped[str | None]
        owner_date: Mapped[datetime | None]
else:
    ParcelJob = JobMixin.named(status="job_status", owner="job_owner")


class Parcel(ParcelJob, Base):
    __tablename__ = "parcel"

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[int]


engine = create_engine("sqlite://")
Sessions = sessionmaker(engine, expire_on_commit=False)


# Columns


def columns(email: Email) -> None:
    assert_type(email.status, str)
    assert_type(email.owner, str | None)
    assert_type(email.owner_date, datetime | None)
    assert_type(email.priority, int)
    assert_type(email.run_at, datetime)
    assert_type(email.attempts, int)
    assert_type(email.max_attempts, int | None)
    assert_type(email.last_error, str | None)
    assert_type(email.round, int)
    if email.status == JobStatus.DONE:
        email.priority = 5


# Verbs


def produce(session: Session, rows: Iterator[dict[str, Any]], at: datetime) -> int | None:
    session.add(Email(recipient="a@example.org"))
    assert_type(enqueue(session, Email, rows, skip_duplicates=True), int | None)
    return enqueue(session, Email, rows, priority=1, run_at=at)


def consume(session: Session) -> None:
    emails = claim(session, Email, Email.recipient.like("a%"), owner="mailer-1", limit=100)
    session.commit()
    assert_type(emails, Claim[Email])
    assert_type(emails[0], Email)
    assert_type(emails.first(), Email | None)
    assert_type(emails.lost, int | None)
    for email in emails:
        send(email)
    complete(session, emails)
    session.commit()


def consume_one(session: scoped_session[Session]) -> None:
    email = claim(session, Email, owner=5, order_by=(Email.priority, Email.run_at.desc())).first()
    if email is None:
        return
    try:
        complete(session, email, delete=False, values={Email.recipient: "x", Email.id: 1})
        release(session, email, values=lambda job: {Email.recipient: job.recipient})
    except ClaimLost as lost:
        assert_type(lost.kept, tuple[Any, ...])


def send(email: Email) -> None:
    email.recipient.upper()


def finish(session: Session, email: Email, emails: list[Email]) -> None:
    fail(session, email, error=ValueError("no"), retry_in=timedelta(minutes=1))
    fail(session, emails, error="no", backoff=ConstantBackoff(timedelta(minutes=1)))
    renew(session, fence_of(email))
    cancel_claimed(session, email, reason="no such address")
    assert_type(fence_of(email), Fence)
    assert_type(with_fence(email, fence_of(email)), Email)
    assert_type(cancel(session, emails), list[Any])
    assert_type(wait(engine, emails[0], timeout=timedelta(seconds=1)), Email | None)
    assert_type(retry(session, emails), list[Any])


def look(session: Session) -> None:
    assert_type(prune(session, Email, older_than=timedelta(days=7)), int)
    assert_type(stats(session, Email), QueueStats)
    assert_type(claimed_by(session, Email, "mailer-1"), Claim[Email])
    for statement in claim_statements(Email, dialect="postgresql"):
        session.execute(statement)


def renamed(session: Session) -> None:
    order = claim(session, Order, owner="packer").first()
    assert_type(order, Order | None)
    if order is not None:
        assert_type(order.status, str)
        complete(session, order)


def renamed_and_typed(session: Session) -> None:
    parcel = claim(session, Parcel, owner="packer").first()
    assert_type(parcel, Parcel | None)
    if parcel is not None:
        assert_type(parcel.job_status, str)
        assert_type(parcel.job_owner, str | None)
        assert_type(parcel.owner_date, datetime | None)
        assert_type(parcel.status, int)
        complete(session, parcel)
        parcel.stauts = 1  # type: ignore[attr-defined]  # no such attribute
    JobQueue(Parcel, Parcel.job_status == JobStatus.DONE)


# Queues and workers

OUTBOX = JobQueue(Email, Email.recipient.like("a%"), lease=timedelta(minutes=5))
IN_ORDER = JobQueue(Email, serial_by=Email.recipient)
FEW = JobQueue(Email, limit_by={(Email.id, Email.recipient): 3})


def squares(attempts: int) -> timedelta:
    return timedelta(seconds=attempts**2)


POLICIES: list[Backoff] = [squares, ExponentialBackoff(), ConstantBackoff(timedelta(seconds=5))]
PATIENT = JobQueue(Email, backoff=ExponentialBackoff(timedelta(seconds=5), factor=3, jitter=1))
assert_type(PATIENT.backoff, Backoff | None)


def queues(session: Session) -> None:
    assert_type(OUTBOX, JobQueue[Email])
    emails = OUTBOX.claim(session, owner="mailer-1", limit=10)
    assert_type(emails, Claim[Email])
    assert_type(OUTBOX.claim_rows(session, owner="mailer-1"), Claim[Row[Any]])
    OUTBOX.complete(session, emails)
    assert_type(OUTBOX.turn(session, emails, owner="mailer-1", limit=10), Claim[Any])
    assert_type(OUTBOX.enqueue(session, [], priority=1, skip_duplicates=True), int | None)
    assert_type(OUTBOX.cancel(session, emails), list[Email])
    assert_type(OUTBOX.retry(session, emails[0]), list[Email])


def reaping(session: Session) -> None:
    reaped = reap(session, Email, lease=timedelta(minutes=5), limit=100)
    assert_type(reaped, Reaped)
    assert_type(reaped.jobs, tuple[ReapedJob, ...])
    assert_type(reaped.by_owner, dict[str | None, int])
    assert_type(OUTBOX.reap(session, max_runtime=timedelta(hours=1)), Reaped)


def rounds(session: Session, engine: Engine) -> None:
    number = start_round(engine, Email, Email.recipient.like("a%"), chunk=500)
    assert_type(number, int)
    assert_type(round_progress(session, Email, number), RoundProgress)
    claim(session, Email, Email.round == number, owner="w")


def handle(email: Email) -> Done | Retry | Cancel | None:
    if email.attempts > 8:
        return Done({Email.recipient: "x"})
    if email.attempts > 3:
        return Cancel("too often")
    return Retry(in_=timedelta(seconds=5), reason="not yet") if email.owner else None


HANDLED = JobQueue(Email)


ORDERS = JobQueue(Order)


@HANDLED.handler(transactional=True)
def book(session: Session, email: Email) -> Retry | None:
    assert_type(job_context(), JobContext)
    session.add(email)
    return None


BATCHES = JobQueue(Email, listen="new_email")


@BATCHES.handler(batch=100, timeout=timedelta(minutes=1))
def send_many(emails: list[Email]) -> dict[Email, Retry | Cancel | Exception]:
    return {email: Retry() for email in emails if email.attempts > 1}


@JobQueue(Email).handler(batch=100, transactional=True)
async def book_many(session: AsyncSession, emails: list[Email]) -> None:
    session.add_all(emails)


def work(engine: Engine) -> None:
    worker = Worker(engine, OUTBOX, handle, limit=10, drain=True)
    assert_type(worker, Worker[Email])
    with worker.stopping_on_signals():
        worker.run()
    Worker(engine, OUTBOX, send).run()
    Worker(engine, [HANDLED, OUTBOX]).run()
    Worker(engine, [HANDLED, ORDERS]).run()


# Workflows


class ParcelStatus(StrEnum):
    PACKED = "packed"
    SENT = "sent"
    LOST = "lost"


PARCELS = Workflow(Email, ParcelStatus, final=[ParcelStatus.LOST])


@PARCELS.step(
    JobStatus.UNCLAIMED,
    Email.recipient.like("a%"),
    during="packing",
    then=ParcelStatus.PACKED,
    branches=[ParcelStatus.LOST],
    lease=timedelta(hours=1),
)
def pack(email: Email) -> ParcelStatus | Retry | None:
    return ParcelStatus.LOST if email.attempts > 3 else Retry(in_=timedelta(seconds=5))


PARCELS.waiting(ParcelStatus.PACKED, signals=ParcelStatus.SENT)


@PARCELS.on_transition
def note(session: Session, transition: Transition) -> None:
    session.add(Email(recipient=f"{transition.identity} {transition.before} {transition.verb}"))


def steps(session: Session, engine: Engine) -> None:
    assert_type(pack, Step[Email])
    assert_type(PARCELS.steps, tuple[Step[Email], ...])
    emails = pack.queue.claim(session, owner="packer")
    assert_type(emails, Claim[Email])
    pack.queue.complete(session, emails, then=ParcelStatus.LOST)
    worker = Worker(engine, PARCELS, limit=10)
    assert_type(worker, Worker[Any])
    Worker(engine, pack).run()


def signals(session: Session, email: Email) -> None:
    try:
        PARCELS.signal(session, email, ParcelStatus.SENT)
    except NotWaiting as error:
        assert_type(error.status, str | None)
    except InvalidTransition as error:
        assert_type(error.declared, tuple[str, ...])
    assert_type(PARCELS.cancel(session, email), list[Email])
    assert_type(PARCELS.retry(session, [email], "packed"), list[Email])


# asyncio

AWAITED = aio.AsyncJobQueue(OUTBOX)


async def consume_awaiting(session: AsyncSession) -> None:
    where = Email.recipient.like("a%")
    emails = await aio.claim(session, Email, where, owner="mailer-1", limit=100)
    assert_type(emails, Claim[Email])
    await aio.complete(session, emails, delete=True)
    await aio.fail(session, emails[0], error=ValueError("no"), retry_in=timedelta(minutes=1))
    assert_type(await aio.cancel(session, emails), list[Any])
    assert_type(await aio.start_round(session, Email, Email.priority < 3, chunk=50), int)
    assert_type(AWAITED, aio.AsyncJobQueue[Email])
    emails = await AWAITED.claim(session, owner="mailer-1")
    assert_type(emails, Claim[Email])
    assert_type(await AWAITED.claim_rows(session, owner="mailer-1"), Claim[Row[Any]])
    assert_type(await AWAITED.reap(session, limit=5), Reaped)
    assert_type(await AWAITED.turn(session, emails, owner="mailer-1", limit=10), Claim[Any])
    assert_type(await AWAITED.fail(session, emails, error="no", retry_in=timedelta(1)), None)
    assert_type(await AWAITED.cancel(session, emails), list[Email])


async def look_awaiting(session: async_scoped_session[AsyncSession]) -> None:
    rows = [{"recipient": "b@example.org"}]
    assert_type(await aio.enqueue(session, Email, rows, skip_duplicates=True), int | None)
    assert_type(await aio.stats(session, Email), QueueStats)


async def handle_awaiting(email: Email) -> Done | Retry | Cancel | None:
    return handle(email)


async def send_awaiting(email: Email) -> None:
    send(email)


async def work_awaiting(engine: AsyncEngine) -> None:
    worker = aio.AsyncWorker(engine, OUTBOX, handle_awaiting, limit=10, concurrency=5)
    assert_type(worker, aio.AsyncWorker[Email])
    with worker.stopping_on_signals():
        await worker.run()
    await aio.AsyncWorker(engine, AWAITED, send_awaiting, on_claim=print).run()
    async with aio.advisory_session(engine) as session:
        assert_type(session, AsyncSession)


# Bulk loads


def load_emails(rows: Sequence[dict[str, Any]]) -> None:
    load = BulkLoad(InsertSource(engine, Email, rows, total=10), FileLog("loads/may"))
    load.run()
    assert_type(load, BulkLoad[InsertSource])
    assert_type(load.state, LoadState)
    assert_type(load.status(), Progress)
    jobs = EnqueueSource(engine, Email, lambda: iter(rows), visible="at the end")
    BulkLoad(jobs, DatabaseLog(engine, table=load_table(Base.metadata))).rollback()


class Uploads(DivisibleSource[list[str]]):
    def metadata(self) -> Metadata:
        return Metadata(total=10, batch_size=2)

    def divide(self) -> Iterator[list[str]]:
        yield ["a", "b"]

    def update(self, batch: list[str]) -> None: ...

    def rollback(self, batch: list[str]) -> None: ...


@listens_for(JobQueue(Email), "after_fail")
def count_failures(event: Event) -> None:
    assert_type(event.error, str | None)
    for job in event.jobs:
        assert_type(job.key, tuple[Any, ...])
        assert_type(job.owner_date, datetime | None)


def recorded() -> None:
    assert_type(HistoryTable(history_table(Base.metadata)).listen(Email), HistoryTable)


def controlled(session: Session, email: Email) -> None:
    tables = control_tables(Base.metadata)
    assert_type(pause(session, Email), bool)
    assert_type(paused(session), list[Pause])
    assert_type(workers(session)[0].state, OwnerState)
    assert_type(request_stop(session, email), bool)
    state = read_control(session.connection(), [Email], owner="w", tables=tables)
    assert_type(state.is_paused(Email), bool)


def scheduled(session: Session) -> None:
    schedules, outbox = Schedules(Base.metadata), JobQueue(Email)

    outbox.every("0 7 * * *", name="r", timezone="Europe/Berlin", values={"recipient": "a"})
    assert_type(schedules.declare(session, [outbox]).undeclared, tuple[str, ...])
    assert_type(schedules.run_due(session, [outbox]), list[Ran])


class Call(TaskMixin, Base):
    __tablename__ = "call"
    id: Mapped[int] = mapped_column(primary_key=True)


CALLS = TaskQueue(Call, lease=timedelta(minutes=5))


@CALLS.task
def send_invoice(order: int, *, copy: bool = False) -> str:
    return str(order)


@CALLS.every("30 2 * * *")
@CALLS.task(transactional=True, max_attempts=3)
def count(session: Session, page: int = 0) -> None: ...


AWAITED_CALLS = TaskQueue(Call)


@AWAITED_CALLS.task(timeout=timedelta(seconds=5))
async def fetch(page: int) -> bytes:
    return b""


def enqueue_tasks(session: Session, awaited: AsyncSession) -> None:
    job = send_invoice.enqueue(session, 7, copy=True)
    assert_type(job, Call)
    assert_type(send_invoice.result(job), str)
    assert_type(send_invoice(7), str)
    assert_type(send_invoice.with_options(priority=1).enqueue(awaited, 7), Call)
    count.enqueue(session, page=2)
    count(session, 2)
    page = fetch.enqueue(awaited, 1)
    assert_type(page, Call)
    assert_type(fetch.result(page), bytes)
    CALLS.queue.enqueue(session, [send_invoice.values(n) for n in range(3)])
    Worker(engine, CALLS).run()


class Member(GroupMixin, JobMixin, Base):
    __tablename__ = "member"
    id: Mapped[int] = mapped_column(primary_key=True)


class Sum(WaitingMixin, GroupMixin, JobMixin, Base):
    __tablename__ = "sum"
    id: Mapped[int] = mapped_column(primary_key=True)


async def group(session: Session, awaited: AsyncSession) -> None:
    found = after(session, [Member(), Member()], then=Sum(), on_failure="cancel")
    assert_type(found, Group)
    assert_type(Member().group_id, int | None)
    add_to_group(session, found, [Member()])
    progress = group_progress(session, found)
    assert_type(progress, GroupProgress)
    assert_type(progress.settled_at, datetime | None)
    assert_type(recount(session, Member), list[Group])
    assert_type(await awaited.run_sync(after, [Member()], Sum()), Group)
