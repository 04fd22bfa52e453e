"""The example model, and the two logs by which ``demo`` proves its result.

The logs have no unique constraint: a job that is finished twice is to be seen.
"""

from __future__ import annotations

import click
from sqlalchemy import Engine, String, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ...dialects import database_of
from ...model.mixins import JobMixin
from ..databases import shown

LENGTH = 64


class Base(DeclarativeBase):
    """The base of the example's tables."""


class Record(JobMixin, Base):
    """A row to be worked on: random letters and a random integer."""

    __tablename__ = "record"
    # Without it SQLite gives the id of the last row to a new one, once it is deleted.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own way)

    id: Mapped[int] = mapped_column(primary_key=True)
    d: Mapped[str] = mapped_column(String(LENGTH), index=True)
    e: Mapped[int]


class Inserted(Base):
    """One row for each insert, written by the producer in the same transaction."""

    __tablename__ = "record_inserted"

    id: Mapped[int] = mapped_column(primary_key=True)
    record_id: Mapped[int]
    producer: Mapped[int]


class Finished(Base):
    """One row for each finish, written by the consumer in the same transaction."""

    __tablename__ = "record_finished"

    id: Mapped[int] = mapped_column(primary_key=True)
    record_id: Mapped[int]
    consumer: Mapped[int]
    batch: Mapped[int]


def recreate_tables(engine: Engine) -> None:
    """Drop the example's tables, and create them again, empty.

    Raises:
        ClickException: a table of that name is not the example's.
    """
    _check_ours(engine)
    with engine.connect() as connection:
        if database_of(connection).one_writer:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)


def _check_ours(engine: Engine) -> None:
    """Refuse to drop what somebody else calls a record."""
    inspector = inspect(engine)
    for table in Base.metadata.sorted_tables:
        if not inspector.has_table(table.name):
            continue
        found = {column["name"] for column in inspector.get_columns(table.name)}
        if found != set(table.columns.keys()):
            raise click.ClickException(
                f"the table {table.name!r} in {shown(engine)} is not the example's, and is not "
                "dropped; use another database"
            )
