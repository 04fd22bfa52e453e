"""A hand-written SKIP LOCKED worker and a claim over the same table never take the same row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import URL, Engine, bindparam, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import DateTime

from sa_jobqueue import ClaimLost, JobMixin, claim, complete
from tests.support import SERVERS, Sessions, make_engine

pytestmark = pytest.mark.only_on(*SERVERS)


class Base(DeclarativeBase):
    pass


class Parcel(
    JobMixin.named(  # type: ignore[misc]  # mypy knows no call as a base class
        status="state", owner="locked_by", owner_date="claimed_at"
    ),
    Base,
):
    """The table of the old workers, which write locked_at and no claimed_at."""

    __tablename__ = "adopted_parcel"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "names": {"unclaimed": "new", "claimed": "working", "done": "sent"}
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    locked_at: Mapped[datetime | None] = mapped_column(DateTime)


OLD_LOCK = text(
    "SELECT id FROM adopted_parcel WHERE state = 'new' ORDER BY id LIMIT :batch "
    "FOR UPDATE SKIP LOCKED"
)
OLD_MARK, OLD_FINISH = (
    text(f"UPDATE adopted_parcel SET {change} WHERE id IN :ids").bindparams(
        bindparam("ids", expanding=True)
    )
    for change in (
        "state = 'working', locked_by = 'old', locked_at = CURRENT_TIMESTAMP",
        "state = 'sent'",
    )
)


def old_claim(session: Session, batch: int = 2) -> list[int]:
    ids = list(session.execute(OLD_LOCK, {"batch": batch}).scalars())
    if ids:
        session.execute(OLD_MARK, {"ids": ids})
    return ids


@pytest.fixture
def old_engine(db_url: URL) -> Iterator[Engine]:
    """An engine with READ COMMITTED, since InnoDB locks the gaps too by default."""
    engine = make_engine(db_url, isolation_level="READ COMMITTED")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def session(old_engine: Engine, new_session: Sessions) -> Session:
    return new_session(old_engine)


@pytest.fixture
def old(old_engine: Engine, new_session: Sessions) -> Session:
    return new_session(old_engine)


def add(session: Session, rows: int) -> None:
    session.execute(insert(Parcel), [{"id": number} for number in range(1, rows + 1)])
    session.commit()


def ids(claimed: Any) -> list[int]:
    return [parcel.id for parcel in claimed]


@pytest.mark.parametrize("by", ["candidates", "auto"])
def test_claims_and_old_workers_skip_each_others_rows(
    session: Session, old: Session, by: str
) -> None:
    add(session, 5)

    theirs = old_claim(old)
    ours = claim(session, Parcel, owner="new", limit=2, strategy=by)
    old.commit()
    rest = old_claim(old, 5)

    assert (theirs, ids(ours), rest) == ([1, 2], [3, 4], [5])


def test_a_job_that_an_old_worker_takes_back_by_time_is_lost_to_its_claim_and_sent_once(
    session: Session, old: Session
) -> None:
    """Hand-written rescue queries do this; the fence notices it."""
    add(session, 2)
    claimed = claim(session, Parcel, owner="new", limit=2)
    session.commit()
    old.execute(text("UPDATE adopted_parcel SET state = 'new' WHERE state = 'working'"))
    assert old_claim(old) == [1, 2]
    old.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, claimed)

    assert len(lost.value.lost) == 2
