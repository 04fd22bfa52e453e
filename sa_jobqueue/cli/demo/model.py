"""The example model, and the two logs that prove the result of ``demo``.

The logs have no unique constraint, so that a job that is finished twice is logged twice.
"""

from __future__ import annotations

import click
from sqlalchemy import Engine, String, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ...dialects import database_of
from ...model.mixins import JobMixin
from ..engine import shown_url

LENGTH = 64


class Base(DeclarativeBase):
    """The base of the example's tables."""


class Record(JobMixin, Base):
    """A job: random letters and a random integer."""

    __tablename__ = "record"
    # Else SQLite gives a new row the id of the last row, once that row is deleted.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own way)

    id: Mapped[int] = mapped_column(primary_key=True)
    d: Mapped[str] = mapped_column(String(LENGTH), index=True)
    e: Mapped[int]


class Inserted(Base):
    """A row for each insert; the producer writes it in the same transaction."""

    __tablename__ = "record_inserted"

    id: Mapped[int] = mapped_column(primary_key=True)
    record_id: Mapped[int]
    producer: Mapped[int]


class Finished(Base):
    """A row for each finish; the consumer writes it in the same transaction."""

    __tablename__ = "record_finished"

    id: Mapped[int] = mapped_column(primary_key=True)
    record_id: Mapped[int]
    consumer: Mapped[int]
    batch: Mapped[int]


def recreate_tables(engine: Engine) -> None:
    """Drop the example's tables, and create them again, empty.

    Raises:
        ClickException: a table of the same name is not the example's.
    """
    _check_ours(engine)
    with engine.connect() as connection:
        if database_of(connection).one_writer:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)


def _check_ours(engine: Engine) -> None:
    """Refuse to drop a table of the user's that has the same name."""
    inspector = inspect(engine)
    for table in Base.metadata.sorted_tables:
        if not inspector.has_table(table.name):
            continue
        found = {column["name"] for column in inspector.get_columns(table.name)}
        if found != set(table.columns.keys()):
            raise click.ClickException(
                f"the table {table.name!r} in {shown_url(engine)} is not the example's, and is not "
                "dropped; use another database"
            )
