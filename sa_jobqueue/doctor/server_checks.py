"""Checks of the server and of the connection: what makes claims slow, or owners unknown."""

from __future__ import annotations

from collections.abc import Iterator

from ..ages import age_text
from ..dialects.examination import Finding
from .subject import Subject


def check_statistics(subject: Subject) -> Iterator[Finding]:
    """Tell how many rows the planner does not know of."""
    table = subject.mapping.table
    rows = subject.database.unanalyzed_rows(subject.connection, table)
    if rows:
        yield Finding.warning(
            f"{rows:,} rows have changed since the table was analyzed, more than it had then: the "
            "planner may expect few due jobs, and have each claim read and sort all of them",
            f"ANALYZE the table ({table.fullname}), and see that autovacuum runs, which does it "
            "within minutes",
        )


def check_dead_rows(subject: Subject) -> Iterator[Finding]:
    """Tell how many dead rows wait to be removed."""
    yield from subject.examination.dead_rows(subject.connection, subject.mapping.table)


def check_snapshot(subject: Subject) -> Iterator[Finding]:
    """Tell who keeps the oldest snapshots, and how old they are."""
    for found in subject.examination.snapshots(subject.connection):
        if isinstance(found, Finding):
            yield found
            continue
        age = age_text(found.age, unknown="10,000 transactions or more")
        text = f"the snapshot of {found.holder} is {age} old"
        if found.age is not None and found.age < subject.old_snapshot:
            yield Finding(text)
        else:
            yield Finding.warning(
                f"{text}: since then no row version of a claimed or finished job was removed, and "
                "claims read them all",
                found.ending,
            )


def check_isolation(subject: Subject) -> Iterator[Finding]:
    """Judge the isolation level that the caller's transactions begin with, and the binary log."""
    connection, name = subject.connection, subject.strategy.name
    if subject.database.in_autocommit(connection):
        yield Finding("the connection is in AUTOCOMMIT")
    else:
        level = connection.get_isolation_level()
        keeps_snapshot = level in ("REPEATABLE READ", "SERIALIZABLE")
        judged = subject.examination.snapshot_isolation(level, name) if keeps_snapshot else None
        yield judged or Finding(f"transactions begin as {level}")
    yield from subject.examination.settings(connection)


def check_owners(subject: Subject) -> Iterator[Finding]:
    """Check whether this user can see which owners are alive."""
    yield from subject.examination.processes(subject.connection)


def check_pooler(subject: Subject) -> Iterator[Finding]:
    """Check whether a pooler shares our server session with others."""
    if not subject.database.through_pooler(subject.connection):
        return
    message = f"a pooler such as {subject.examination.poolers} is between us and the server"
    fix = (
        "give Owner(), named_lock() and advisory_session() an engine with a direct URL; claims of "
        "other strategies may go through the pooler"
    )
    prepares = subject.examination.driver_behind_pooler(subject.connection)
    fix = f"{fix}; {prepares}" if prepares else fix
    if subject.strategy.name == "advisory":
        yield Finding.error(f"{message}: advisory claims are refused through it", fix)
    else:
        yield Finding.warning(
            f"{message}: its clients share server sessions, and so the lock of an Owner. Owners "
            "are refused through the pooler, and nobody can see whether other owners are alive",
            fix,
        )
