"""Classes that are mapped in a line, and their columns and indexes, written as DDL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer, Table, make_url
from sqlalchemy.orm import DeclarativeBase, mapped_column
from sqlalchemy.schema import CreateColumn, CreateIndex

from tests.servers.given import DRIVERS


def dialect(alias: str, *version: int, **options: Any) -> Any:
    """Make a dialect, as it is after the first connect to a server of some version."""
    made = make_url(f"{DRIVERS[alias]}://").get_dialect()(**options)
    if version:
        made.server_version_info = version
    return made


DIALECTS = {alias: dialect(alias) for alias in ("postgresql", "mysql", "sqlite")}

JOB_COLUMNS = [
    "status VARCHAR(16) DEFAULT 'unclaimed' NOT NULL",
    "owner VARCHAR(64)",
    "owner_date TIMESTAMP WITH TIME ZONE",
]


def map_job(*mixins: Any, base: Any = None, **body: Any) -> Any:
    """Map a class named Job with these mixins and this body, on a base of its own."""

    class Base(DeclarativeBase):
        pass

    if not {"id", "hall"} & body.keys():
        body["id"] = mapped_column(Integer, primary_key=True)
    return type("Job", (*mixins, base or Base), {"__tablename__": "job", **body})


def columns(table: Table, *names: str, dialect: str = "postgresql") -> list[str]:
    """Write some columns of a table as CREATE TABLE does."""
    wanted = [table.c[name] for name in names]
    return [str(CreateColumn(column).compile(dialect=DIALECTS[dialect])) for column in wanted]


def indexes(table: Table, dialect: str = "postgresql") -> list[str]:
    """Write a table's indexes as CREATE INDEX does, in the order of their names."""
    made = [str(CreateIndex(index).compile(dialect=DIALECTS[dialect])) for index in table.indexes]
    return sorted(made)


def assert_queue(table: Table, claim: str = "status, id") -> None:
    """Assert that a table has a queue's columns and both indexes, under their own names."""
    name = table.name
    partial = [
        f"CREATE INDEX ix_{name}_claim ON {name} ({claim}) WHERE status = 'unclaimed'",
        f"CREATE INDEX ix_{name}_reap ON {name} (status, owner_date) WHERE status = 'claimed'",
    ]
    assert columns(table, "status", "owner", "owner_date") == JOB_COLUMNS
    assert indexes(table, "postgresql") == partial
    assert indexes(table, "sqlite") == partial
    assert indexes(table, "mysql") == [text.partition(" WHERE")[0] for text in partial]
