"""Who listens to what: mistakes are refused, recorders see more, and nobody pays for silence."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, claim
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.events import Event, listen, listens_for, remove
from tests.contract.events.conftest import Hear, names
from tests.models import Account, Email, add_emails


async def awaited(event: Event) -> None: ...


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
    with pytest.raises(ArgumentError, match="does not listen"):
        remove(Email, "after_claim", function)


def test_a_decorated_function_listens_and_stays_a_function(session: Session) -> None:
    queue, heard = JobQueue(Email), list[str]()
    add_emails(session, "a", "b")

    @listens_for(AsyncJobQueue(queue), "after_claim")
    def note(event: Event) -> None:
        heard.append(event.name)

    queue.claim(session, owner="w")
    session.commit()
    remove(queue, "after_claim", note)
    queue.claim(session, owner="w")
    session.commit()

    assert heard == ["after_claim"]


def test_a_subclass_that_is_mapped_later_has_the_listeners_of_its_parent(hear: Hear) -> None:
    class Base(DeclarativeBase):
        pass

    class Parcel(JobMixin, Base):
        __tablename__ = "parcel"
        __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    heard = hear(Parcel, "after_claim")

    class Crate(Parcel):
        __mapper_args__ = {"polymorphic_identity": "crate"}  # noqa: RUF012 - as above

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Crate())
        claim(session, Crate, owner="w")
        session.commit()

    assert names(heard) == ["after_claim"]


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
