"""A turn finishes a batch and claims the next; on PostgreSQL one statement does both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, event, exists, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, aliased, mapped_column

from sa_jobqueue import Claim, ClaimLost, JobMixin, JobQueue, renew
from sa_jobqueue.fence.carried import MOST_CARRIED
from tests.contract.events.conftest import hear  # noqa: F401 - a fixture
from tests.models import (
    Document,
    Email,
    Task,
    add_emails,
    add_tasks,
    names,
    recipients,
)
from tests.support import begin_deferred, statements_seen, with_empty_tables

EMAILS = JobQueue(Email)

#: Rows and entities, kept and deleted.
WAYS = [
    pytest.param({"rows": True, "delete": True}, id="rows deleted"),
    pytest.param({"rows": True, "delete": False}, id="rows kept"),
    pytest.param({"delete": True}, id="entities deleted"),
    pytest.param({"delete": False}, id="entities kept"),
]

ways = pytest.mark.parametrize("way", WAYS)


def claim_as(session: Session, way: dict[str, bool], limit: int = 2) -> Claim[Any]:
    """Claim and commit, as rows or entities."""
    claim = EMAILS.claim_rows if way.get("rows") else EMAILS.claim
    claimed: Claim[Any] = claim(session, owner="w", limit=limit)
    session.commit()
    return claimed


def statuses(session: Session) -> dict[str, str]:
    session.rollback()
    found = session.execute(select(Email.recipient, Email.status).order_by(Email.id))
    return {row.recipient: row.status for row in found}


def left_by(way: dict[str, bool], finished: str, **others: str) -> dict[str, str]:
    """Return the statuses after a turn: deleted jobs are gone."""
    gone = {} if way["delete"] else dict.fromkeys(finished, "done")
    return {**gone, **others}


def take_over(session: Session, *recipients: str) -> None:
    """Give jobs to another owner."""
    taken = Email.recipient.in_(recipients)
    session.execute(update(Email).where(taken).values(owner="another"))
    session.commit()


@ways
def test_a_turn_finishes_and_claims(session: Session, way: dict[str, bool]) -> None:
    add_emails(session, *"abcde")
    first = claim_as(session, way)

    second = EMAILS.turn(session, first, owner="w", limit=2, **way)
    session.commit()

    assert recipients(second) == ["c", "d"]
    left = left_by(way, "ab", c="claimed", d="claimed", e="unclaimed")
    assert statuses(session) == left


@ways
def test_a_turn_without_ready_jobs_finishes(session: Session, way: dict[str, bool]) -> None:
    add_emails(session, *"ab")
    first = claim_as(session, way)

    second = EMAILS.turn(session, first, owner="w", limit=2, **way)
    session.commit()

    assert not second
    assert statuses(session) == left_by(way, "ab")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("way", WAYS[:3])
def test_a_turn_takes_one_statement(engine: Engine, session: Session, way: dict[str, bool]) -> None:
    add_emails(session, *"abcd")
    first = claim_as(session, way)

    with statements_seen(engine) as seen:
        second = EMAILS.turn(session, first, owner="w", limit=2, **way)

    assert len(second) == 2
    assert len(seen) == 1, seen


@pytest.mark.only_on("postgresql")
def test_a_turn_of_many_jobs_takes_two_statements(engine: Engine, session: Session) -> None:
    add_emails(session, *"x" * (MOST_CARRIED + 2))
    first = claim_as(session, {"rows": True}, limit=MOST_CARRIED + 1)

    with statements_seen(engine) as seen:
        second = EMAILS.turn(session, first, owner="w", rows=True, delete=True)

    assert len(second) == 1
    assert [text.split()[0] for text in seen] == ["DELETE", "UPDATE"]


@ways
def test_a_turn_with_lost_jobs_claims_nothing(session: Session, way: dict[str, bool]) -> None:
    add_emails(session, *"abcde")
    first = claim_as(session, way, limit=3)
    take_over(session, "b")

    with pytest.raises(ClaimLost) as caught:
        EMAILS.turn(session, first, owner="w", limit=2, **way)
    session.commit()

    assert recipients(caught.value.lost) == ["b"]
    assert recipients(caught.value.kept) == ["a", "c"]
    left = left_by(way, "ac", b="claimed", d="unclaimed", e="unclaimed")
    assert statuses(session) == left


@ways
def test_a_turn_whose_jobs_are_all_lost_claims_nothing(
    session: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)
    take_over(session, "a", "b")

    with pytest.raises(ClaimLost) as caught:
        EMAILS.turn(session, first, owner="w", limit=2, **way)
    session.commit()

    assert not caught.value.kept
    assert statuses(session) == {"a": "claimed", "b": "claimed", "c": "unclaimed"}


@ways
def test_a_turn_after_a_lost_one_in_the_same_transaction_is_whole(
    session: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abcd")
    first, second = claim_as(session, way), claim_as(session, way)
    take_over(session, "b")

    with pytest.raises(ClaimLost):
        EMAILS.turn(session, first, owner="w", **way)
    third = EMAILS.turn(session, second, owner="w", **way)
    session.commit()

    assert not third
    assert statuses(session) == left_by(way, "acd", b="claimed")


@ways
def test_a_turn_finishes_jobs_that_were_renewed(
    session: Session, other: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)
    renew(other, first.fences)
    other.commit()

    second = EMAILS.turn(session, first, owner="w", **way)
    session.commit()

    assert recipients(second) == ["c"]
    assert statuses(session) == left_by(way, "ab", c="claimed")


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
@ways
def test_a_turn_finishes_jobs_that_are_renewed_while_its_statement_is_on_its_way(
    engine: Engine, session: Session, other: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)

    with before_next_statement(engine, lambda: renew_and_commit(other, first)):
        second = EMAILS.turn(session, first, owner="w", **way)
    session.commit()

    assert recipients(second) == ["c"]
    assert statuses(session) == left_by(way, "ab", c="claimed")


def renew_and_commit(session: Session, claimed: Claim[Any]) -> None:
    renew(session, claimed.fences)
    session.commit()


class before_next_statement:  # noqa: N801 - reads as a function
    """Call something right before the next statement, once."""

    def __init__(self, engine: Engine, call: Callable[[], None]) -> None:
        self._engine = engine
        self._call: Callable[[], None] | None = call

    def __enter__(self) -> None:
        event.listen(self._engine, "before_cursor_execute", self._see)

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._see)
        assert self._call is None

    def _see(self, connection: Connection, *_: Any) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


@ways
def test_a_turn_that_is_rolled_back_has_not_happened(
    session: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)

    EMAILS.turn(session, first, owner="w", **way)
    session.rollback()

    assert statuses(session) == {"a": "claimed", "b": "claimed", "c": "unclaimed"}
    again = EMAILS.turn(session, first, owner="w", **way)
    session.commit()
    assert recipients(again) == ["c"]
    assert statuses(session) == left_by(way, "ab", c="claimed")


@ways
def test_a_turn_in_a_savepoint_that_is_rolled_back_has_not_happened(
    session: Session, way: dict[str, bool]
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)

    savepoint = session.begin_nested()
    EMAILS.turn(session, first, owner="w", **way)
    savepoint.rollback()
    again = EMAILS.turn(session, first, owner="w", **way)
    session.commit()

    assert recipients(again) == ["c"]
    assert statuses(session) == left_by(way, "ab", c="claimed")


def test_a_turn_shows_what_it_wrote(session: Session) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, {})

    (second,) = EMAILS.turn(session, first, owner="w")

    assert [email.status for email in first] == ["done", "done"]
    assert (second.status, second.owner) == ("claimed", "w")


def test_a_turn_of_another_owner_finishes_and_claims(session: Session) -> None:
    add_emails(session, *"ab")
    first = claim_as(session, {"rows": True}, limit=1)

    second = EMAILS.turn(session, first, owner="v", rows=True, delete=True)
    session.commit()

    assert [row.owner for row in second] == ["v"]
    assert statuses(session) == {"b": "claimed"}


def test_a_turn_of_jobs_of_several_claims_finishes_them(session: Session) -> None:
    add_emails(session, *"abcd")
    both = [*claim_as(session, {}, limit=1), *claim_as(session, {}, limit=1)]

    second = EMAILS.turn(session, both, owner="w", limit=2, delete=True)
    session.commit()

    assert recipients(second) == ["c", "d"]
    assert statuses(session) == {"c": "claimed", "d": "claimed"}


def test_a_turn_finishes_jobs_of_another_class_that_come_one_by_one(session: Session) -> None:
    add_emails(session, "a")
    add_tasks(session, "b")
    (task,) = JobQueue(Task).claim(session, owner="w")
    session.commit()

    second = EMAILS.turn(session, iter([task]), owner="w")
    session.commit()

    assert recipients(second) == ["a"]
    assert task.status == "done"


def test_a_turn_leaves_jobs_with_the_status_of_its_queue(session: Session) -> None:
    add_emails(session, *"ab")
    queue = JobQueue(Email, then="sent")
    first = queue.claim_rows(session, owner="w")

    queue.turn(session, first, owner="w", rows=True)
    session.commit()

    assert statuses(session) == {"a": "sent", "b": "claimed"}


def test_a_turn_claims_jobs_that_its_finish_makes_ready(session: Session) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email, then="unclaimed")
    first = queue.claim_rows(session, owner="w")

    second = queue.turn(session, first, owner="w", rows=True)

    assert recipients(second) == ["a"]


def test_criteria_that_look_at_other_jobs_see_the_finish(session: Session) -> None:
    others = aliased(Email)
    none_claimed = ~exists().where(others.status == "claimed")
    queue = JobQueue(Email, none_claimed, strategy="auto")
    add_emails(session, *"ab")
    first = queue.claim_rows(session, owner="w")
    session.commit()

    second = queue.turn(session, first, owner="w", rows=True, delete=True)

    assert recipients(second) == ["b"]


def test_a_turn_keeps_the_claim_order(session: Session) -> None:
    add_tasks(session, "late", priority=5)
    add_tasks(session, "first", "second", priority=1)
    queue = JobQueue(Task)
    first = queue.claim_rows(session, owner="w")

    rest = queue.turn(session, first, owner="w", limit=5, rows=True, delete=True)

    assert names(rest) == ["second", "late"]


class Base(DeclarativeBase):
    pass


class Visit(JobMixin, Base):
    """A queue with a column that Python changes with each UPDATE."""

    __tablename__ = "turn_visit"
    id: Mapped[int] = mapped_column(primary_key=True)
    updates: Mapped[int] = mapped_column(default=0, onupdate=lambda: 7)


def test_a_turn_of_jobs_that_change_with_each_update_finishes(
    engine: Engine, session: Session
) -> None:
    with_empty_tables(engine, Base.metadata)
    session.add_all([Visit(id=1), Visit(id=2)])
    session.commit()
    queue = JobQueue(Visit)
    first = queue.claim_rows(session, owner="w")

    second = queue.turn(session, first, owner="w", rows=True)
    session.commit()

    assert [row.id for row in second] == [2]
    done = session.execute(select(Visit.status, Visit.updates).where(Visit.id == 1)).one()
    assert tuple(done) == ("done", 7)


def test_a_column_that_changes_with_each_update_is_undone_with_a_savepoint(
    engine: Engine, session: Session, db_alias: str
) -> None:
    with_empty_tables(engine, Base.metadata)
    visit, queue = Visit(id=1), JobQueue(Visit)
    session.add(visit)
    session.commit()

    def undone(verb: Callable[[], object]) -> tuple[int, int]:
        """Call a verb in a savepoint; return the column before and after the rollback."""
        begin_deferred(session.connection())
        savepoint = session.begin_nested()
        verb()
        before = visit.updates
        savepoint.rollback()
        return before, visit.updates

    assert undone(lambda: queue.claim(session, owner="w")) == (7, 0)
    session.rollback()
    queue.claim(session, owner="w")
    session.execute(update(Visit).values(updates=0))
    session.commit()
    assert undone(lambda: queue.complete(session, visit)) == (7, 0)


def test_a_turn_of_jobs_with_uuids_tells_which_were_lost(session: Session) -> None:
    session.add_all([Document(created=number) for number in range(4)])
    session.commit()
    queue = JobQueue(Document)
    first = queue.claim(session, owner="w", limit=2)
    session.commit()
    session.execute(delete(Document).where(Document.created == 1))
    session.commit()

    with pytest.raises(ClaimLost) as caught:
        queue.turn(session, first, owner="w", delete=True)

    assert [fence.identity for fence in first.fences] == [
        (job_key(job),) for job in (*caught.value.kept, *caught.value.lost)
    ]


def job_key(job: Document) -> Any:
    return vars(job)["id"]


@ways
def test_listeners_hear_of_the_finish_and_the_claim(
    session: Session,
    hear: Any,  # noqa: F811 - the fixture
    way: dict[str, bool],
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)
    heard = hear(Email)

    EMAILS.turn(session, first, owner="w", **way)
    assert heard == []
    session.commit()

    assert [(event.name, event.count) for event in heard] == [
        ("after_finish", 2),
        ("after_claim", 1),
    ]


@ways
def test_listeners_hear_of_lost_jobs(
    session: Session,
    hear: Any,  # noqa: F811 - the fixture
    way: dict[str, bool],
) -> None:
    add_emails(session, *"abc")
    first = claim_as(session, way)
    take_over(session, "b")
    heard = hear(Email)

    with pytest.raises(ClaimLost):
        EMAILS.turn(session, first, owner="w", **way)
    session.commit()

    assert [(event.name, event.count) for event in heard] == [
        ("after_finish", 1),
        ("after_lost", 1),
    ]


def test_rows_of_a_turn_have_the_columns_of_the_table(session: Session) -> None:
    add_emails(session, *"ab")
    first = claim_as(session, {"rows": True}, limit=1)

    (second,) = EMAILS.turn(session, first, owner="w", rows=True, delete=True)

    assert second._fields == tuple(column.key for column in Email.__table__.c)
