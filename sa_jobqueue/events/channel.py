"""PostgreSQL's channels: the name under which a table's notifications are sent."""

from __future__ import annotations

from sqlalchemy import Table

from ..dialects.named_locks import digest, slug

#: PostgreSQL cuts identifiers after 63 bytes.
_READABLE, _HASHED = 30, 20


def channel_of(table: Table) -> str:
    """Return the name of a table's channel: ASCII, without quotes, at most 63 bytes.

    The schema and the table are hashed, so no two tables share a channel; the readable part is for
    whoever looks at the server.
    """
    hashed = digest("channel", table.schema or "", table.name).hex()[:_HASHED]
    return f"sa_jobqueue-{slug(table.name, _READABLE) or 'table'}-{hashed}"
