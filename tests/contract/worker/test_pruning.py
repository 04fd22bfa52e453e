"""A worker deletes finished rows when their class has kept them long enough."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue
from sa_jobqueue.tasks import TaskMixin
from sa_jobqueue.worker import chores
from tests.running import runs
from tests.support import until, with_empty_tables

DAY = timedelta(days=1)


class Base(DeclarativeBase):
    pass


class Receipt(JobMixin, Base):
    __tablename__ = "receipt"
    __queue_args__ = {"keep_for": DAY}  # noqa: RUF012 - as users do
    id: Mapped[int] = mapped_column(primary_key=True)


class Copy(Base):
    """Refers to a receipt, which the database does not delete then."""

    __tablename__ = "copy_of_receipt"
    id: Mapped[int] = mapped_column(primary_key=True)
    receipt_id: Mapped[int] = mapped_column(ForeignKey("receipt.id"))


class Contract(JobMixin, Base):
    __tablename__ = "contract"
    id: Mapped[int] = mapped_column(primary_key=True)


#: Rows by their keys: each with its status and its age.
ROWS = {
    1: ("done", 2 * DAY),
    2: ("cancelled", 2 * DAY),
    3: ("failed", 2 * DAY),
    4: ("claimed", 2 * DAY),
    5: ("unclaimed", 2 * DAY),
    6: ("done", DAY / 2),
    7: ("done", 2 * DAY),
}


@pytest.fixture(autouse=True)
def rows(engine: Engine, session: Session) -> None:
    with_empty_tables(engine, Base.metadata)
    now = datetime.now(UTC)
    for entity in (Receipt, Contract):
        session.add_all(entity(id=key) for key in ROWS)
        session.flush()
        for key, (status, age) in ROWS.items():
            owner = "alive" if status == "claimed" else None
            values = {"status": status, "owner_date": now - age, "owner": owner}
            session.execute(update(entity).where(entity.id == key).values(values))
    session.commit()


@pytest.mark.parametrize("kind", ["Worker", "AsyncWorker"])
def test_rows_are_deleted_that_are_done_or_cancelled_for_long_enough(
    engine: Engine, session: Session, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "PRUNE_LIMIT", 1)  # soon the next batch, if there may be more

    def left(entity: Any) -> list[int]:
        session.rollback()
        return list(session.scalars(select(entity.id).order_by(entity.id)))

    handlers = {entity: lambda job: None for entity in (Receipt, Contract)}
    with runs(kind, engine)(handlers, reap_every=None):
        until(lambda: left(Receipt) == [3, 4, 5, 6])

    assert left(Contract) == list(ROWS)


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("kind", ["Worker", "AsyncWorker"])
def test_a_row_that_others_refer_to_holds_up_no_other(
    engine: Engine,
    session: Session,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(chores, "PRUNE_LIMIT", 2)
    session.add(Copy(receipt_id=1))
    session.commit()

    def left() -> list[int]:
        session.rollback()
        return list(session.scalars(select(Receipt.id).order_by(Receipt.id)))

    with runs(kind, engine)({Receipt: lambda job: None}, reap_every=None):
        until(lambda: left() == [1, 3, 4, 5, 6])

    (refused,) = [record for record in caplog.records if "cannot be pruned" in record.message]
    assert "Receipt 1 cannot be pruned; the worker tries again in 1 h" in refused.message


def test_a_class_with_taskmixin_keeps_its_rows_for_seven_days_unless_told_otherwise() -> None:
    class Own(DeclarativeBase):
        pass

    class Task(TaskMixin, Own):
        __tablename__ = "task"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Kept(TaskMixin, Own):
        __tablename__ = "kept"
        __queue_args__ = {"keep_for": None, "max_attempts": 3}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)

    kept = [JobQueue(entity).mapping.args.keep_for for entity in (Task, Kept)]

    assert kept == [timedelta(days=7), None]


@pytest.mark.parametrize(
    ("keep_for", "words"), [(-DAY, "negative"), (timedelta.max, "longer than a hundred years")]
)
def test_a_time_that_cannot_be_kept_is_refused(keep_for: timedelta, words: str) -> None:
    class Own(DeclarativeBase):
        pass

    with pytest.raises(ArgumentError, match=rf"__queue_args__\['keep_for'\] is {words}"):

        class Never(JobMixin, Own):
            __tablename__ = "never"
            __queue_args__ = {"keep_for": keep_for}  # noqa: RUF012
            id: Mapped[int] = mapped_column(primary_key=True)
