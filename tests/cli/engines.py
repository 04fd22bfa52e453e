"""A user's own module with engines, for jobs.db in the current folder."""

from __future__ import annotations

from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

engine = create_engine("sqlite:///jobs.db", poolclass=NullPool)
Session = sessionmaker(engine)
Unbound = sessionmaker()
Scoped = scoped_session(Session)
async_engine = create_async_engine("sqlite+aiosqlite:///jobs.db", poolclass=NullPool)
AsyncSession = async_sessionmaker(async_engine)
