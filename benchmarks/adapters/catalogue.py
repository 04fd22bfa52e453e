"""Every adapter by name: its class, the databases that it runs on, the packages that it needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import click

from benchmarks.adapters.environments import NoInterpreter, environment, interpreter

PG, MYSQL, MARIADB, SQLITE = ALL = ("postgresql", "mysql", "mariadb", "sqlite")
SERVERS = (PG, MYSQL, MARIADB)
INNODB = (MYSQL, MARIADB)

ADAPTERS = "benchmarks.adapters"

#: The adapter that all others are compared with, on each database.
BASELINE = "sql"


@dataclass(frozen=True)
class Entry:
    """An adapter of the catalogue.

    Attributes:
        name: what ``--adapter`` and the tables call it.
        path: ``module:class``; ``{database}`` in it stands for the kind of database.
        databases: what it runs on.
        kind: ``sql``, ``ours`` or ``peer``.
        requirements: packages of a peer's virtual environment; without any, the adapter runs in
            the caller's environment.
        one_at_a_time: it has no batches.
        python: the oldest Python that it runs on, where this package runs on older ones.
    """

    name: str
    path: str
    databases: tuple[str, ...] = ALL
    kind: str = "sql"
    requirements: tuple[str, ...] = ()
    one_at_a_time: bool = False
    python: tuple[int, int] | None = None

    def path_on(self, database: str) -> str:
        """Return ``module:class`` for a database."""
        module = "innodb" if database in INNODB else database
        return self.path.format(database=module)

    def interpreter(self) -> str:
        """Return the Python that runs it; install the packages of a peer first."""
        return environment(self.name, self.requirements, self.python)


def _ours(name: str, kind: str, databases: tuple[str, ...] = ALL) -> Entry:
    return Entry(name, f"{ADAPTERS}.ours:{kind}", databases, "ours")


def _sql(name: str, kind: str, databases: tuple[str, ...] = ALL) -> Entry:
    return Entry(name, f"{ADAPTERS}.handwritten.{{database}}:{kind}", databases)


def _peer(path: str, databases: tuple[str, ...], *requirements: str) -> Entry:
    return Entry(
        path.partition(":")[0], f"{ADAPTERS}.peers.{path}", databases, "peer", requirements
    )


UVLOOP = "uvloop==0.23.0"
PSYCOPG = ("psycopg[binary]==3.3.9", "psycopg-pool==3.3.3")
KOMBU = (
    "kombu[sqlalchemy]==5.7.0",
    "SQLAlchemy==2.1.9",
    "psycopg2-binary==2.9.13",
    "PyMySQL==1.2.4",
)

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        _sql(BASELINE, "Delete"),
        _sql("sql, array", "ByArray", (PG,)),
        _sql("sql, autocommit", "Autocommit", (PG,)),
        _sql("sql, keep", "Keep"),
        _sql("sql, held", "Held", SERVERS),
        _sql("sql, turn", "Turn"),
        _sql("sql, advisory", "Advisory", (PG,)),
        Entry("sql, core", f"{ADAPTERS}.handwritten.core:Core"),
        Entry("sql, orm", f"{ADAPTERS}.handwritten.core:Orm"),
        _ours("entities", "Entities"),
        _ours("rows", "Rows"),
        _ours("rows, session", "InSession"),
        _ours("rows, keep", "Keep"),
        _ours("rows, turn", "Turn"),
        _ours("rows, turn, autocommit", "TurnInAutocommit", (PG,)),
        _ours("rows, held", "Held", SERVERS),
        _ours("rows, advisory", "Advisory", (PG,)),
        _ours("entities, turn", "TurnOfEntities"),
        _ours("Worker", "TheWorker"),
        _ours("rows, asyncio", "Asyncio"),
        _ours("entities, turn, asyncio", "TurnsInLoop"),
        _ours("AsyncWorker", "TheAsyncWorker"),
        # pgmq's package brings the SQL of the extension: nothing is compiled.
        _peer("pgmq:Pgmq", (PG,), "pgmq==1.1.4", *PSYCOPG),
        _peer("pgqueuer:PgQueuer", (PG,), "pgqueuer==1.6.0", "asyncpg==0.32.0", UVLOOP),
        _peer("procrastinate:Procrastinate", (PG,), "procrastinate==3.10.0", *PSYCOPG, UVLOOP),
        replace(
            _peer("oban:ObanPy", (PG,), "oban==0.7.0", *PSYCOPG, UVLOOP),
            python=(3, 12),
        ),
        _peer("chancy:ChancyPeer", (PG,), "chancy==0.26.0", *PSYCOPG, UVLOOP),
        _peer("saq:Saq", (PG,), "saq[postgres]==0.26.4", *PSYCOPG, UVLOOP),
        replace(_peer("kombu:Kombu", ALL, *KOMBU), one_at_a_time=True),
        replace(_peer("huey:Huey", (SQLITE,), "huey==3.5.4"), one_at_a_time=True),
        replace(_peer("litequeue:Lite", (SQLITE,), "litequeue==0.9"), one_at_a_time=True),
    )
}


def entries(database: str, names: tuple[str, ...] = (), *, peers: bool = True) -> list[Entry]:
    """List the adapters of a database, the baseline first.

    A peer is left out if this machine has no Python for it, unless it is named.

    Args:
        names: only these, and the baseline; without any, all.

    Raises:
        click.UsageError: there is no adapter of a name, or no Python for it.
    """
    unknown = sorted(set(names).difference(CATALOGUE))
    if unknown:
        raise click.UsageError(f"no adapter {', '.join(unknown)}; there are {', '.join(CATALOGUE)}")
    wanted = {BASELINE, *names} if names else set(CATALOGUE)
    return [
        entry
        for entry in CATALOGUE.values()
        if entry.name in wanted
        and database in entry.databases
        and (peers or entry.kind != "peer")
        and _runs(entry, named=entry.name in names)
    ]


def _runs(entry: Entry, *, named: bool) -> bool:
    try:
        interpreter(entry.python)
    except NoInterpreter as error:
        if named:
            raise click.UsageError(f"{entry.name}: {error}") from error
        sys.stderr.write(f"{entry.name} is left out: {error}\n")
        return False
    return True
