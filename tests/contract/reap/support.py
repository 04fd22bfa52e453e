"""Claims of owners that are dead, and claims that have grown old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, inspect, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, Owner, claim, reap, utc_now
from tests.models import Email, Order

HOUR = timedelta(hours=1)
FORCE = timedelta(0)
PLAIN = "mailer-1"


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


def own(entity: type[Any], name: str) -> Any:
    """Return an attribute of the queue; Order has its own of the same names."""
    return getattr(entity, f"job_{name}" if entity is Order else name)


def grow_old(session: Session, entity: type[Any], age: timedelta, *where: Any) -> None:
    """Make claims look so much older, by the database's clock."""
    column = own(entity, "owner_date").property.columns[0]
    past = utc_now(-(age // timedelta(microseconds=1)))
    session.connection().execute(
        update(column.table).where(column.is_not(None), *where).values({column: past})
    )
    session.commit()
    session.expire_all()


def reaped(session: Session, entity: type[Any] = Email, **how: Any) -> Any:
    """Commit a reap."""
    found = reap(session, entity, **how)
    session.commit()
    return found


def rows(session: Session, entity: type[Any], *columns: Any) -> list[tuple[Any, ...]]:
    """Read columns from the database, not from what the session has loaded."""
    session.rollback()
    found = session.execute(select(*columns).order_by(*inspect(entity).primary_key)).all()
    session.rollback()  # so that a verb after this begins a transaction of its own
    return [tuple(map(_aware, row)) for row in found]


def _aware(value: Any) -> Any:
    """Say of a time of SQLite that it is UTC."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def statuses(session: Session, entity: type[Any] = Email) -> list[str]:
    return [status for (status,) in rows(session, entity, own(entity, "status"))]
