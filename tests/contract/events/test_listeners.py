"""Who listens to what: mistakes are refused, recorders see more, and nobody pays for silence."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, claim
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.events import Event, listen, listens_for, remove
from tests.contract.events.conftest import Hear, names
from tests.models import Account, Animal, Email, add_emails


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


@pytest.mark.only_on("sqlite")  # once: a class is mapped once
def test_a_subclass_that_is_mapped_later_has_the_listeners_of_its_parent(
    session: Session, hear: Hear
) -> None:
    heard = hear(Animal, "after_claim")

    class Bird(Animal):
        __mapper_args__ = {"polymorphic_identity": "bird"}  # noqa: RUF012 - as users write it

    session.add(Bird())
    session.commit()
    claim(session, Bird, owner="w")
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
