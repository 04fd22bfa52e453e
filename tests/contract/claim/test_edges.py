"""Odd models and odd arguments: forward references, computed columns, generators of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import URL, Engine, ForeignKey, String, select, true
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    column_property,
    mapped_column,
    relationship,
)

from sa_jobqueue import (
    ArgumentError,
    Fence,
    JobMixin,
    JobQueue,
    PriorityMixin,
    ScheduleMixin,
    claim,
    claimed_by,
    complete,
    enqueue,
    fence_of,
    reprioritize,
    with_fence,
)
from tests.models import (
    Account,
    Animal,
    Cat,
    Dog,
    Email,
    Letter,
    Message,
    Task,
    add_emails,
    add_tasks,
    names,
)
from tests.support import MARKING, make_engine


class EdgeBase(DeclarativeBase):
    pass


class Computed(JobMixin, EdgeBase):
    """A class with an expression besides its columns."""

    __tablename__ = "computed"
    id: Mapped[int] = mapped_column(primary_key=True)
    width: Mapped[int] = mapped_column()
    doubled: Mapped[int] = column_property(width * 2)


class Channelled(JobMixin, PriorityMixin, ScheduleMixin, EdgeBase):
    """A class whose claim index is led by a column of the user's."""

    __tablename__ = "channelled"
    __queue_args__ = {"equality": ["channel"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(String(10))


@pytest.fixture
def edge_engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    EdgeBase.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_a_queue_may_be_mapped_before_the_classes_that_others_name() -> None:
    class Base(DeclarativeBase):
        pass

    class Author(Base):
        __tablename__ = "author"
        id: Mapped[int] = mapped_column(primary_key=True)
        posts: Mapped[list["Post"]] = relationship()  # noqa: UP037 - not yet defined

    class Mail(JobMixin, Base):
        __tablename__ = "mail"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Post(Base):
        __tablename__ = "post"
        id: Mapped[int] = mapped_column(primary_key=True)
        author_id: Mapped[int] = mapped_column(ForeignKey("author.id"))

    assert not Mail.__mapper__.configured


def test_computed_columns_are_loaded_with_the_claim(edge_engine: Engine, strategy: str) -> None:
    with Session(edge_engine, expire_on_commit=False) as session:
        session.add(Computed(width=4))
        session.commit()

        computed = claim(session, Computed, owner="w", strategy=strategy).first()
        session.expunge_all()

        assert computed is not None
        assert computed.doubled == 8


def test_priorities_are_stepped_through_within_the_equality_columns(
    edge_engine: Engine, strategy: str
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with Session(edge_engine) as session:
        enqueue(session, Channelled, [{"channel": "a", "priority": n} for n in (3, -40_00, 1)])
        enqueue(session, Channelled, [{"channel": "b", "priority": -5}])
        enqueue(session, Channelled, [{"channel": "a", "priority": -9}], run_at=tomorrow)
        session.commit()

        of_a = claim(
            session, Channelled, Channelled.channel == "a", owner="w", limit=5, strategy=strategy
        )

        assert [(job.channel, job.priority) for job in of_a] == [("a", -4000), ("a", 1), ("a", 3)]


@pytest.mark.strategies(*MARKING)
def test_rows_of_several_priorities_are_finished(session: Session, strategy: str) -> None:
    enqueue(session, Task, [{"name": str(number), "priority": number} for number in range(3)])
    session.commit()
    queue = JobQueue(Task, strategy=strategy)

    rows = queue.claim_rows(session, owner="w", limit=10)
    session.commit()
    queue.complete(session, rows)
    session.commit()

    assert set(session.scalars(select(Task.status))) == {"done"}


@pytest.mark.strategies(*MARKING)
def test_a_handler_can_read_a_claimed_job_that_is_detached(session: Session, strategy: str) -> None:
    add_tasks(session, "a")
    task = claim(session, Task, owner="w", strategy=strategy).first()
    session.commit()
    session.expunge_all()

    assert task is not None
    assert (task.name, task.status, task.touched) == ("a", "claimed", "touched")


@pytest.mark.strategies("auto")
def test_an_alias_is_refused(session: Session, strategy: str) -> None:
    with pytest.raises(ArgumentError, match="mapped class"):
        claim(session, aliased(Email), owner="w", strategy=strategy)


@pytest.mark.strategies("auto")
def test_criteria_that_join_are_refused_and_has_is_the_way_out(
    session: Session, strategy: str
) -> None:
    session.add(Letter(account=Account(name="x")))
    session.commit()

    with pytest.raises(ArgumentError, match="has"):
        claim(session, Letter, Letter.account_id == Account.id, owner="w", strategy=strategy)
    letters = claim(
        session, Letter, Letter.account.has(name="x"), owner="w", limit=5, strategy=strategy
    )

    assert len(letters) == 1


@pytest.mark.strategies("auto")
def test_odd_but_valid_arguments_are_understood(session: Session, strategy: str) -> None:
    add_emails(session, "a", "b")

    with pytest.raises(ArgumentError, match=r"Email\.id\.desc"):
        claim(session, Email, owner="w", order_by="recipient", strategy=strategy)
    emails = claim(
        session, Email, true(), Email.recipient == "a", owner="w", limit=2, strategy=strategy
    )

    assert [email.recipient for email in emails] == ["a"]


@pytest.mark.strategies("auto")
def test_claims_fences_and_generators_are_all_batches(session: Session, strategy: str) -> None:
    add_emails(session, *"abcdef")
    first = claim(session, Email, owner="w", limit=2, strategy=strategy)
    second = claim(session, Email, owner="w", limit=2, strategy=strategy)
    third = claim(session, Email, owner="w", limit=2, strategy=strategy)

    complete(session, [first, *second, third.fences[0], third[1], third[1]])
    session.commit()

    assert set(session.scalars(select(Email.status))) == {"done"}


def test_reprioritize_takes_a_generator_of_jobs(session: Session) -> None:
    tasks = add_tasks(session, "a", "b")

    changed = reprioritize(session, (task for task in tasks), 5)

    assert (names(changed), [task.priority for task in tasks]) == (["a", "b"], [5, 5])


@pytest.mark.strategies("auto")
def test_a_fence_of_another_class_is_refused(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    email = claim(session, Email, owner="w", strategy=strategy).first()
    message = Message(id=email.id if email else 0, sequence=1)
    session.add(message)
    session.flush()

    with pytest.raises(ArgumentError, match="not the row"):
        with_fence(message, fence_of(email))


@pytest.mark.strategies(*MARKING)
def test_a_batch_of_thousands_is_finished(session: Session, strategy: str) -> None:
    enqueue(session, Email, ({"recipient": "x"} for _ in range(12_000)))
    session.commit()
    rows = JobQueue(Email, strategy=strategy).claim_rows(session, owner="w", limit=12_000)

    complete(session, rows)
    session.commit()

    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.strategies("auto")
def test_owners_that_differ_in_case_are_different_owners(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    claim(session, Email, owner="Worker", strategy=strategy)

    assert len(claimed_by(session, Email, "worker")) == 0
    assert len(claimed_by(session, Email, "Worker")) == 1


@pytest.mark.strategies("auto")
def test_a_queue_of_its_own_status_finds_an_owners_claims(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email, during="sending", strategy=strategy)
    queue.claim(session, owner="w")

    (found,) = queue.claimed_by(session, "w")

    assert isinstance(fence_of(found), Fence)
    queue.complete(session, found)
    assert found.status == "done"


@pytest.mark.strategies("auto")
def test_deleting_a_job_of_several_tables_is_refused(session: Session, strategy: str) -> None:
    session.add(Dog(trick="roll"))
    session.commit()
    dogs = claim(session, Dog, owner="w", strategy=strategy)

    with pytest.raises(ArgumentError, match="tables"):
        complete(session, dogs, delete=True)


@pytest.mark.strategies("auto")
def test_a_job_of_one_table_is_deleted_where_another_class_has_several(
    session: Session, strategy: str
) -> None:
    session.add_all([Cat(), Dog(trick="roll")])
    session.commit()

    complete(session, claim(session, Cat, owner="w", strategy=strategy), delete=True)

    assert session.scalars(select(Animal.kind)).all() == ["dog"]


def test_a_row_with_a_name_that_is_no_column_is_refused(session: Session) -> None:
    with pytest.raises(ArgumentError, match="prioritty"):
        enqueue(session, Task, [{"name": "a", "prioritty": 3}])
