"""A user's own module with engines, for jobs.db in the current folder."""

from __future__ import annotations

from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from sa_jobqueue import assume_locks

URL = "postgresql://shop:secret@host/shop"
engine = create_engine("sqlite:///jobs.db", poolclass=NullPool)
trusted = create_engine("sqlite:///jobs.db", poolclass=NullPool)
assume_locks(trusted)
Session = sessionmaker(engine)
Unbound = sessionmaker()
Scoped = scoped_session(Session)
async_engine = create_async_engine("sqlite+aiosqlite:///jobs.db", poolclass=NullPool)
AsyncSession = async_sessionmaker(async_engine)


def tenants() -> dict[str, object]:
    """Return the engines of us.db by the names of tenants."""
    return {
        "us": create_engine("sqlite:///us.db", poolclass=NullPool),
        "async": async_sessionmaker(create_async_engine("sqlite+aiosqlite:///us.db")),
    }


def urls() -> dict[str, str]:
    """Return what are no engines."""
    return {"us": "sqlite:///us.db"}


def files() -> dict[str, object]:
    """Return the engine of us.db alone."""
    return {"us": FILE}


FILE = create_engine("sqlite:///us.db")
