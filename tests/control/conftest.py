"""A queue with control tables, on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.control import control_tables
from tests.support import make_engine, with_empty_tables


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


@pytest.fixture(scope="module")
def kept_engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(kept_engine: Engine) -> Engine:
    return with_empty_tables(kept_engine, Base.metadata)


@pytest.fixture
def new_session(engine: Engine) -> Iterator[Callable[[], Session]]:
    opened: list[Session] = []

    def open_session() -> Session:
        opened.append(Session(engine, expire_on_commit=False))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


@pytest.fixture
def session(new_session: Callable[[], Session]) -> Session:
    return new_session()
