"""Rest after a table has grown: what its server would have done by itself by then."""

from __future__ import annotations

import time

from sqlalchemy import Connection, create_engine

from benchmarks.adapters.catalogue import INNODB, SQLITE
from benchmarks.harness.settling import settle

#: Versions that InnoDB has still to purge; so few are those of others.
FEW = 1_000
PATIENCE = 120.0  # seconds

HISTORY = (
    "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
)


def rest(engine: str, url: str) -> None:
    """Vacuum, analyze, purge, checkpoint: whatever the engine knows of these."""
    settle(engine, url)
    to = create_engine(url, isolation_level="AUTOCOMMIT")
    with to.connect() as connection:
        if engine in INNODB:
            # InnoDB does so itself once a tenth of a table has changed.
            connection.exec_driver_sql("ANALYZE TABLE bench_job, bench_small")
            _wait_for_purge(connection)
        if engine == SQLITE:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    to.dispose()


def _wait_for_purge(connection: Connection) -> None:
    deadline = time.monotonic() + PATIENCE
    while connection.exec_driver_sql(HISTORY).scalar_one() > FEW:
        if time.monotonic() > deadline:
            return  # somebody else holds a snapshot
        time.sleep(0.1)
