"""PostgreSQL: several changes are one transaction, and indexes are built concurrently."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import Connection, Table, text

from ..connections import as_value
from . import SchemaChanges

log = logging.getLogger("sa_jobqueue.migration")

# The root comes first, then the leaf partitions that can have indexes and storage parameters.
_PARTITIONS = text("""
SELECT n.nspname AS schema, c.relname AS name, p.isleaf
FROM pg_partition_tree(CAST(:table AS regclass)) AS p
JOIN pg_class AS c ON c.oid = p.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE p.level = 0 OR (p.isleaf AND c.relkind = 'r')
ORDER BY p.level > 0, n.nspname, c.relname
""")

_LIMITS = text("""
SELECT current_setting('lock_timeout') AS lock, current_setting('statement_timeout') AS statement
""")
_LIMIT = text("""
SELECT set_config('lock_timeout', :lock, false), set_config('statement_timeout', :statement, false)
""")


class PostgreSQLSchemaChanges(SchemaChanges):
    """How PostgreSQL changes tables."""

    concurrent_indexes: ClassVar[bool] = True
    partitions_apart: ClassVar[bool] = True
    begins: ClassVar[tuple[str, ...]] = ("BEGIN", "SET LOCAL lock_timeout = '500ms'")

    def longest_wait(self, connection: Connection) -> timedelta:
        return timedelta(milliseconds=500)

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        if self.database.through_pooler(connection):
            # A setting of the session would stay on a server connection that others use next.
            # Nobody queues behind a concurrent build, so it may wait without a limit.
            log.warning("connected through a pooler: this waits for locks without a time limit")
            yield
            return
        own = connection.execute(_LIMITS).one()
        milliseconds = max(1, time // timedelta(milliseconds=1))  # 0 would mean no limit
        # An environment's statement_timeout would end a build that works for longer.
        connection.execute(_LIMIT, {"lock": str(milliseconds), "statement": "0"})
        try:
            yield
        finally:
            connection.execute(_LIMIT, own._asdict())

    def partitions(self, connection: Connection, table: Table) -> list[tuple[str, str]] | None:
        name = connection.dialect.identifier_preparer.format_table(table)
        given = {"table": as_value(connection.dialect, name)}
        tree = connection.execute(_PARTITIONS, given).all()
        if not tree or tree[0].isleaf:
            return None
        return [(part.schema, part.name) for part in tree[1:]]

    def storage_of_queue(self, *, fillfactor: int, dead_rows: int) -> dict[str, str]:
        return {
            "fillfactor": str(fillfactor),
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": str(dead_rows),
            "autovacuum_analyze_scale_factor": "0",
            "autovacuum_analyze_threshold": str(dead_rows),
        }
