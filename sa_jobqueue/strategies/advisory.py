"""advisory: lock rows by their key, write nothing, check again what was locked.

::

    with advisory_session(engine) as session:
        due = claim(session, Subscription, Subscription.last_mail_at < started,
                    strategy="advisory", limit=100)
        for subscription in due:
            send(subscription)
            subscription.last_mail_at = started
            complete(session, subscription)
            session.commit()             # releases this row

PostgreSQL only, on a session bound to one connection. It claims any mapped class, with
JobMixin or without: the criteria define which rows are ready, and whoever marks a row
makes the criteria false for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, TypeAlias
from weakref import ref

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Integer,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
    tuple_,
    type_coerce,
)
from sqlalchemy import column as sa_column
from sqlalchemy.orm import Session

from ..databases import Database, database_of, driver_connection
from ..databases.connections import TransactionHooks, fetch_all, hooks_of
from ..databases.database import plain_type
from ..errors import NotClaimed, UnsupportedDatabase
from ..fence.token import Hold, Identity, LetGo
from ..model.keys import key_values, keys_of
from ..sessions.writer import Writer
from .ready_rows import LIMIT
from .spec import Request, Taken
from .strategy import Strategy, kept

#: The isolation levels in which a second statement sees what was committed after the first.
ISOLATION = ("read committed", "read uncommitted")

# Literals: SQLAlchemy would write a list of values into the statement at each execution.
_ISOLATION: list[ColumnElement[str]] = [literal_column(f"'{level}'") for level in ISOLATION]

#: The integers that are their own lock key; other keys are locked by a hash.
SMALLEST, LARGEST = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class Locked:
    """A row whose lock we have."""

    identity: Identity
    key: LockKey


class Advisory(Strategy):
    """Lock rows by advisory locks of the connection, and mark nothing."""

    # The lock function stands outside of a sub-select that OFFSET 0 fences, and the
    # LIMIT outside of both. So it runs for one row after the other, in order, until
    # enough are locked. Beside the criteria it would run before some of them (331
    # locks for 100 rows), and below a sort it would run for every row.
    #
    # The second statement sees what was committed before we had the locks. If somebody
    # finished a row between our snapshot and our lock, it sees the row as finished, and
    # we unlock it. Without this check 11 to 256 rows of 30,000 ran twice.

    name = "advisory"
    marks: ClassVar[bool] = False
    any_class: ClassVar[bool] = True

    @classmethod
    def check_database(cls, database: Database) -> None:
        check_database(database)

    def take(self, writer: Writer, request: Request) -> Taken:
        _check_bind(writer)
        connection = writer.connection
        locks = locks_of(connection)
        locks.reconcile(connection)
        jobs: list[Any] = []
        ours: dict[Identity, LockKey] = {}
        seen: list[LockKey] = []
        locks.doubtful = True  # until all locks are accounted for
        while len(jobs) < request.limit:
            locked = self._lock(writer, {*locks.held, *seen}, request.limit - len(jobs))
            passed = self._check(writer, request, locked) if locked else {}
            mine = _one_row_for_each_lock(locked, passed)
            failed = [row.key for row in locked if mine.get(row.identity) != row.key]
            locks.unlock(connection, failed)
            jobs += [passed[identity] for identity in mine]
            ours |= mine
            seen += [row.key for row in locked]
            if not failed:
                break
        hold = locks.keep(ours, self.rounds(request, jobs))
        locks.doubtful = False
        if not seen:
            check_connection(connection, self.database)
        return Taken(jobs, hold=hold, candidates=len(seen), lost=len(seen) - len(jobs))

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        levels = self.ready.level_statements
        return [*levels, self.lock_rows(), self.check_locked()]

    # -- the locks ------------------------------------------------------

    def _lock(self, writer: Writer, known: Collection[LockKey], limit: int) -> list[Locked]:
        statement = self.lock_rows(but_known=bool(known))
        always: dict[str, Any] = {
            "sa_jobqueue_backend": self.database.told_backend(driver_connection(writer.connection))
        }
        if known:
            always["sa_jobqueue_tables"], always["sa_jobqueue_rows"] = map(
                list, zip(*known, strict=True)
            )
        found = self.ready.collect(
            writer,
            limit,
            lambda **parameters: list(writer.rows(statement, {**always, **parameters}).all()),
        )
        return [Locked(tuple(row[:-2]), (row[-2], row[-1])) for row in found]

    @kept
    def lock_rows(self, *, but_known: bool = False) -> Any:
        """Lock the next rows.

        Args:
            but_known: not those that we have locked or looked at. The locks are re-entrant: we
                would get our own rows again.
        """
        columns: list[Any] = [*self.mapping.key_attributes, *self._lock_key]
        names = [f"sa_jobqueue_{index}" for index in range(len(columns))]
        labelled = [column.label(name) for column, name in zip(columns, names, strict=True)]
        candidates = self.ready.select(*labelled, plain=True).limit(None).where(*self._sound)
        if but_known:
            candidates = candidates.where(tuple_(*self._lock_key).not_in(_known_locks()))
        candidates = candidates.offset(literal_column("0")).subquery("sa_jobqueue_candidates")
        found = [candidates.c[name] for name in names]
        return select(*found).where(func.pg_try_advisory_lock(*found[-2:])).limit(LIMIT)

    @property
    def _sound(self) -> list[ColumnElement[bool]]:
        """The criteria that advisory locks work on this connection.

        Where they do not, no row is found and no lock is taken, and then
        :func:`check_connection` raises the reason. So the check costs no round trip.
        """
        own = own_backend(self.database)
        known = func.coalesce(bindparam("sa_jobqueue_backend", type_=Integer), own)
        return [
            func.current_setting("transaction_isolation").in_(_ISOLATION),
            own == known,
        ]

    @cached_property
    def _lock_key(self) -> list[ColumnElement[Any]]:
        """What names a row's lock: the oid of its table, and its key or a hash of the key.

        The oid keeps tables apart, and the partitions of a table. An integer of 32 bits
        is taken as it is, so that pg_locks shows which rows are locked; of a larger
        integer the hash is taken. So the lock does not depend on the width that a model
        declares for its key.
        """
        # SQLAlchemy has no system columns; this gives a column its table.
        table: Any = sa_column("tableoid", Integer)
        table.table = self.mapping.table
        return [cast(table, Integer), self._small_key()]

    def _small_key(self) -> ColumnElement[Any]:
        # Two rows with one hash cannot be claimed at the same time.
        hashed = func.hash_record(func.row(*self.mapping.key_attributes), type_=Integer)
        key, *more = self.mapping.key_attributes
        if more or not isinstance(plain_type(key.type), Integer):
            return hashed
        number = type_coerce(key, BigInteger)
        small = number.between(literal_column(str(SMALLEST)), literal_column(str(LARGEST)))
        return case((small, cast(number, Integer)), else_=hashed)

    # -- the post-check -------------------------------------------------

    def _check(
        self, writer: Writer, request: Request, locked: Sequence[Locked]
    ) -> dict[Identity, Any]:
        """Read the locked rows that still fulfil all criteria."""
        keys = {"sa_jobqueue_keys": key_values([row.identity for row in locked])}
        jobs = self.read(writer, request, self.check_locked(request.rows), keys)
        return dict(zip(keys_of(self.mapping, jobs, rows=request.rows), jobs, strict=True))

    @kept
    def check_locked(self, rows: bool = False) -> Any:
        """Select the locked rows that still fulfil all criteria."""
        named = self.ready.key_is_in("sa_jobqueue_keys")
        return self.select_jobs(select, rows=rows).where(named, *self.ready.criteria)


def _known_locks() -> Any:
    """Select the locks that two parameters list, one of their tables and one of their rows."""
    numbers = ARRAY(Integer)
    names = ("sa_jobqueue_tables", "sa_jobqueue_rows")
    arrays = [cast(bindparam(name, type_=numbers), numbers) for name in names]
    known = func.unnest(*arrays).table_valued("in_table", "in_row", name="sa_jobqueue_known")
    return select(*known.render_derived().c)


def _one_row_for_each_lock(
    locked: Sequence[Locked], passed: Collection[Identity]
) -> dict[Identity, LockKey]:
    """Pick rows that passed the check, in the order locked, one for each lock."""
    mine: dict[LockKey, Identity] = {}
    for row in locked:
        if row.identity in passed:
            mine.setdefault(row.key, row.identity)
    return {identity: key for key, identity in mine.items()}


def _check_bind(writer: Writer) -> None:
    if isinstance(writer.bind, Engine):
        raise UnsupportedDatabase(
            "advisory locks belong to one connection, and this session uses another connection of "
            "its pool for each transaction. Use `with advisory_session(engine) as session:`, or "
            "bind the session to a Connection"
        )


# -- sessions that can claim by advisory locks, and the locks of their connection --
#
# A claim by advisory locks writes nothing. The locks belong to the connection, not to its
# transaction: they outlive COMMIT and ROLLBACK, and when a connection dies, the server releases
# them at once. So we release the lock of a finished row, after the outermost COMMIT of its
# connection; before that, others would find the row unfinished.
#
# We follow the transactions that SQLAlchemy makes. A ROLLBACK TO SAVEPOINT, or a ROLLBACK in SQL of
# the caller's own, undoes a finish without our notice. The COMMIT then frees its rows all the same,
# as release() does: they are claimable again.


log = logging.getLogger("sa_jobqueue.strategies.advisory_session")

#: The arguments of the lock functions: the oid of a table, and a primary key or its hash.
LockKey: TypeAlias = tuple[int, int]

Run: TypeAlias = Callable[[str], Sequence[Any]]


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

    def still_held(self, connection: Connection, identities: Sequence[Identity]) -> list[Identity]:
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

    def let_go(self, connection: Connection, identities: Sequence[Identity], when: LetGo) -> None:
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
    return hooks_of(
        connection,
        AdvisoryLocks,
        lambda: AdvisoryLocks(ref(connection), database_of(connection)),
    )


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
    asked = select(func.current_setting("transaction_isolation"), own_backend(database))
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
            "connects to PGlite, or through a pooler such as PgBouncer, which share connections. "
            "Give advisory_session() an engine that connects to the server itself"
        )


def own_backend(database: Database) -> ColumnElement[int]:
    """Return the number of the server process that works for this connection alone."""
    return literal_column(f"({database.backend_question})", Integer)
