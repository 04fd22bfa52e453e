"""A turn finishes a batch and claims the next; on PostgreSQL one statement does both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Engine, delete, exists, select, update
from sqlalchemy.orm import Session, aliased

from sa_jobqueue import ArgumentError, Claim, ClaimLost, JobQueue, renew
from tests.contract.events.conftest import Hear, hear  # noqa: F401 - a fixture
from tests.contract.steps import before
from tests.models import Document, Email, Task, add_emails, add_tasks, recipients
from tests.support import SERVERS, Sessions, translating_errors

EMAILS = JobQueue(Email)


@pytest.fixture(autouse=True)
def _new_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test begin with a queue that has claimed nothing from its tables."""
    monkeypatch.setattr(f"{__name__}.EMAILS", JobQueue(Email))


#: Rows and entities, kept and deleted. The finish of entities that are kept reads them back, so
#: it takes a statement of its own.
WAYS = {
    "rows deleted": {"rows": True, "delete": True},
    "rows kept": {"rows": True, "delete": False},
    "entities deleted": {"delete": True},
    "entities kept": {"delete": False},
}

#: Under AUTOCOMMIT a turn is done whole or not at all where it is one statement.
AUTOCOMMIT = pytest.param("AUTOCOMMIT", marks=pytest.mark.only_on("postgresql"))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, bool]:
    return WAYS[request.param]


@pytest.fixture(params=["transaction", AUTOCOMMIT])
def session(
    request: pytest.FixtureRequest, engine: Engine, new_session: Sessions
) -> Iterator[Session]:
    """A session in a transaction, or one whose statements commit by themselves."""
    if request.param == "transaction":
        yield new_session()
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield new_session(connection)


def claim_as(session: Session, way: dict[str, bool], limit: int = 2) -> Claim[Any]:
    """Claim and commit, as rows or entities."""
    claim = EMAILS.claim_rows if way.get("rows") else EMAILS.claim
    claimed: Claim[Any] = claim(session, owner="w", limit=limit)
    session.commit()
    return claimed


def statuses(session: Session) -> dict[str, str]:
    session.commit()
    found = session.execute(select(Email.recipient, Email.status).order_by(Email.id))
    return {row.recipient: row.status for row in found}


def left_by(way: dict[str, bool], finished: str, **others: str) -> dict[str, str]:
    """Return the statuses after a turn: deleted jobs are gone."""
    gone = {} if way["delete"] else dict.fromkeys(finished, "done")
    return {**gone, **others}


def take_over(session: Session, recipients: str) -> None:
    """Give jobs to another owner."""
    taken = Email.recipient.in_(list(recipients))
    session.execute(update(Email).where(taken).values(owner="another"))
    session.commit()


def test_turns_finish_and_claim_until_nothing_is_ready(
    session: Session, other: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)

    second = EMAILS.turn(session, first, owner="w", limit=2, **way)
    after_one = statuses(session)
    third = EMAILS.turn(session, second, owner="w", limit=2, **way)

    assert (recipients(second), len(third)) == (["c"], 0)
    assert after_one == left_by(way, "ab", c="claimed")
    assert statuses(session) == statuses(other) == left_by(way, "abc")


@pytest.mark.parametrize(
    ("taken", "errors"), [("b", nullcontext), ("abc", nullcontext), ("b", translating_errors)]
)
def test_a_turn_with_lost_jobs_finishes_the_others_and_claims_nothing(
    engine: Engine, session: Session, way: dict[str, bool], taken: str, errors: Any
) -> None:
    """Whatever an application makes of errors."""
    add_emails(session, *"abcdef")
    first, second = claim_as(session, way, limit=3), claim_as(session, way, limit=1)
    take_over(session, taken)

    with errors(engine), pytest.raises(ClaimLost) as caught:
        EMAILS.turn(session, first, owner="w", limit=2, **way)
    third = EMAILS.turn(session, second, owner="w", **way)  # in the same transaction

    kept = "".join(letter for letter in "abc" if letter not in taken)
    assert recipients(caught.value.lost) == list(taken)
    assert recipients(caught.value.kept) == list(kept)
    lost = dict.fromkeys(taken, "claimed")
    assert recipients(third) == ["e"]
    assert statuses(session) == left_by(way, f"{kept}d", **lost, e="claimed", f="unclaimed")


@pytest.mark.parametrize("while_on_its_way", [False, True])
@pytest.mark.only_on(*SERVERS)
def test_a_turn_finishes_jobs_that_are_renewed(
    engine: Engine, session: Session, other: Session, way: dict[str, bool], while_on_its_way: bool
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)

    def renewed() -> None:
        renew(other, first.fences)
        other.commit()

    if while_on_its_way:
        with before(engine, "", renewed):
            second = EMAILS.turn(session, first, owner="w", **way)
    else:
        renewed()
        second = EMAILS.turn(session, first, owner="w", **way)

    assert recipients(second) == ["c"]
    assert statuses(session) == left_by(way, "ab", c="claimed")


@pytest.mark.parametrize("session", ["transaction"], indirect=True)
@pytest.mark.parametrize("to", ["transaction", "savepoint"])
def test_a_turn_that_is_rolled_back_has_not_happened(
    session: Session, way: dict[str, bool], to: str
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)

    undone = session if to == "transaction" else session.begin_nested()
    EMAILS.turn(session, first, owner="w", **way)
    undone.rollback()
    assert statuses(session) == {"a": "claimed", "b": "claimed", "c": "unclaimed"}
    again = EMAILS.turn(session, first, owner="w", **way)

    assert recipients(again) == ["c"]
    assert statuses(session) == left_by(way, "ab", c="claimed")


@pytest.mark.parametrize("session", ["transaction"], indirect=True)
def test_listeners_hear_of_a_turn_when_it_is_committed(
    session: Session,
    hear: Hear,  # noqa: F811 - the fixture
    way: dict[str, bool],
) -> None:
    add_emails(session, *"abcd")
    first = claim_as(session, way)
    heard = hear(Email)

    second = EMAILS.turn(session, first, owner="w", limit=2, **way)
    assert heard == []
    session.commit()
    take_over(session, "c")
    with pytest.raises(ClaimLost):
        EMAILS.turn(session, second, owner="w", **way)
    session.commit()

    assert [(event.name, event.count) for event in heard] == [
        ("after_finish", 2),
        ("after_claim", 2),
        ("after_finish", 1),
        ("after_lost", 1),
    ]


def test_a_turn_finishes_jobs_of_several_claims_and_those_of_another_class(
    session: Session,
) -> None:
    add_emails(session, *"abc")
    add_tasks(session, "task")
    both = [*claim_as(session, {}, limit=1), *claim_as(session, {}, limit=1)]
    (task,) = JobQueue(Task).claim(session, owner="w")

    second = EMAILS.turn(session, both, owner="w", limit=2, delete=True)
    third = EMAILS.turn(session, iter([task]), owner="w")

    assert (recipients(second), len(third), task.status) == (["c"], 0, "done")
    assert statuses(session) == {"c": "claimed"}


@pytest.mark.parametrize(
    ("then", "claimed", "left"),
    [("sent", ["b"], ["sent", "claimed"]), ("unclaimed", ["a"], ["claimed", "unclaimed"])],
)
def test_a_turn_leaves_jobs_with_the_status_of_its_queue_and_may_claim_them_again(
    session: Session, then: str, claimed: list[str], left: list[str]
) -> None:
    add_emails(session, *"ab")
    queue = JobQueue(Email, then=then)
    first = queue.claim_rows(session, owner="w")

    second = queue.turn(session, first, owner="w", rows=True)

    assert recipients(second) == claimed
    assert list(statuses(session).values()) == left


def test_criteria_that_look_at_other_jobs_see_the_finish(session: Session) -> None:
    others = aliased(Email)
    queue = JobQueue(Email, ~exists().where(others.status == "claimed"))
    add_emails(session, *"ab")
    first = queue.claim_rows(session, owner="w")
    session.commit()

    second = queue.turn(session, first, owner="w", rows=True, delete=True)

    assert recipients(second) == ["b"]


def test_a_turn_of_jobs_with_uuids_tells_which_were_lost(session: Session) -> None:
    session.add_all([Document(created=number) for number in range(3)])
    session.commit()
    queue = JobQueue(Document)
    first = queue.claim_rows(session, owner="w", limit=2)
    session.commit()
    session.execute(delete(Document).where(Document.created == 1))
    session.commit()

    with pytest.raises(ClaimLost) as caught:
        queue.turn(session, first, owner="w", delete=True)

    assert (caught.value.kept, caught.value.lost) == ((first[0],), (first[1],))


def test_a_turn_without_an_owner_is_refused_before_it_finishes_a_job(session: Session) -> None:
    add_emails(session, "a", "b")
    queue = JobQueue(Email)
    claimed = queue.claim(session, owner="w")
    session.commit()

    with pytest.raises(ArgumentError, match="owner= is needed"):
        queue.turn(session, claimed)
    session.commit()

    assert [email.status for email in claimed] == ["claimed"]
