"""The proof that locks hold: what one connection has locked, a second one is not given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, false, select, update
from sqlalchemy.exc import DBAPIError

from ..dialects import is_lock_timeout, look_alike
from ..dialects.examination import Finding
from ..errors import LockTimeout, UnsupportedDatabase
from ..model.keys import key_values
from ..owners.alive import OwnerState, owner_state
from ..owners.named_lock import named_lock
from ..owners.owner import Owner
from ..sessions.transactions import connected_outside_pool
from ..strategies.held import is_kept_out
from .subject import Subject

#: How long a connection waits for what the other has locked; InnoDB waits a second at least.
PATIENCE = timedelta(milliseconds=200)

USE_ANOTHER = (
    "use a server that obeys FOR UPDATE SKIP LOCKED, such as InnoDB's tables do, and no proxy that "
    "cuts it out; until then claims that mark raise UnsupportedDatabase where two take the same row"
)
BY_LEASE = (
    "workers claim under plain names here, and the claims of a dead one come back after the lease: "
    "choose a lease that is not much longer than a job takes"
)


def check_locks(subject: Subject) -> Iterator[Finding]:
    """Lock a job and a name by one connection, and try to get them by a second one."""
    shared = subject.database.seen_by_others(subject.connection)
    if subject.strategy.name == "advisory":
        pass  # these locks are named locks
    elif subject.database.in_autocommit(subject.connection):
        yield Finding.unchecked(
            "the connection is in AUTOCOMMIT, where no lock outlives its statement",
            "prove the locks by an engine without AUTOCOMMIT",
        )
    elif not shared:
        yield Finding("this database is in memory, and belongs to one connection alone")
    else:
        with _second(subject) as second:
            prove = _write_lock if subject.database.one_writer else _row_locks
            yield prove(subject, second)
    subject.session.rollback()
    if shared:
        yield _named_locks(subject)
    yield from _product(subject)


@contextmanager
def _second(subject: Subject) -> Iterator[Connection]:
    """Give a second connection, and roll back what it does; neither waits for long."""
    waiting_at_most = subject.examination.waiting_at_most
    with connected_outside_pool(subject.connection.engine) as connection:
        with waiting_at_most(subject.connection, PATIENCE), waiting_at_most(connection, PATIENCE):
            yield connection
        connection.rollback()


def _row_locks(subject: Subject, second: Connection) -> Finding:
    mapping, ready, skips = subject.mapping, subject.strategy.ready, subject.database.skip_locked
    key: Any = select(*mapping.key_attributes)
    locking = ready.locked(key, waiting=not skips)
    row = subject.connection.execute(locking.limit(1)).first()
    if row is None:
        return Finding.unchecked(
            f"{mapping.table.description} has no row that could be locked",
            "enqueue a job, or wait until others have committed, and prove the locks again",
        )
    name = f"row {', '.join(map(str, row))} of {mapping.table.description}"
    same = locking.where(ready.key_is_in("sa_jobqueue_keys"))
    try:
        got = second.execute(same, {"sa_jobqueue_keys": key_values([tuple(row)])}).first()
    except DBAPIError as error:
        if not is_lock_timeout(error):
            raise
        if skips:
            return Finding.error(
                f"SKIP LOCKED is not obeyed: a second connection waited for {name}, which the "
                "first had locked. No job is claimed twice, but claimers wait for each other",
                USE_ANOTHER,
            )
        got = None
    if got is not None or (skips and not is_kept_out(second, ready, tuple(row))):
        message = f"row locks do not hold: two connections locked {name} at the same time"
        return Finding.error(message, USE_ANOTHER)
    return Finding(f"row locks hold: the first connection locked {name}, the second was refused it")


def _write_lock(subject: Subject, second: Connection) -> Finding:
    """Prove the lock of a database with one writer at a time."""
    first, database, table = subject.connection, subject.database, subject.mapping.table
    database.begin_write(first)
    # A connection that may only read begins all the same, and locks nothing.
    first.execute(update(table).where(false()).values({table.c[0]: table.c[0]}))
    try:
        database.begin_write(second)
    except DBAPIError as error:
        if not is_lock_timeout(error):
            raise
        return Finding("the write lock holds: while one connection wrote, another could not begin")
    return Finding.error(
        "the write lock does not hold: two connections were writing at the same time",
        "keep the file on a local disk: a network's file system may ignore locks",
    )


def _named_locks(subject: Subject) -> Finding:
    """Take a named lock by two connections, and open an Owner, as each worker does."""
    engine, name = subject.connection.engine, f"sa-jobqueue doctor {uuid4().hex}"
    try:
        with named_lock(engine, name), named_lock(engine, name, timedelta(0)):
            return Finding.error("named locks do not hold: two connections had one", BY_LEASE)
    except LockTimeout:
        pass  # as it should be
    except UnsupportedDatabase as error:
        return Finding.warning(f"no named lock can be had here: {error}", BY_LEASE)
    try:
        with Owner(engine, "doctor") as owner:
            state = owner_state(subject.session, owner.name)
    except UnsupportedDatabase as error:
        return Finding.warning(f"no Owner can be had here: {error}", BY_LEASE)
    if state is not OwnerState.ALIVE:
        return Finding.warning(f"an Owner that is alive is seen as {state}", BY_LEASE)
    return Finding(
        "named locks hold, and others see that an Owner is alive: a worker's death is noticed at "
        "once"
    )


def _product(subject: Subject) -> Iterator[Finding]:
    """Name the product that the server says it is."""
    question = subject.database.product_question
    if question is not None:
        told = list(map(str, subject.connection.exec_driver_sql(question).one()))
        assume = ": call sa_jobqueue.assume_locks(engine), or give commands --assume-locks"
        says = f"the server says that it is {', '.join(told)}"
        yield Finding(says + assume * bool(look_alike(told)))
