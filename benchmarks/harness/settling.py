"""Put a server to rest before a drain: what one left is not the next one's burden."""

from __future__ import annotations

from sqlalchemy import create_engine

#: Said before each drain, each in a transaction of its own.
STATEMENTS = {"postgresql": ("VACUUM ANALYZE", "CHECKPOINT")}


def settle(engine: str, url: str) -> None:
    """Have the server finish what it would else do during the drain."""
    statements = STATEMENTS.get(engine, ())
    if not statements:
        return
    to = create_engine(url, isolation_level="AUTOCOMMIT")
    with to.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    to.dispose()
