"""Sessions that can claim by advisory locks, and the locks of their connection.

::

    with advisory_session(engine) as session:
        due = claim(session, Subscription, Subscription.last_mail_at < started,
                    strategy="advisory", limit=100)
        for subscription in due:
            send(subscription)
            subscription.last_mail_at = started
            complete(session, subscription)
            session.commit()             # releases this row

PostgreSQL only. A claim by advisory locks writes nothing. The locks belong to the connection,
not to its transaction: they outlive COMMIT and ROLLBACK, and when a connection dies, the server
releases them at once. So we release the lock of a finished row, after the outermost COMMIT of
its connection; before that, others would find the row unfinished.

We follow the transactions that SQLAlchemy makes. A ROLLBACK TO SAVEPOINT, or a ROLLBACK in SQL of
the caller's own, undoes a finish without our notice. The COMMIT then frees its rows all the same,
as release() does: they are claimable again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.orm import Session

from ..dialects import Database, database_of
from ..dialects.after_commit import TransactionHooks, add_hooks, fetch_all, hooks_of
from ..dialects.connections import driver_connection
from ..errors import NotClaimed, UnsupportedDatabase
from ..fence.token import Hold, Identity, LetGo
from ..model.mapping import QueueMapping

log = logging.getLogger("sa_jobqueue.strategies.advisory_session")

#: The arguments of the lock functions: the oid of a table, and a primary key or its hash.
LockKey: TypeAlias = tuple[int, int]

Run: TypeAlias = Callable[[str], Sequence[Any]]

#: The name of this module's hooks on a connection.
_HOOKS = "advisory locks"


class AdvisoryHold(Hold):
    """The advisory locks of one claim.

    Args:
        keys: the lock of each row.
        rounds: the round that each row was claimed in.
    """

    def __init__(
        self,
        locks: AdvisoryLocks,
        keys: Mapping[Identity, LockKey],
        rounds: Mapping[Identity, int],
    ) -> None:
        self._locks = locks
        self._keys = keys
        self.rounds = rounds

    def still_held(
        self, connection: Connection, mapping: QueueMapping, identities: Sequence[Identity]
    ) -> list[Identity]:
        """Return the rows that are still locked; none if the connection broke."""
        if connection is not self._locks.connection():
            raise NotClaimed(
                "only the connection that made a claim by advisory locks can finish it, and this "
                "is another connection: claim, work and finish in one advisory_session(engine)"
            )
        if locks_of(connection) is not self._locks:
            return []
        known = [identity for identity in identities if identity in self._keys]
        return [each for each in known if self._locks.keeps(self._keys[each], self)]

    def let_go(
        self,
        connection: Connection,
        mapping: QueueMapping,
        identities: Sequence[Identity],
        when: LetGo,
    ) -> None:
        """Release the rows' locks now, or when the transaction ends."""
        keys = [self._keys[identity] for identity in identities]
        if when is LetGo.NOW:
            self._locks.release(connection, keys)
        elif when is LetGo.AT_COMMIT:
            self._locks.finished.update(dict.fromkeys(keys))
        elif when is LetGo.AT_END:
            self._locks.released_at_end.update(keys)


@dataclass(eq=False)
class AdvisoryLocks(TransactionHooks):
    """The locks that one connection keeps.

    Attributes:
        held: the claim that each lock is kept for.
        finished: locks of rows whose finish is not committed yet, in the order of
            the finishes.
        released_at_end: locks to release when the transaction ends, by COMMIT or ROLLBACK.
        doubtful: whether a statement that takes or releases locks was interrupted, so
            that nobody knows which locks there are.
    """

    connection: ref[Connection]
    database: Database
    held: dict[LockKey, AdvisoryHold] = field(default_factory=dict)
    finished: dict[LockKey, None] = field(default_factory=dict)
    released_at_end: set[LockKey] = field(default_factory=set)
    doubtful: bool = False

    def keep(
        self, keys: Mapping[Identity, LockKey], rounds: Mapping[Identity, int]
    ) -> AdvisoryHold:
        """Keep the locks of one claim."""
        hold = AdvisoryHold(self, keys, rounds)
        self.held.update(dict.fromkeys(keys.values(), hold))
        return hold

    def keeps(self, key: LockKey, hold: AdvisoryHold) -> bool:
        """Tell whether a claim still has this lock, and will have it after the transaction."""
        return self.held.get(key) is hold and key not in self.released_at_end

    # -- in a transaction -----------------------------------------------

    def release(self, connection: Connection, keys: Sequence[LockKey]) -> None:
        """Release locks now, but the locks of finished rows when the transaction ends."""
        self.released_at_end.update(key for key in keys if key in self.finished)
        unfinished = [key for key in dict.fromkeys(keys) if key not in self.finished]
        self.unlock(connection, unfinished)
        self._forget(unfinished)

    def unlock(self, connection: Connection, keys: Sequence[LockKey]) -> None:
        """Unlock keys on the server; a key that was locked twice must be named twice."""
        if keys:
            _run_in(connection, unlocking(keys))

    def reconcile(self, connection: Connection) -> None:
        """Unlock what an interrupted statement has left locked."""
        if self.doubtful:
            self._reconcile(partial(_run_in, connection))

    # -- at its end -----------------------------------------------------

    def will_commit(self, driver: Any, errors: type[Exception]) -> bool:
        """Tell whether a COMMIT will commit the finishes of the transaction."""
        return not (self.finished and self.database.driver_refuses_commit(driver, errors))

    def after_end(self, driver: Any, *, committed: bool) -> None:
        """Release the rows that were finished in the transaction, if it was committed."""
        run, finished = partial(_run_after, driver), self.finished if committed else {}
        ending = [key for key in self.held if key in finished or key in self.released_at_end]
        self.end_interrupted()
        self.released_at_end.clear()
        self._forget(ending)
        if ending:
            before, self.doubtful = self.doubtful, True
            run(unlocking(ending))
            self.doubtful = before
        if self.doubtful:
            self._reconcile(run)

    def after_end_failed(self, error: Exception) -> None:
        """Log it; if the connection broke, the server has released the locks."""
        log.warning("advisory locks could not be released: %s", error)

    def on_return(self, driver: Any) -> None:
        """Release everything before the pool hands the connection out again."""
        driver.rollback()
        _run_after(driver, "SELECT pg_advisory_unlock_all()")

    def end_interrupted(self) -> None:
        """Forget what was finished in the transaction: it is lost."""
        self.finished.clear()

    def _forget(self, keys: Iterable[LockKey]) -> None:
        for key in keys:
            self.held.pop(key, None)

    def _reconcile(self, run: Run) -> None:
        found = [(_signed(table), _signed(key)) for table, key in run(LOCKS_OF_THIS_CONNECTION)]
        stray = [key for key in found if key not in self.held]
        if stray:
            log.info("%d locks of an interrupted claim are released", len(stray))
            run(unlocking(stray))
        self.doubtful = False


# -- the locks of a connection ----------------------------------------------


def locks_of(connection: Connection) -> AdvisoryLocks:
    """Return the locks of a connection; at first it has none."""
    locks = hooks_of(connection, _HOOKS)
    if locks is None:
        locks = AdvisoryLocks(ref(connection), database_of(connection))
        add_hooks(connection, _HOOKS, locks)
    assert isinstance(locks, AdvisoryLocks)
    return locks


# -- statements -------------------------------------------------------------


#: Only locks that are named by a user's table: other advisory locks belong to the caller.
LOCKS_OF_THIS_CONNECTION = """\
SELECT classid::bigint, objid::bigint FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 2
AND EXISTS (SELECT FROM pg_class WHERE oid = classid AND oid >= 16384)"""


def unlocking(keys: Iterable[LockKey]) -> str:
    """Write the statement that releases locks.

    The keys are numbers that the server made. They stand in the text, so that it is the
    same for every driver.
    """
    arrays = (",".join(map(str, map(int, numbers))) for numbers in zip(*keys, strict=True))
    tables, rows = (f"'{{{array}}}'::integer[]" for array in arrays)
    return f"SELECT pg_advisory_unlock(a, b) FROM unnest({tables}, {rows}) AS k (a, b)"


def _signed(number: int) -> int:
    """Turn an unsigned number of pg_locks into the signed 32 bits of an argument."""
    return number - (1 << 32) if number >> 31 else number


def _run_in(connection: Connection, statement: str) -> Sequence[Any]:
    return connection.exec_driver_sql(statement).all()


def _run_after(driver: Any, statement: str) -> Sequence[Any]:
    """Run a statement after the end of a transaction, without beginning another."""
    before = driver.autocommit
    driver.autocommit = True
    try:
        return fetch_all(driver, statement)
    finally:
        driver.autocommit = before


#: The isolation levels in which a second statement sees what was committed after the first.
ISOLATION = ("read committed", "read uncommitted")


@contextmanager
def advisory_session(engine: Engine, **options: Any) -> Iterator[Session]:
    """Open a session on one connection, to claim by advisory locks.

    Its end releases all claims that were not finished.

    Args:
        engine: an Engine for PostgreSQL, not through a transaction pooler.
        options: for the Session; ``expire_on_commit`` is False unless given.

    Raises:
        UnsupportedDatabase: the database is not PostgreSQL, or a pooler is in between.
    """
    options.setdefault("expire_on_commit", False)
    with engine.connect() as connection:
        prepare_connection(connection)
        with Session(connection, **options) as session:
            yield session


def prepare_connection(connection: Connection) -> None:
    """Prepare a connection for claims by advisory locks, outside of any transaction.

    Raises:
        UnsupportedDatabase: the connection cannot hold them.
    """
    database = database_of(connection)
    check_database(database)
    if not database.in_autocommit(connection) and not _is_read_committed(connection):
        connection.execution_options(isolation_level="READ COMMITTED")
    check_connection(connection, database)
    database.notice_silence(connection)
    connection.commit()


def _is_read_committed(connection: Connection) -> bool:
    # Ask before setting the level: psycopg2 sends a level that was set again at each change
    # to AUTOCOMMIT and back, two round trips for each unlock.
    level = connection.execute(select(func.current_setting("transaction_isolation"))).scalar_one()
    connection.rollback()
    return level in ISOLATION


def check_database(database: Database) -> None:
    """Refuse a database without advisory locks.

    Raises:
        UnsupportedDatabase: with the way out.
    """
    if not database.advisory_locks:
        raise UnsupportedDatabase(
            f"{database} has no advisory locks for rows; use strategy='auto', and a plain Session"
        )


def check_connection(connection: Connection, database: Database) -> None:
    """Refuse a connection that cannot keep rows by advisory locks.

    Raises:
        UnsupportedDatabase: with the way out.
    """
    asked = select(func.current_setting("transaction_isolation"), func.pg_backend_pid())
    isolation, backend = connection.execute(asked).one()
    if isolation not in ISOLATION:
        raise UnsupportedDatabase(
            f"a claim by advisory locks must see what others have finished meanwhile, and "
            f"{isolation.upper()} hides that: use READ COMMITTED, which advisory_session(engine) "
            "sets"
        )
    if database.told_backend(driver_connection(connection)) not in (None, backend):
        raise UnsupportedDatabase(
            "a claim by advisory locks needs a server connection of its own, and this engine "
            "connects through a pooler such as PgBouncer, which shares connections. Give "
            "advisory_session() an engine that connects to the server itself"
        )
