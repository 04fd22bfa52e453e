"""What the doctor asks of PostgreSQL: plans as JSON, and what keeps vacuum from work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, Connection, Table, text

from ..databases.connections import qualified
from .examination import (
    Examination,
    Finding,
    IndexColumn,
    Plan,
    Query,
    ServerIndex,
    Snapshot,
    explained,
)

#: Settings that keep the planner from what it does on a small table instead of walking an index
#: in order.
_INSTEAD = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}

_SORTS = {"Sort", "Incremental Sort"}

# indoption: 1 is DESC, 2 is NULLS FIRST. ORDER BY means both or neither by default.
_INDEXES = text("""
SELECT i.relname AS name, am.amname = 'btree' AS ordered,
  x.indisvalid AND x.indisready AS valid, x.indisunique AS is_unique,
  pg_get_expr(x.indpred, x.indrelid) AS predicate,
  ARRAY(
    SELECT coalesce(CAST(a.attname AS text), pg_get_indexdef(x.indexrelid, k + 1, true))
    FROM generate_series(0, x.indnkeyatts - 1) AS k
    LEFT JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[k]
    ORDER BY k
  ) AS columns,
  ARRAY(
    SELECT CAST(x.indoption[k] AS integer) FROM generate_series(0, x.indnkeyatts - 1) AS k
    ORDER BY k
  ) AS options
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_am am ON am.oid = i.relam
WHERE x.indrelid = CAST(:table AS regclass)
ORDER BY i.relname
""")

# Only timestamps: of other types the number means something else.
_TIME_DIGITS = text("""
SELECT CASE WHEN atttypmod < 0 THEN 6 ELSE atttypmod END FROM pg_attribute
WHERE attrelid = CAST(:table AS regclass) AND attname = :column
  AND atttypid IN (CAST('timestamp' AS regtype), CAST('timestamptz' AS regtype))
""")

_LACKS_ZONE = text("""
SELECT 1 FROM pg_attribute WHERE attrelid = CAST(:table AS regclass) AND attname = :column
  AND atttypid = CAST('timestamp' AS regtype)
""")

# The table and its partitions: a partitioned table has no rows of its own.
_TREE = """(SELECT CAST(:table AS regclass) AS relid
  UNION SELECT relid FROM pg_partition_tree(CAST(:table AS regclass)))"""

_NAMES = text(f"SELECT relname FROM pg_class WHERE oid IN {_TREE}")

# The partitioned index of each partition's index, which has a name of its own.
_PARENTS = text(f"""
SELECT c.relname AS part, p.relname AS whole
FROM pg_inherits h JOIN pg_index x ON x.indexrelid = h.inhrelid
JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_class p ON p.oid = h.inhparent
WHERE x.indrelid IN {_TREE}
""")

# The oldest transaction by its time, and what has none: slots, and standbys with feedback.
_SNAPSHOTS = text("""
(SELECT 'session ' || pid || ' of ' || coalesce(usename, '?') ||
    coalesce(nullif(' (' || application_name || ')', ' ()'), '') || coalesce(', ' || state, '')
    || coalesce(', its last query ' || round(extract(epoch FROM clock_timestamp() - query_start))
    || ' s ago', '') AS holder,
  extract(epoch FROM clock_timestamp() - xact_start) AS age,
  'SELECT pg_terminate_backend(' || pid || '); set idle_in_transaction_session_timeout' AS ending
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND backend_type <> 'autovacuum worker' AND xact_start IS NOT NULL
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
ORDER BY xact_start LIMIT 1)
UNION ALL
(SELECT 'the prepared transaction ' || gid || ' of ' || owner,
  extract(epoch FROM clock_timestamp() - prepared),
  'COMMIT PREPARED or ROLLBACK PREPARED ' || quote_literal(gid)
FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 1)
UNION ALL
SELECT 'the replication slot ' || slot_name || CASE WHEN active THEN '' ELSE ', not in use' END,
  NULL, 'SELECT pg_drop_replication_slot(' || quote_literal(slot_name) || '), if nobody needs it'
FROM pg_replication_slots WHERE age(xmin) > 10000
UNION ALL
SELECT 'the standby ' || application_name, NULL,
  'end the long queries there, or switch its hot_standby_feedback off'
FROM pg_stat_replication WHERE age(backend_xmin) > 10000
""")

_SEES_ALL = "SELECT current_user, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"

_DEAD = text(
    "SELECT coalesce(sum(n_dead_tup), 0) AS dead, coalesce(sum(n_live_tup), 0) AS live "
    f"FROM pg_stat_user_tables WHERE relid IN {_TREE}"
)

#: Up to here it does not matter what the planner knows: a claim that sorts so many is quick.
FEW = 5_000

# Of a partitioned table the partitions count, which autovacuum analyzes.
_CHANGED = text("""
SELECT coalesce(sum(s.n_mod_since_analyze), 0) AS changed,
  coalesce(sum(greatest(c.reltuples, 0)), 0) AS known
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.relid IN (SELECT to_regclass(:table) AS relid
  UNION SELECT relid FROM pg_partition_tree(to_regclass(:table)))
""")

#: Up to here dead rows do not matter; beyond, more dead rows than living ones are too many.
_DEAD_ROWS = 10_000


class PostgreSQLExamination(Examination):
    """What the doctor asks of PostgreSQL."""

    # -- a table ----------------------------------------------------------

    explain_words = "EXPLAIN (FORMAT JSON)"
    poolers = "PgBouncer"

    def indexes(self, connection: Connection, table: Table) -> list[ServerIndex]:
        found = connection.execute(_INDEXES, {"table": qualified(connection, table)}).mappings()
        return [_index(row) for row in found]

    def digits_kept(self, connection: Connection, column: Column[Any]) -> int | None:
        names = {"table": qualified(connection, column.table), "column": column.name}
        digits = connection.execute(_TIME_DIGITS, names).scalar()
        return None if digits is None else int(digits)

    def times(self, connection: Connection, column: Column[Any]) -> Iterator[Finding]:
        names = {"table": qualified(connection, column.table), "column": column.name}
        if connection.execute(_LACKS_ZONE, names).scalar() is not None:
            yield Finding.error(
                f"{column.name} has no time zone in the database, where the model has one: it is "
                "compared in the zone of each session",
                f"op.alter_column({column.table.name!r}, {column.name!r}, type_=timestamp_type(), "
                f"postgresql_using=\"{column.name} AT TIME ZONE 'UTC'\"), if its times are UTC; "
                "without the USING every time would be shifted",
            )

    def statistics(self, connection: Connection, table: Table) -> Iterator[Finding]:
        # The server counts them with a delay of up to a second.
        found = connection.execute(_CHANGED, {"table": qualified(connection, table)}).one()
        if found.changed > max(FEW, found.known):
            yield Finding.warning(
                f"{int(found.changed):,} rows have changed since the table was analyzed, more than "
                "it had then: the planner may expect few due jobs, and have each claim read and "
                "sort all of them",
                f"ANALYZE the table ({table.fullname}), and see that autovacuum runs, which does "
                "it within minutes",
            )

    def plan(self, connection: Connection, query: Query, favoured: str | None = None) -> Plan:
        walking = self.database.with_settings(connection, _INSTEAD)
        with nullcontext() if favoured is None else walking:
            rows = explained(connection, self.explain_words, query)
        asked = {"table": qualified(connection, query.table)}
        relations = frozenset(connection.execute(_NAMES, asked).scalars())
        parents = {row.part: row.whole for row in connection.execute(_PARENTS, asked)}
        (plan,) = rows[0].values()
        found = json.loads(plan) if isinstance(plan, str) else plan
        return _plan(found[0]["Plan"], relations, parents)

    # -- the server -------------------------------------------------------

    def snapshot_isolation(self, level: str, strategy: str) -> Finding:
        fix = (
            'claim under READ COMMITTED: create_engine(.., isolation_level="READ COMMITTED"), or '
            'session.connection(execution_options={"isolation_level": "READ COMMITTED"})'
        )
        if strategy in ("strict_order", "per_key"):
            return Finding.error(f"transactions begin as {level}, and {strategy} refuses it", fix)
        if strategy == "advisory":
            return Finding(
                f"transactions begin as {level}, but those of advisory_session() as READ COMMITTED"
            )
        return Finding.warning(
            f"transactions begin as {level}: a claim of a row that changed since its transaction "
            'began fails with "could not serialize access"',
            fix,
        )

    def snapshots(self, connection: Connection) -> Iterator[Snapshot | Finding]:
        user, sees_all = connection.exec_driver_sql(_SEES_ALL).one()
        if not sees_all:
            yield Finding.unchecked(
                f"{user} does not see other users' transactions",
                f"GRANT pg_read_all_stats TO {user}",
            )
            return
        for holder, seconds, ending in connection.execute(_SNAPSHOTS):
            age = None if seconds is None else timedelta(seconds=max(float(seconds), 0.0))
            yield Snapshot(holder, age, ending)

    def dead_rows(self, connection: Connection, table: Table) -> Iterator[Finding]:
        found = connection.execute(_DEAD, {"table": qualified(connection, table)}).one()
        message = f"{found.dead:,} dead rows beside {found.live:,} living rows"
        if found.dead <= max(_DEAD_ROWS, found.live):
            yield Finding(message)
            return
        schema = f", schema={table.schema!r}" if table.schema else ""
        yield Finding.warning(
            f"{message}: each claim walks over the dead rows that vacuum has not removed",
            f"VACUUM {qualified(connection, table)} now; then have autovacuum run sooner, by "
            f"sa_jobqueue.migration.tune_storage(op, {table.name!r}{schema}); and end "
            "old transactions, which keep vacuum from removing anything",
        )


def _index(row: Any) -> ServerIndex:
    options = zip(row["columns"], row["options"], strict=True)
    return ServerIndex(
        name=row["name"],
        columns=tuple(_column(name, option) for name, option in options),
        predicate=row["predicate"],
        unique=row["is_unique"],
        ordered=row["ordered"],
        unusable=None
        if row["valid"]
        else "it is invalid: a CREATE INDEX CONCURRENTLY that failed has left it behind",
    )


def _column(name: str, option: int) -> IndexColumn:
    if option in (1, 2):  # NULLs are sorted differently than ORDER BY does by default
        return IndexColumn(f"{name} NULLS {'FIRST' if option == 2 else 'LAST'}", option == 1)
    return IndexColumn(name, bool(option & 1))


def _plan(top: dict[str, Any], relations: frozenset[str], parents: Mapping[str, str]) -> Plan:
    picking = list(_picking(top))
    scans = [node for node in picking if node.get("Relation Name") in relations]
    bitmaps = [
        inner for node in scans for inner in _all(node) if node["Node Type"] == "Bitmap Heap Scan"
    ]
    names = {node["Index Name"] for node in [*scans, *bitmaps] if "Index Name" in node}
    return Plan(
        indexes=frozenset(_whole(name, parents) for name in names),
        sorts=any(_sorts(node, relations) for node in picking),
        rows=max((int(node["Plan Rows"]) for node in scans), default=None),
    )


def _whole(name: str, parents: Mapping[str, str]) -> str:
    """Return the partitioned index that a partition's index belongs to."""
    while name in parents:
        name = parents[name]
    return name


def _picking(node: dict[str, Any], *, writing: bool = False) -> Iterator[dict[str, Any]]:
    """List the nodes that find rows, without those by which an UPDATE reaches the found rows."""
    if not writing:
        yield node
    writes = node["Node Type"] == "ModifyTable"
    for child in node.get("Plans", ()):
        apart = child.get("Parent Relationship") in ("InitPlan", "SubPlan")
        yield from _picking(child, writing=not apart and (writes or writing))


def _sorts(node: dict[str, Any], relations: frozenset[str]) -> bool:
    """Tell whether a node sorts rows of the table, and not rows that were claimed already."""
    return node["Node Type"] in _SORTS and any(
        inner.get("Relation Name") in relations for inner in _all(node, apart=False)
    )


def _all(node: dict[str, Any], *, apart: bool = True) -> Iterator[dict[str, Any]]:
    for child in node.get("Plans", ()):
        if apart or child.get("Parent Relationship") not in ("InitPlan", "SubPlan"):
            yield child
            yield from _all(child, apart=apart)
