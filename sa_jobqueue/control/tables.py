"""The tables of workers, pauses and stop requests, in the user's own metadata.

``create_all()`` and Alembic's autogenerate create them. The verbs find them by the metadata of a
queue's table. A verb that takes no queue uses the only control tables of the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakSet

from sqlalchemy import Column, Index, Integer, MetaData, String, Table, Text

from ..errors import ArgumentError
from ..model.columns import OWNER_LENGTH, timestamp_type
from ..model.keys import CONTROL, beside
from ..model.mapping import QueueMapping
from ..sessions.transactions import missing_tables_named

#: The longest name of a queue: its table's schema and name, and a status.
QUEUE_LENGTH = 150

#: The longest text of a primary key; a longer text is cut, and the claim's time identifies it.
KEY_LENGTH = 255

HOST_LENGTH = 64

_metadata: WeakSet[MetaData] = WeakSet()


@dataclass(frozen=True)
class ControlTables:
    """The tables that :func:`control_tables` has made."""

    workers: Table
    pauses: Table
    stops: Table


def control_tables(
    metadata: MetaData, *, prefix: str = "job", schema: str | None = None
) -> ControlTables:
    """Add the tables of workers, pauses and stop requests to a MetaData, once.

    Args:
        prefix: the names are ``<prefix>_workers``, ``<prefix>_pauses`` and ``<prefix>_stops``.
        schema: by default that of the metadata.

    Raises:
        ArgumentError: the metadata has tables of these names already, which are not ours.
    """
    if CONTROL in metadata.info:
        found: ControlTables = metadata.info[CONTROL]
        return found
    for end in ("workers", "pauses", "stops"):
        name, within = f"{prefix}_{end}", schema or metadata.schema
        if (name if within is None else f"{within}.{name}") in metadata.tables:
            raise ArgumentError(f"the metadata has a table {name!r}: give another prefix=")
    metadata.info[CONTROL] = tables = make_tables(metadata, prefix, schema)
    _metadata.add(metadata)
    return tables


def make_tables(metadata: MetaData, prefix: str, schema: str | None) -> ControlTables:
    """Make the tables, without registering them: the verbs do not find them by the metadata."""
    workers = Table(
        f"{prefix}_workers",
        metadata,
        Column("name", String(OWNER_LENGTH), primary_key=True),
        # Workers without an Owner may share a name.
        Column("host", String(HOST_LENGTH), primary_key=True),
        Column("pid", Integer, primary_key=True, autoincrement=False),
        Column("queues", Text, nullable=False),
        Column("since", timestamp_type(), nullable=False),
        Column("seen_at", timestamp_type(), nullable=False),
        Column("jobs", Integer, nullable=False),
        schema=schema,
    )
    pauses = Table(
        f"{prefix}_pauses",
        metadata,
        Column("queue", String(QUEUE_LENGTH), primary_key=True),
        Column("since", timestamp_type(), nullable=False),
        schema=schema,
    )
    stops = Table(
        f"{prefix}_stops",
        metadata,
        Column("queue_table", String(QUEUE_LENGTH), primary_key=True),
        Column("job_key", String(KEY_LENGTH), primary_key=True),
        Column("owner", String(OWNER_LENGTH), nullable=False),
        Column("owner_date", timestamp_type(), nullable=False),
        Column("since", timestamp_type(), nullable=False),
        Index(f"{prefix}_stops_owner", "owner"),
        schema=schema,
    )
    return ControlTables(workers, pauses, stops)


def known_tables() -> Iterator[Table]:
    """Yield the tables that this process has made, of every metadata."""
    for metadata in _metadata:
        yield from vars(metadata.info[CONTROL]).values()


#: Decorates a function that uses the tables: without them, the function raises MissingTable.
names_missing_tables = missing_tables_named(known_tables)


def tables_for(given: ControlTables | None, mapping: QueueMapping | None = None) -> ControlTables:
    """Return the given tables, those in a queue's metadata, or the only ones of the process.

    Raises:
        ArgumentError: there are none, or several.
    """
    if given is not None:
        return given
    if mapping is None:
        known: list[ControlTables] = [metadata.info[CONTROL] for metadata in _metadata]
        if len(known) == 1:
            return known[0]
        raise ArgumentError(
            f"this process has {len(known)} sets of control tables: name yours by tables=, "
            "as control_tables(metadata) returns it"
        )
    found: ControlTables | None = beside(mapping, CONTROL)
    if found is None:
        raise ArgumentError(
            f"the metadata of {mapping} has no control tables: call control_tables(metadata) "
            "with the metadata of its table, before the tables are created"
        )
    return found
