"""The proof that locks hold: what one connection has locked, a second one is not given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, false, select, update
from sqlalchemy.exc import DBAPIError

from ..dialects import is_lock_timeout, look_alike
from ..dialects.examination import Answer
from ..errors import UnsupportedDatabase
from ..model.keys import key_values
from ..owners.alive import OwnerState, owner_states
from ..owners.owner import Owner
from ..sessions.transactions import connected_outside_pool
from ..strategies.advisory_session import advisory_session
from ..strategies.parts.lock_proof import is_kept_out
from .case import Case

#: How long a connection waits for what the other has locked; InnoDB waits a second at least.
PATIENCE = timedelta(milliseconds=200)

USE_ANOTHER = (
    "use a server that obeys FOR UPDATE SKIP LOCKED, such as InnoDB's tables do, and no proxy that "
    "cuts it out; until then claims that mark raise UnsupportedDatabase where two take the same row"
)
ASSUME = (
    "its locks hold: to claim there, call sa_jobqueue.assume_locks(engine), and give commands "
    "--assume-locks"
)
BY_LEASE = (
    "workers claim under plain names here, and the claims of a dead one come back after the lease: "
    "choose a lease that is not much longer than a job takes"
)


def check_locks(case: Case) -> Iterator[Answer]:
    """Lock a job by one connection, and try to get it by a second one; roll both back."""
    if case.strategy.name == "advisory":
        answer = _advisory_locks(case)
    elif case.database.in_autocommit(case.connection):
        answer = Answer.unchecked(
            "the connection is in AUTOCOMMIT, where no lock outlives its statement",
            "prove the locks by an engine without AUTOCOMMIT",
        )
    else:
        answer = _write_lock(case) if case.database.one_writer else _row_locks(case)
    yield answer
    yield from _product(case)


def _product(case: Case) -> Iterator[Answer]:
    """Name the product that the server says it is."""
    if case.database.product_question is None:
        return
    told = list(map(str, case.connection.exec_driver_sql(case.database.product_question).one()))
    product = look_alike(told)
    says = f"the server says that it is {', '.join(told)}"
    yield Answer(says if product is None else f"{says}: where {ASSUME}")


def check_owner(case: Case) -> Iterator[Answer]:
    """Open an Owner, as each worker does, and look whether others see that it is alive."""
    if not case.database.seen_by_others(case.connection):
        return
    try:
        with Owner(case.connection.engine, "doctor") as owner:
            state = owner_states(case.connection, [owner.name])[owner.name]
    except UnsupportedDatabase as error:
        yield Answer.warning(f"no Owner can be had here: {error}", BY_LEASE)
        return
    if state is OwnerState.ALIVE:
        yield Answer("an Owner is seen to be alive, so that a worker's death is noticed at once")
    else:
        yield Answer.warning(f"an Owner that is alive is seen as {state}", BY_LEASE)


# -- row locks ----------------------------------------------------------


def _row_locks(case: Case) -> Answer:
    first, table = case.connection, case.mapping.table.description
    with (
        _second(case) as second,
        case.examination.waiting_at_most(first, PATIENCE),
        case.examination.waiting_at_most(second, PATIENCE),
    ):
        row = first.execute(_locking(case).limit(1)).first()
        if row is None:
            return Answer.unchecked(
                f"{table} has no row that could be locked",
                "enqueue a job, or wait until others have committed, and prove the locks again",
            )
        return _row_answer(case, second, tuple(row))


def _row_answer(case: Case, second: Connection, key: tuple[Any, ...]) -> Answer:
    name = f"row {', '.join(map(str, key))} of {case.mapping.table.description}"
    passes = case.database.skip_locked
    if passes:
        try:
            found = second.execute(*_locking_row(case, key)).first()
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
            return Answer.error(
                f"SKIP LOCKED is not obeyed: a second connection waited for {name}, which the "
                "first had locked. No job is claimed twice, but claimers wait for each other",
                USE_ANOTHER,
            )
        if found is not None:
            return _broken(name, "FOR UPDATE SKIP LOCKED")
    if not _is_kept_out(case, second, key):
        return _broken(name, "FOR UPDATE")
    kept = "passed over it and was refused it" if passes else "was refused it"
    return Answer(f"row locks hold: the first connection locked {name}, and the second {kept}")


def _broken(name: str, clause: str) -> Answer:
    return Answer.error(
        f"row locks do not hold: two connections locked {name} at the same time, by {clause}",
        USE_ANOTHER,
    )


def _is_kept_out(case: Case, second: Connection, key: tuple[Any, ...]) -> bool:
    if case.database.skip_locked:
        return is_kept_out(second, case.strategy.ready, key)
    try:
        return second.execute(*_locking_row(case, key)).first() is None
    except DBAPIError as error:
        if not is_lock_timeout(error):
            raise
        return True


def _locking(case: Case) -> Any:
    """Select a key of the table as a claim does, with its locking clause."""
    ready = case.strategy.ready
    read: Any = select(*case.mapping.key_attributes)
    return ready.locked(read, waiting=not case.database.skip_locked)


def _locking_row(case: Case, key: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    by_key = _locking(case).where(case.strategy.ready.key_is_in("sa_jobqueue_keys"))
    return by_key, {"sa_jobqueue_keys": key_values([key])}


# -- the write lock of SQLite -------------------------------------------


def _write_lock(case: Case) -> Answer:
    if not case.database.seen_by_others(case.connection):
        return Answer("this database is in memory, and belongs to one connection alone")
    with _second(case) as second, case.examination.waiting_at_most(second, PATIENCE):
        case.database.begin_write(case.connection)
        # A connection that may only read begins all the same, and locks nothing.
        column = case.mapping.table.c[0]
        case.connection.execute(update(case.mapping.table).where(false()).values({column: column}))
        try:
            case.database.begin_write(second)
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
            begun = case.database.begin_statement
            return Answer(
                f"the write lock holds: while the first connection was writing ({begun}), the "
                "second could not begin to"
            )
    return Answer.error(
        "the write lock does not hold: two connections were writing at the same time",
        "keep the file on a local disk: a network's file system may ignore locks",
    )


# -- advisory locks -----------------------------------------------------


def _advisory_locks(case: Case) -> Answer:
    engine, queue = case.connection.engine, case.queue
    with advisory_session(engine) as first, advisory_session(engine) as second:
        ours = queue.claim_rows(first).fences
        theirs = queue.claim_rows(second).fences
        first.rollback()
        second.rollback()
    if not ours:
        return Answer.unchecked(
            "the queue has no job that could be claimed",
            "make a row claimable, and prove the locks again",
        )
    if [fence.identity for fence in ours] == [fence.identity for fence in theirs]:
        return _broken(f"row {ours[0].identity}", "advisory locks")
    return Answer(
        f"advisory locks hold: the first connection claimed row {ours[0].identity}, and the "
        "second did not get it"
    )


# -- connections --------------------------------------------------------


@contextmanager
def _second(case: Case) -> Iterator[Connection]:
    """Give a second connection, and roll back what it does."""
    with connected_outside_pool(case.connection.engine) as connection:
        yield connection
        connection.rollback()
