"""A queue with control tables, on each database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Claim, JobMixin, claim
from sa_jobqueue.control import control_tables, workers

# Fixtures: pytest finds them by their names here.
from tests.contract.conftest import new_session, session, shared_engine
from tests.support import with_empty_tables

__all__ = ["new_session", "session", "shared_engine"]


class Base(DeclarativeBase):
    """The base of the queues under control."""


class Letter(JobMixin, Base):
    """A job."""

    __tablename__ = "controlled_letter"
    id: Mapped[int] = mapped_column(primary_key=True)


class Parcel(JobMixin, Base):
    """A job of another queue."""

    __tablename__ = "controlled_parcel"
    id: Mapped[int] = mapped_column(primary_key=True)


TABLES = control_tables(Base.metadata)


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    return with_empty_tables(shared_engine, Base.metadata)


def claimed_letters(session: Session, number: int = 1) -> Claim[Letter]:
    """Commit a claim of new letters by the owner w."""
    session.add_all([Letter() for _ in range(number)])
    session.commit()
    found = claim(session, Letter, owner="w", limit=number)
    session.commit()
    return found


def listed(session: Session) -> Any:
    """List the workers as they are committed now."""
    found = workers(session, tables=TABLES)
    session.rollback()
    return found
