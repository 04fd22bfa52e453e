"""Who listens to what: mistakes are refused, recorders see more, and nobody pays for silence."""

from __future__ import annotations

import gc
import linecache
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, event, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, claim, complete, enqueue
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.events import Event, listen, listens_for, remove
from sa_jobqueue.events.listener import Recorder
from sa_jobqueue.events.listeners import add_listener, remove_listener
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.sessions.transaction_end import TransactionEnd
from sa_jobqueue.workflow import Transition, Workflow
from tests.contract.events.conftest import Hear
from tests.contract.events.support import names
from tests.models import Account, Email, add_emails
from tests.support import with_empty_tables


class Noting(Recorder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: dict[str, str] = {}
        self.ends: list[tuple[str, str]] = []

    def noted(self, event: Event, number: str, writer: Any) -> None:
        assert number not in self.events
        self.events[number] = event.name

    def ended(self, number: str, end: TransactionEnd) -> None:
        self.ends.append((self.events[number], end.value))


@pytest.fixture
def recorder() -> Iterator[Noting]:
    recorder = Noting()
    add_listener(Email, recorder, None)
    yield recorder
    remove_listener(Email, recorder, None)


async def awaited(event: Event) -> None: ...


def test_a_recorder_is_told_within_the_transaction_and_how_it_ended(
    session: Session, recorder: Noting
) -> None:
    add_emails(session, "a")
    claim(session, Email, owner="w")
    assert list(recorder.events.values()) == ["after_enqueue", "after_claim"]
    session.rollback()
    claimed = claim(session, Email, owner="w")
    savepoint = session.begin_nested()
    complete(session, claimed)
    savepoint.rollback()
    session.commit()

    assert recorder.ends == [
        ("after_enqueue", "committed"),
        ("after_claim", "rolled back"),
        ("after_finish", "rolled back"),
        ("after_claim", "committed"),
    ]


def test_a_recorder_is_told_of_a_commit_without_an_answer(
    engine: Engine, session: Session, recorder: Noting
) -> None:
    add_emails(session, "a")
    recorder.ends.clear()

    def lose_the_answer(connection: object) -> None:
        raise OperationalError("COMMIT", None, Exception("connection lost"))

    claim(session, Email, owner="w")
    event.listen(engine, "commit", lose_the_answer)
    with pytest.raises(OperationalError):
        session.commit()
    event.remove(engine, "commit", lose_the_answer)
    session.rollback()

    assert recorder.ends == [("after_claim", "unknown")]


class LosingAnswers(sqlite3.Connection):
    """A connection that commits, and then raises an error as if the answer were lost."""

    losing = False

    def commit(self) -> None:
        super().commit()
        if self.losing:
            raise sqlite3.OperationalError("the answer is lost")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("kind", [Session, Connection])
def test_the_end_is_unknown_in_a_session_and_on_a_connection(
    kind: type[Any],
    db_url: URL,
    session: Session,
    recorder: Noting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_emails(session, "a")
    recorder.ends.clear()
    engine = create_engine(db_url, connect_args={"factory": LosingAnswers})

    with kind(engine) as opened:
        JobQueue(Email).claim_rows(opened, owner="w")
        monkeypatch.setattr(LosingAnswers, "losing", True)
        with pytest.raises(OperationalError, match="the answer is lost"):
            opened.commit()
    engine.dispose()

    assert recorder.ends == [("after_claim", "unknown")]
    assert session.scalars(select(Email.owner)).all() == ["w"]


@pytest.mark.parametrize(
    ("target", "name", "function", "message"),
    [
        (Email, "after_lunch", print, "the events are after_enqueue, "),
        (Account, "after_claim", print, "add JobMixin"),
        ("email", "after_claim", print, "not a mapped class"),
        (Email, "after_claim", awaited, "plain function"),
        (Email, "after_claim", "print", "plain function"),
    ],
)
def test_a_mistake_is_refused(target: Any, name: str, function: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        listen(target, name, function)


def test_what_does_not_listen_cannot_be_removed() -> None:
    with pytest.raises(ArgumentError, match="does not listen"):
        remove(Email, "after_claim", print)


def test_a_decorated_function_listens_and_stays_a_function(session: Session) -> None:
    queue, heard = JobQueue(Email), list[str]()
    add_emails(session, "a")

    @listens_for(AsyncJobQueue(queue), "after_claim")
    def note(event: Event) -> None:
        heard.append(event.name)

    queue.claim(session, owner="w")
    session.commit()
    remove(queue, "after_claim", note)

    assert heard == ["after_claim"]


def test_a_subclass_that_is_mapped_later_has_the_listeners_of_its_parent(hear: Hear) -> None:
    class Base(DeclarativeBase):
        pass

    class Parcel(JobMixin, Base):
        __tablename__ = "parcel"
        __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    hear(Parcel, "after_claim")

    class Crate(Parcel):
        __mapper_args__ = {"polymorphic_identity": "crate"}  # noqa: RUF012 - as above

    assert mapping_of(Crate).listeners == mapping_of(Parcel).listeners != ()


@contextmanager
def calls_counted() -> Iterator[list[int]]:
    """Count the calls of Python and C functions in this thread, but not those of finalizers."""
    calls = [0]

    def count(frame: Any, kind: str, arg: Any) -> None:
        calls[0] += kind in ("call", "c_call")

    gc.disable()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()


def calls_of(work: Callable[[], object]) -> int:
    with calls_counted() as calls:
        work()
    return calls[0]


@contextmanager
def instructions_counted() -> Iterator[Counter[tuple[str, int]]]:
    """Count the bytecode instructions of this thread, by file and line."""
    counted: Counter[tuple[str, int]] = Counter()

    def trace(frame: Any, kind: str, arg: Any) -> Any:
        frame.f_trace_opcodes = True
        if kind == "opcode":
            counted[frame.f_code.co_filename, frame.f_lineno or 0] += 1
        return trace

    sys.settrace(trace)
    try:
        yield counted
    finally:
        sys.settrace(None)


@pytest.mark.only_on("sqlite")
def test_without_listeners_the_events_take_less_than_a_hundredth_of_a_claims_instructions(
    session: Session,
) -> None:
    queue = JobQueue(Email)
    add_emails(session, "a", "b")

    def work() -> None:
        queue.complete(session, queue.claim(session, owner="w"))
        session.commit()

    work()
    with instructions_counted() as counted:
        work()

    own = str(Path("sa_jobqueue", "events"))
    asked = {at for at in counted if own in at[0] or "mapping.listeners" in linecache.getline(*at)}
    assert asked, "the verbs ask for listeners"
    assert not any(own in path for path, _ in asked), "and call nothing"
    assert sum(counted[at] for at in asked) < counted.total() / 100


@pytest.mark.only_on("sqlite")
def test_a_queue_without_listeners_calls_as_much_after_its_last_listener_has_gone(
    session: Session,
) -> None:
    add_emails(session, *"abcdefgh")
    silent, once = JobQueue(Email), JobQueue(Email)
    heard: list[Event] = []
    listen(once, "after_claim", heard.append)
    once.claim(session, owner="w")
    session.commit()
    remove(once, "after_claim", heard.append)

    def work(queue: JobQueue[Email]) -> None:
        queue.claim(session, owner="w")
        session.commit()

    for queue in (silent, once):
        work(queue)
    counts = [calls_of(partial(work, queue)) for queue in (silent, once)]

    assert names(heard) == ["after_claim"]
    assert counts[0] == counts[1]


def test_a_flush_within_a_queues_method_is_not_of_the_queue(session: Session, hear: Hear) -> None:
    queue = JobQueue(Email, Email.recipient == "a")
    of_queue, of_class = hear(queue, "after_enqueue"), hear(Email, "after_enqueue")
    session.add(Email(recipient="b"))

    queue.claim(session, owner="w")
    session.commit()

    assert of_queue == []
    assert [event.queue for event in of_class] == [None]


def test_what_a_listener_calls_is_not_of_its_queue(
    engine: Engine, session: Session, hear: Hear
) -> None:
    add_emails(session, "a", "b")
    queue, silent = JobQueue(Email, Email.recipient == "a"), JobQueue(Email)
    heard = hear(queue, "after_claim")
    claimed: list[Any] = []

    def claim_another(event: Event) -> None:
        if not claimed:
            claimed.extend(silent.claim_rows(connection, owner="x"))

    listen(queue, "after_claim", claim_another)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        queue.claim_rows(connection, owner="w")  # under AUTOCOMMIT the listener is called at once
    remove(queue, "after_claim", claim_another)

    assert len(claimed) == 1
    assert [event.jobs[0].owner for event in heard] == ["w"]


class PostBase(DeclarativeBase):
    pass


class Postcard(JobMixin, PostBase):
    """A class of its own, since the listeners of a workflow stay."""

    __tablename__ = "listeners_postcard"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_what_a_listener_of_transitions_calls_is_not_of_the_steps_queue(
    engine: Engine, hear: Hear
) -> None:
    workflow = Workflow(Postcard)

    @workflow.step("unclaimed", during="claimed", then="done")
    def send(postcard: Postcard) -> None: ...

    @workflow.on_transition
    def add_another(session: Session, transition: Transition) -> None:
        enqueue(session, Postcard, [{}])

    with Session(with_empty_tables(engine, PostBase.metadata)) as session:
        session.add(Postcard())
        session.commit()
        heard = hear(send.queue, "after_enqueue", "after_claim")
        send.queue.claim(session, owner="w")
        session.commit()

    assert names(heard) == ["after_claim"]
