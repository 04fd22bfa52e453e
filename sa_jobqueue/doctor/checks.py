"""Checks of the table, of the server, and of the locks that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    Column,
    Connection,
    Select,
    Table,
    false,
    inspect,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from ..ages import age_text
from ..databases import dialect_of, is_lock_timeout, look_alike
from ..errors import LockTimeout, UnsupportedDatabase
from ..model.columns import DIGITS, has_no_zone
from ..model.keys import key_values
from ..model.status import JobStatus
from ..owners.alive import OwnerState, owner_state
from ..owners.named_lock import named_lock
from ..owners.owner import Owner
from ..sessions.transactions import connected_outside_pool
from ..strategies.held import is_kept_out
from .examination import Finding, Subject

#: So many of the newest rows show which words the application writes.
NEWEST = 1_000


def check_table(subject: Subject) -> Iterator[Finding]:
    """Check that the table exists, and has the columns of the model."""
    table, connection = subject.mapping.table, subject.connection
    if lack := what_lacks(lambda: subject.connection, table, subject.session.rollback):
        fix = "run the migrations: alembic upgrade head; or examine another database"
        yield Finding.error(lack, fix)
    else:
        yield from subject.examination.storage(connection, table)


def check_strategy(subject: Subject) -> Iterator[Finding]:
    """Name the strategy; the database may be unable to run it."""
    try:
        yield Finding(f"claims are made by {subject.strategy.name}")
    except UnsupportedDatabase as error:
        yield Finding.error(
            str(error),
            "make the queue with strategy='auto', which needs a class with JobMixin; or examine it "
            "in a database that can run this strategy",
        )


def check_columns(subject: Subject) -> Iterator[Finding]:
    """Check that the table's times are as the model says, and owner_date has microseconds."""
    mapping, postgresql = subject.mapping, dialect_of("postgresql")
    names = [*mapping.time_keys, *filter(None, [mapping.args.enqueued_at])]
    for column in (mapping.mapper.columns[name] for name in names):
        if has_no_zone(column.type, postgresql) or not isinstance(column, Column):
            continue  # stats() reads an enqueued_at as its type says
        yield from subject.examination.times(subject.connection, column)
    if not mapping.is_queue or not subject.strategy.marks:
        return
    column = mapping.column("owner_date")
    digits = subject.examination.digits_kept(subject.connection, column)
    if digits is not None and digits < DIGITS:
        yield Finding.error(
            f"{column.name} keeps {digits} digits of a second in the database, so finishes are "
            "lost",
            f"op.alter_column({column.table.name!r}, {column.name!r}, type_=timestamp_type()), "
            "with timestamp_type of sa_jobqueue.migration",
        )


def check_statuses(subject: Subject) -> Iterator[Finding]:
    """Look whether the newest rows have statuses of the queue: no claim takes other words."""
    mapping, spec = subject.mapping, subject.spec
    if not mapping.is_queue or spec.ready != mapping.word(JobStatus.UNCLAIMED):
        return  # a queue of a further status, such as a step's, gets its rows from others
    ours = {*map(mapping.word, JobStatus), *mapping.ready, *mapping.during}
    ours |= {spec.during, subject.queue.then, *mapping.waiting}
    newest = (
        select(mapping.status_word.label("word"))
        .order_by(*(key.desc() for key in mapping.key_attributes))
        .limit(NEWEST)
        .subquery()
    )
    found = set(subject.connection.execute(select(newest.c.word).distinct()).scalars())
    if found and not found & ours:
        shown = ", ".join(sorted(map(repr, found))[:5])
        yield Finding.warning(
            f"the newest rows have statuses of their own ({shown}): no claim takes them, since it "
            f"looks for {spec.ready!r}",
            "name the table's words in the model, as in __queue_args__ = {'names': {'unclaimed': "
            f"{sorted(found)[0]!r}}}}}, or update the rows to {spec.ready!r}",
        )


def what_lacks(
    connect: Callable[[], Connection], table: Table, roll_back: Callable[[], object]
) -> str | None:
    """Say that a table is missing, or which columns of its model it lacks; None: all is there.

    Reflection would know the columns, too, but it reads the indexes as well, and warns of some.

    Args:
        connect: gives the connection, also after `roll_back`.
        roll_back: called after a statement that has failed.

    Raises:
        DBAPIError: the table cannot be read for another reason, such as privileges.
    """
    connection = connect()
    if not inspect(connection).has_table(table.name, schema=connection.schema_for_object(table)):
        return f"there is no table {table.fullname}"
    try:
        connection.execute(select(table).limit(0))
    except DBAPIError:
        roll_back()
        whole: Select[Any] = select(literal_column("*")).select_from(table).limit(0)
        there = set(map(str.casefold, connect().execute(whole).keys()))
        missing = [column.name for column in table.c if column.name.casefold() not in there]
        if not missing:
            raise
        return f"the table {table.fullname} lacks columns of its model: {', '.join(missing)}"
    return None


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


def check_pooler(subject: Subject) -> Iterator[Finding]:
    """Check whether a pooler shares our server session with others."""
    if not subject.database.through_pooler(subject.connection):
        return
    judge = Finding.error if subject.strategy.name == "advisory" else Finding.warning
    yield judge(
        f"a pooler such as {subject.examination.poolers} is between us and the server: its clients "
        "share server sessions, and so the lock of an Owner. Advisory claims and Owners are "
        "refused through it, and nobody can see whether other owners are alive",
        "give Owner(), named_lock() and advisory_session() an engine with a direct URL; claims of "
        "other strategies may go through the pooler, with the driver's settings of "
        "docs/databases.md",
    )


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
    elif subject.database.backend(subject.connection) == 0:  # a second one would wait for ever
        yield Finding(
            "all clients share one session, and their transactions run one after the other: no two "
            "can claim the same row"
        )
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
    waiting_at_most = subject.database.waiting_at_most
    with connected_outside_pool(subject.connection.engine) as connection:
        with waiting_at_most(subject.connection, PATIENCE), waiting_at_most(connection, PATIENCE):
            yield connection
        connection.rollback()


def _row_locks(subject: Subject, second: Connection) -> Finding:
    mapping, ready, skips = subject.mapping, subject.strategy.ready, subject.database.skip_locked
    key: Any = select(*mapping.key_attributes)
    locking = ready.locked(key)
    row = subject.connection.execute(locking.limit(1)).first()
    if row is None:
        return Finding.unchecked(
            f"{mapping.table.description} has no row that could be locked",
            "enqueue a job, or wait until others have committed, and prove the locks again",
        )
    name = f"row {', '.join(map(str, row))} of {mapping.table.description}"
    same = locking.where(ready.key_is_in("sa_jobqueue_keys"))
    keys = {"sa_jobqueue_keys": key_values([tuple(row)])}
    got = _unless_refused(lambda: second.execute(same, keys).first())
    if got is REFUSED and skips:
        return Finding.error(
            f"SKIP LOCKED is not obeyed: a second connection waited for {name}, which the "
            "first had locked. No job is claimed twice, but claimers wait for each other",
            USE_ANOTHER,
        )
    if got not in (None, REFUSED) or (skips and not is_kept_out(second, ready, tuple(row))):
        message = f"row locks do not hold: two connections locked {name} at the same time"
        return Finding.error(message, USE_ANOTHER)
    return Finding(f"row locks hold: the first connection locked {name}, the second was refused it")


#: What a connection gets that waits for a lock in vain.
REFUSED = object()


def _unless_refused(take: Callable[[], Any]) -> Any:
    """Return what a connection gets that asks for a lock."""
    try:
        return take()
    except DBAPIError as error:
        if not is_lock_timeout(error):
            raise
        return REFUSED


def _write_lock(subject: Subject, second: Connection) -> Finding:
    """Prove the lock of a database with one writer at a time."""
    first, database, table = subject.connection, subject.database, subject.mapping.table
    database.begin_write(first)
    # A connection that may only read begins all the same, and locks nothing.
    first.execute(update(table).where(false()).values({table.c[0]: table.c[0]}))
    if _unless_refused(lambda: database.begin_write(second)) is REFUSED:
        return Finding("the write lock holds: while one connection wrote, another could not begin")
    return Finding.error(
        "the write lock does not hold: two connections were writing at the same time",
        "keep the file on a local disk: a network's file system may ignore locks",
    )


def _named_locks(subject: Subject) -> Finding:
    """Take a named lock by two connections, and open an Owner, as each worker does."""
    engine, name = subject.connection.engine, f"sa-jobqueue doctor {uuid4().hex}"
    try:
        with (
            suppress(LockTimeout),
            named_lock(engine, name),
            named_lock(engine, name, timedelta(0)),
        ):
            return Finding.error("named locks do not hold: two connections had one", BY_LEASE)
        with Owner(engine, "doctor") as owner:
            state = owner_state(subject.session, owner.name)
    except UnsupportedDatabase as error:
        return Finding.warning(f"a named lock, or an Owner, cannot be had here: {error}", BY_LEASE)
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
        assume = ": call sa_jobqueue.assume_locks(engine), and give commands this engine"
        says = f"the server says that it is {', '.join(told)}"
        yield Finding(says + assume * bool(look_alike(told)))
