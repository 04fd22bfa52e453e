"""Queues whose claims are compiled, and their SQL on one line."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import String, make_url
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler

from sa_jobqueue import JobMixin, PriorityMixin, ScheduleMixin, claim_statements

DRIVERS = {
    "postgresql": "postgresql+psycopg2",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "sqlite": "sqlite",
}


class Base(DeclarativeBase):
    pass


class Email(JobMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50))


class Task(JobMixin, PriorityMixin, ScheduleMixin, Base):
    __tablename__ = "task"
    id: Mapped[int] = mapped_column(primary_key=True)


class Seat(JobMixin, Base):
    __tablename__ = "seat"
    hall: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)


def dialect_of(alias: str) -> Dialect:
    """Make a dialect that writes its parameters as :name, so that they can be read."""
    make: Any = make_url(f"{DRIVERS[alias]}://").get_dialect()
    dialect: Dialect = make(paramstyle="named")
    return dialect


def compiled(entity: Any, alias: str, *where: Any, strategy: str = "auto") -> list[SQLCompiler]:
    dialect = dialect_of(alias)
    statements: list[Any] = claim_statements(entity, *where, dialect=dialect, strategy=strategy)
    return [statement.compile(dialect=dialect) for statement in statements]


def claim_sql(entity: Any, alias: str, *where: Any, strategy: str = "auto") -> list[str]:
    """Write the statements of a claim on one line each."""
    statements = compiled(entity, alias, *where, strategy=strategy)
    return [one_line(re.sub(r"__\[POSTCOMPILE_(\w+)\]", r":\1", str(sql))) for sql in statements]


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("( ", "(").replace(" )", ")")


def lines(*texts: str) -> list[str]:
    return [one_line(text) for text in texts]


MARK_EMAILS = """
    UPDATE email FORCE INDEX (PRIMARY)
    SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND
        CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1
"""
