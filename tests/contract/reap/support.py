"""Claims of owners that are dead, and claims that have grown old."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, Owner, claim, reap
from sa_jobqueue.dialects.clock import utc_now
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.verbs import Reaped
from tests.models import Email


def claimed(session: Session, entity: type[Any], owner: Any, limit: int = 100) -> Claim[Any]:
    """Commit a claim of all unclaimed jobs."""
    found = claim(session, entity, owner=owner, limit=limit)
    session.commit()
    return found


def of_the_dead(engine: Engine, session: Session, entity: type[Any], limit: int = 100) -> str:
    """Commit claims of an Owner that dies; return its name."""
    with Owner(engine, "victim") as owner:
        claimed(session, entity, owner, limit)
        return owner.name


def grow_old(session: Session, entity: type[Any], age: timedelta, *where: Any) -> None:
    """Make claims look so much older, by the database's clock."""
    column = mapping_of(entity).column("owner_date")
    past = utc_now(-(age // timedelta(microseconds=1)))
    session.connection().execute(
        update(column.table).where(column.is_not(None), *where).values({column: past})
    )
    session.commit()
    session.expire_all()


def reaped(session: Session, entity: type[Any] = Email, **how: Any) -> Reaped:
    """Commit a reap."""
    found = reap(session, entity, **how)
    session.commit()
    return found


def rows(session: Session, entity: type[Any], *columns: Any) -> list[tuple[Any, ...]]:
    """Read columns from the database, not from what the session has loaded."""
    session.rollback()
    found = session.execute(select(*columns).order_by(*mapping_of(entity).keys)).all()
    session.rollback()  # so that a verb after this begins a transaction of its own
    return [tuple(row) for row in found]


def statuses(session: Session, entity: type[Any] = Email) -> list[str]:
    return [status for (status,) in rows(session, entity, mapping_of(entity).attribute("status"))]
