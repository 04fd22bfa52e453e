"""Every adapter by name: where it is, what it runs on, what it needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from benchmarks.adapters.interpreters import NoInterpreter, interpreter

PG, MYSQL, MARIADB, SQLITE = ENGINES = ("postgresql", "mysql", "mariadb", "sqlite")
SERVERS = (PG, MYSQL, MARIADB)
INNODB = (MYSQL, MARIADB)

#: Against which all others are measured, on each engine.
BASELINE = "sql"


@dataclass(frozen=True)
class Entry:
    """One adapter.

    Attributes:
        name: by which ``--adapter`` and the tables call it.
        path: ``module:class`` below this package, by engine where it differs.
        engines: what it runs on.
        kind: ``sql``, ``ours`` or ``peer``.
        requirements: what a peer's virtual environment holds; none: that of the caller.
        one_at_a_time: it knows no batches.
        python: the oldest Python that it runs on, where that is newer than this package's.
    """

    name: str
    path: str
    engines: tuple[str, ...]
    kind: str
    requirements: tuple[str, ...] = ()
    one_at_a_time: bool = False
    python: tuple[int, int] | None = None

    def path_on(self, engine: str) -> str:
        """Return ``module:class`` for an engine."""
        dialect = "innodb" if engine in INNODB else engine
        return f"benchmarks.adapters.{self.path.format(engine=dialect)}"


def _sql(name: str, kind: str, engines: tuple[str, ...] = ENGINES) -> Entry:
    return Entry(name, f"handwritten.{{engine}}:{kind}", engines, "sql")


def _ours(name: str, kind: str, engines: tuple[str, ...] = ENGINES) -> Entry:
    return Entry(name, f"ours:{kind}", engines, "ours")


def _peer(
    name: str,
    path: str,
    engines: tuple[str, ...],
    *requirements: str,
    one_at_a_time: bool = False,
    python: tuple[int, int] | None = None,
) -> Entry:
    return Entry(name, f"peers.{path}", engines, "peer", requirements, one_at_a_time, python)


UVLOOP = "uvloop==0.23.0"
PSYCOPG = ("psycopg[binary]==3.3.9", "psycopg-pool==3.3.3")

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        _sql(BASELINE, "Delete"),
        _sql("sql, array", "ByArray", (PG,)),
        _sql("sql, keep", "Keep"),
        _sql("sql, held", "Held", SERVERS),
        _sql("sql, turn", "Turn"),
        _sql("sql, advisory", "Advisory", (PG,)),
        Entry("sql, core", "handwritten.core:Core", ENGINES, "sql"),
        Entry("sql, orm", "handwritten.core:Orm", ENGINES, "sql"),
        _ours("entities", "Entities"),
        _ours("rows", "Rows"),
        _ours("rows, session", "InSession"),
        _ours("rows, keep", "Keep"),
        _ours("rows, turn", "Turn"),
        _ours("rows, held", "Held", SERVERS),
        _ours("rows, advisory", "Advisory", (PG,)),
        _ours("rows, asyncio", "Asyncio"),
        # pgmq's package brings the SQL of the extension: nothing is compiled.
        _peer("pgmq", "pgmq:Pgmq", (PG,), "pgmq==1.1.4", *PSYCOPG),
        _peer("pgqueuer", "pgqueuer:PgQueuer", (PG,), "pgqueuer==1.6.0", "asyncpg==0.32.0", UVLOOP),
        _peer(
            "procrastinate",
            "procrastinate:Procrastinate",
            (PG,),
            "procrastinate==3.10.0",
            *PSYCOPG,
            UVLOOP,
        ),
        _peer("oban", "oban:ObanPy", (PG,), "oban==0.7.0", *PSYCOPG, UVLOOP, python=(3, 12)),
        _peer("chancy", "chancy:ChancyPeer", (PG,), "chancy==0.26.0", *PSYCOPG, UVLOOP),
        _peer("saq", "saq:Saq", (PG,), "saq[postgres]==0.26.4", *PSYCOPG, UVLOOP),
        _peer(
            "kombu",
            "kombu:Kombu",
            ENGINES,
            "kombu[sqlalchemy]==5.7.0",
            "SQLAlchemy==2.1.9",
            "psycopg2-binary==2.9.13",
            "PyMySQL==1.2.4",
            one_at_a_time=True,
        ),
        _peer("huey", "huey:Huey", (SQLITE,), "huey==3.5.4", one_at_a_time=True),
        _peer("litequeue", "litequeue:Lite", (SQLITE,), "litequeue==0.9", one_at_a_time=True),
    )
}


def entries(engine: str, names: tuple[str, ...] = (), *, peers: bool = True) -> list[Entry]:
    """List the adapters of an engine, the baseline first; only those named, if any are.

    A peer that this machine has no Python for is left out, unless it is named.

    Raises:
        LookupError: a name that there is not, or a Python that there is not.
    """
    unknown = sorted(set(names).difference(CATALOGUE))
    if unknown:
        raise LookupError(f"no adapter {', '.join(unknown)}; there are {', '.join(CATALOGUE)}")
    wanted = {BASELINE, *names} if names else set(CATALOGUE)
    found = [
        entry
        for entry in CATALOGUE.values()
        if entry.name in wanted and engine in entry.engines and (peers or entry.kind != "peer")
    ]
    return [entry for entry in found if _runs(entry, named=entry.name in names)]


def _runs(entry: Entry, *, named: bool) -> bool:
    try:
        interpreter(entry.python)
    except NoInterpreter as error:
        if named:
            raise NoInterpreter(f"{entry.name}: {error}") from error
        sys.stderr.write(f"{entry.name} is left out: {error}\n")
        return False
    return True
