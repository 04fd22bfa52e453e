"""The two tables of a DatabaseLog, added to the user's own MetaData."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Engine,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

NAME_LENGTH = 100

#: Texts of any length: TEXT on MySQL and MariaDB ends at 64 kB.
_LONG = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


@dataclass(frozen=True)
class LoadTables:
    """The two tables of a DatabaseLog.

    Attributes:
        loads: one row for each load.
        batches: one row for each batch of a load.
    """

    loads: Table
    batches: Table

    def create_all(self, engine: Engine) -> None:
        """Create the tables that are missing."""
        self.loads.metadata.create_all(engine, tables=[self.loads, self.batches])


def load_tables(metadata: MetaData, name: str = "bulk_load") -> LoadTables:
    """Add the two tables to a MetaData, or find them there.

    Args:
        name: the first table's name; the second's is the same with ``_batch`` appended.
    """
    schema = "" if metadata.schema is None else f"{metadata.schema}."
    existing = metadata.tables.get(schema + name)
    if existing is not None:
        return LoadTables(existing, metadata.tables[f"{schema}{name}_batch"])
    loads = Table(
        name,
        metadata,
        Column("name", String(NAME_LENGTH), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("id", String(32), nullable=False),
        Column("state", String(16), nullable=False),
        Column("workers", Integer, nullable=False),
        Column("cleaning", Boolean, nullable=False),
        Column("redo_ended", Boolean, nullable=False),
        Column("metadata", Text, nullable=False),
    )
    batches = Table(
        f"{name}_batch",
        metadata,
        Column("load_id", String(32), primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("mark", SmallInteger, nullable=False),
        Column("redo", _LONG, nullable=False),
        Column("kept", _LONG),
    )
    return LoadTables(loads, batches)
