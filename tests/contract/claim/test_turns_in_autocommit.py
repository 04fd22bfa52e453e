"""On PostgreSQL, a turn under AUTOCOMMIT is one statement: done whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, JobQueue
from tests.models import Email, add_emails, recipients
from tests.support import statements_seen, translating_errors

from .test_turns import (
    WAYS,
    before_next_statement,
    claim_as,
    left_by,
    renew_and_commit,
    statuses,
    take_over,
)

pytestmark = [
    pytest.mark.only_on("postgresql"),
    # The finish of entities that are kept takes a statement of its own.
    pytest.mark.parametrize("way", WAYS[:3]),
]

EMAILS = JobQueue(Email)


@pytest.fixture
def autocommit(engine: Engine) -> Iterator[Session]:
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        Session(connection, expire_on_commit=False) as session,
    ):
        yield session


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_turn_is_one_statement_and_committed(
    engine: Engine, session: Session, autocommit: Session, way: dict[str, bool], limit: int
) -> None:
    add_emails(session, *map(str, range(3 * limit)))
    first = claim_as(autocommit, way, limit=limit)
    second = EMAILS.turn(autocommit, first, owner="w", limit=limit, **way)

    with statements_seen(engine) as seen:
        third = EMAILS.turn(autocommit, second, owner="w", limit=limit, **way)

    assert len(seen) == 1, seen
    assert recipients(third) == [str(number) for number in range(2 * limit, 3 * limit)]
    # Others see the turn at once, while the connection is in use.
    done = [word for word in statuses(session).values() if word == "done"]
    assert len(done) == (0 if way["delete"] else 2 * limit)
    assert list(statuses(session).values())[-limit:] == ["claimed"] * limit


def test_a_turn_without_ready_jobs_finishes(
    session: Session, autocommit: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"ab")
    first = claim_as(autocommit, way)

    assert not EMAILS.turn(autocommit, first, owner="w", limit=2, **way)

    assert statuses(session) == left_by(way, "ab")


@pytest.mark.parametrize("taken", ["b", "abc"])
def test_a_turn_with_lost_jobs_finishes_the_others_and_claims_nothing(
    session: Session, autocommit: Session, way: dict[str, bool], taken: str
) -> None:
    add_emails(session, *"abcde")
    first = claim_as(autocommit, way, limit=3)
    take_over(session, *taken)

    with pytest.raises(ClaimLost) as caught:
        EMAILS.turn(autocommit, first, owner="w", limit=2, **way)

    kept = "".join(letter for letter in "abc" if letter not in taken)
    assert recipients(caught.value.lost) == list(taken)
    assert recipients(caught.value.kept) == list(kept)
    lost = dict.fromkeys(taken, "claimed")
    assert statuses(session) == left_by(way, kept, **lost, d="unclaimed", e="unclaimed")
    again = EMAILS.claim_rows(autocommit, owner="w", limit=5)
    assert recipients(again) == ["d", "e"]


def test_a_turn_tells_lost_jobs_whatever_an_application_makes_of_errors(
    engine: Engine, session: Session, autocommit: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(autocommit, way)
    take_over(session, "b")

    with translating_errors(engine), pytest.raises(ClaimLost) as caught:
        EMAILS.turn(autocommit, first, owner="w", **way)

    assert recipients(caught.value.lost) == ["b"]


def test_a_turn_finishes_jobs_that_are_renewed_while_its_statement_is_on_its_way(
    engine: Engine, session: Session, autocommit: Session, other: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(autocommit, way)

    with before_next_statement(engine, lambda: renew_and_commit(other, first)):
        second = EMAILS.turn(autocommit, first, owner="w", **way)

    assert recipients(second) == ["c"]
    assert statuses(session) == left_by(way, "ab", c="claimed")
