"""What one kind of database can do, and how it differs from the others.

The rest of the library asks for a capability, never for a name: this package is the only
place where ``dialect.name`` is read. The answers here are those of most databases; a
subclass says only what differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from time import sleep
from typing import Any, ClassVar, Literal, Self
from weakref import WeakSet

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Index,
    Insert,
    Integer,
    Table,
    Update,
    bindparam,
    delete,
    null,
    update,
)
from sqlalchemy.engine import Dialect

from ..errors import UnsupportedDatabase
from .clock import utc_now
from .connections import autocommit_of, driver_connection
from .expressions import IntegerLiterals, or_null

Version = tuple[int, ...]

Meaning = Literal[
    "failed_transaction",
    "lock_timeout",
    "missing_index",
    "missing_table",
    "mistake",
    "read_only",
    "refused_login",
    "shortage",
    "time_limit",
    "transient",
    "undone",
]

#: How long we wait for a lock where the server sets no limit; it is InnoDB's default.
LOCK_WAIT = timedelta(seconds=50)


class Capabilities:
    """What a server can do: strategies and verbs ask here.

    Attributes:
        title: its name in messages.
        minimum: the oldest version that any strategy works on.
        skip_locked: ``FOR UPDATE SKIP LOCKED``.
        no_key_update: ``FOR NO KEY UPDATE``.
        lock_of: ``FOR UPDATE OF table``.
        lock_once: a locking sub-select in an UPDATE can be kept from running more than
            once: ``= ANY(ARRAY(..))``, materialized CTEs.
        update_returning: ``UPDATE .. RETURNING``.
        delete_returning: ``DELETE .. RETURNING``.
        ordered_update: ``UPDATE .. ORDER BY .. LIMIT``.
        one_writer: the whole database has one writer at a time.
        locks_what_it_scans: a locking read locks all rows that it walks over, also those
            that it does not return.
        keeps_one_key: a locking read by a single primary key keeps the lock of a row that
            does not meet the other criteria. A read by several keys does not keep it.
        descending_indexes: an index keeps the DESC of its columns.
        advisory_locks: a connection can lock a number, such as one made of a row's key.
        hashes_records: the server hashes a record by the types of its columns.
        forgets_implied: a SELECT that locks nothing drops the conditions that a partial
            index implies, and so cannot bound the index by them.
        strays_to_key: while the planner believes that nearly all rows wait, it walks the
            primary key, and reads all rows that were finished since.
        window_functions: ``row_number() OVER (..)``.
        skips_repeats: SELECT DISTINCT of the leading columns of an index jumps from one
            value to the next, instead of reading all entries.
        joins_literals: drivers join the rows of an INSERT into one statement even where
            some of its values are literals.
        notifies: ``NOTIFY channel`` tells connections that listen, with the COMMIT.
        tells_changes: ``PRAGMA data_version`` tells whether others have committed.
        returns_new: RETURNING on the statement of insert_new() returns the new rows only.
        checks_references_at_end: foreign keys are checked at the end of a statement, not
            after each of its rows.
        time_digits: how many digits of a second a time has whose type names no number.
        repeats_keys: tables that inherit from another one may repeat its primary keys.
        has_network: it is a server; its driver may connect in one thread, and serve another.
        leaves_texts: a statement can leave a text to later ones of its transaction, and can undo
            itself.
        key_hint: the hint that binds a statement to the primary key; None: not needed.
    """

    title: ClassVar[str]
    minimum: ClassVar[Version]

    #: The SELECT whose row tells which product the server is, or None if there is no look-alike.
    product_question: ClassVar[str | None] = None

    skip_locked = False
    no_key_update = False
    lock_of = False
    lock_once = False
    update_returning = False
    delete_returning = False
    ordered_update = False
    one_writer = False
    locks_what_it_scans = False
    keeps_one_key = False
    descending_indexes = True
    advisory_locks = False
    hashes_records = False
    forgets_implied = False
    strays_to_key = False
    window_functions = True
    skips_repeats = False
    joins_literals = True
    notifies = False
    tells_changes = False
    returns_new = False
    checks_references_at_end = True
    repeats_keys = False
    has_network = True
    leaves_texts = False
    time_digits = 6
    key_hint: ClassVar[str | None] = None

    def __init__(self, version: Version | None) -> None:
        self.version = version
        #: The tables of which a held claim has proved that their row locks hold.
        self.proved_tables: WeakSet[Table] = WeakSet()

    @classmethod
    def of(cls, dialect: Dialect) -> Self:
        """Make the database of a connected dialect, or of one without a server.

        Without a server the newest version is assumed: enough to print a claim.

        Raises:
            UnsupportedDatabase: the server is too old.
        """
        version = cls.version_of(dialect)
        if version is not None and version < cls.minimum:
            raise UnsupportedDatabase(
                f"{cls.title} {_dotted(version)} is too old for sa_jobqueue: it needs "
                f"{cls.title} {_dotted(cls.minimum)} or later. Upgrade the server."
            )
        return cls(version)

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        """Return the server's version; None: there was no connection yet."""
        return getattr(dialect, "server_version_info", None)

    def at_least(self, *version: int) -> bool:
        """Tell whether the server is of this version or a later one."""
        return self.version is None or self.version >= version

    def __str__(self) -> str:
        return f"{self.title} {_dotted(self.version)}" if self.version else self.title

    # -- transactions ---------------------------------------------------

    def begin(self, connection: Connection) -> bool:
        """Prepare the transaction that is about to begin for claims.

        Returns True if the transaction had not begun; an open transaction stays as it is.
        """
        return False

    def begin_write(self, connection: Connection, *, is_new: bool = False) -> None:
        """Begin a transaction of the library's own that will write.

        Args:
            is_new: nobody has used the connection's transaction yet, if there is one.
        """

    def refuses_commit(self, connection: Connection) -> bool:
        """Tell whether the server will answer a COMMIT with ROLLBACK, and no error."""
        return False

    def driver_refuses_commit(self, driver: Any, errors: type[Exception]) -> bool:
        """Tell the same of a driver's connection.

        Args:
            errors: the class of the driver's errors.
        """
        return False

    def keeps_snapshot(self, connection: Connection) -> bool:
        """Tell whether a plain read misses what others commit during this transaction."""
        return False

    def sees_commits(self, connection: Connection, *, begun: bool = False) -> bool:
        """Tell whether a plain read shows exactly what is committed when it runs.

        Args:
            begun: :meth:`begin` returned True for this transaction.
        """
        return True

    def past_snapshot(self, connection: Connection) -> Mapping[str, Any]:
        """Return the execution options of a verb's statements in a transaction that others began.

        With them a statement may change rows that others have changed since the
        transaction's snapshot: a verb compares what it changes.
        """
        return {}

    def in_autocommit(self, connection: Connection) -> bool:
        """Tell whether each statement of this connection commits by itself."""
        adapter = connection.connection.dbapi_connection
        if getattr(adapter, "autocommit", None) is False:  # most drivers; each verb asks
            return False
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return True
        # With an async driver either the adapter knows (asyncpg itself does not), or the
        # driver (SQLAlchemy's first adapters of aiomysql and asyncmy do not).
        state = autocommit_of(adapter)
        if state is None:
            state = autocommit_of(driver_connection(connection))
        if state is None:
            return connection.get_isolation_level() == "AUTOCOMMIT"
        return state

    @contextmanager
    def transaction_in_autocommit(self, connection: Connection) -> Iterator[None]:
        """Run several statements as one transaction on an AUTOCOMMIT connection."""
        connection.exec_driver_sql(self.begin_statement)
        try:
            yield
        except BaseException:
            _roll_back(connection)
            raise
        connection.exec_driver_sql("COMMIT")

    #: The isolation level of a transaction of the library's own on an AUTOCOMMIT engine.
    transaction_level: ClassVar[str] = "READ COMMITTED"

    begin_statement: ClassVar[str] = "BEGIN"

    # -- connections ----------------------------------------------------

    def seen_by_others(self, connection: Connection) -> bool:
        """Tell whether other connections see the same database; False for SQLite in memory."""
        return True

    def told_backend(self, driver: Any) -> int | None:
        """Return the server process that the server named to the driver at its connect.

        Behind a pooler, another process works for us. None: the driver does not tell.
        """
        return None

    def end_session(self, connection: Connection, process: int, quiet: timedelta) -> None:
        """End our user's session of that process if it has done nothing new for so long."""

    def backend(self, connection: Connection) -> int | None:
        """Ask which server process works for this connection now; None: the database has none."""
        return None

    def through_pooler(self, connection: Connection) -> bool:
        """Tell whether a pooler stands between this connection and the server.

        Behind a pooler, each statement may run in another server session: a lock, which
        belongs to a session, would not be ours. It costs one round trip. The answer is False
        where the driver knows no process to compare with.
        """
        told = self.told_backend(driver_connection(connection))
        return told is not None and told != self.backend(connection)

    def notice_silence(self, connection: Connection) -> None:
        """Make the server notice within two minutes that this client's host is gone."""

    # -- owners ---------------------------------------------------------

    #: The reason and the way out, for the message where server_of() returns None.
    to_know_owners: ClassVar[str] = ""

    def server_of(self, connection: Connection) -> Server | None:
        """Identify the server and database; None: this connection cannot."""
        return None

    def own_process(self, connection: Connection) -> Process | None:
        """Return how the server lists this connection; None: it has no list, or hides it."""
        return None

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        """Tell which connections the server still lists, as far as this user sees its list."""
        return dict.fromkeys(processes, OwnerState.UNKNOWN)

    # -- row locks ------------------------------------------------------

    def table_identity(self, table: Table) -> ColumnElement[Any]:
        """Return what a connection means by a table's name, to compare two connections."""
        return null()

    # -- strict order ---------------------------------------------------

    def claim_lock(self, table: Table) -> Executable | None:
        """Return a statement that waits for the exclusive right to claim from a table.

        The right ends with the claimer's transaction. The statement returns whether the
        transaction keeps an older snapshot; if so, it took no lock. None: there is no such
        statement, and row locks must do.
        """
        return None

    def lock_timeout(self, connection: Connection) -> timedelta | None:
        """Return how long this connection waits for a row that others have locked; None: ever."""
        return None

    def lock_wait(self, connection: Connection) -> timedelta:
        """Return how long somebody else should wait for such a row."""
        return self.lock_timeout(connection) or LOCK_WAIT

    #: Whether a connection may wait for a locked row as long as it is locked.
    may_wait_without_limit: ClassVar[bool] = False

    def limit_lock_wait(
        self, connection: Connection, limit: timedelta, *, of_session: bool
    ) -> bool:
        """Limit how long a connection waits for a locked row, if it has no limit yet.

        Args:
            of_session: until :meth:`lift_lock_wait_limit`. False: until the transaction ends.

        Returns:
            Whether it had no limit.
        """
        return False

    def lift_lock_wait_limit(self, connection: Connection) -> None:
        """Have the connection wait without a limit again."""

    def pause(self, connection: Connection, time: timedelta) -> None:
        """Pause in an open transaction, on the server if it can.

        A pause on the server does not stop the event loop of an AsyncSession.
        """
        sleep(time.total_seconds())

    # -- time limits ----------------------------------------------------

    def time_limit(self, connection: Connection, limit: timedelta) -> AbstractContextManager[None]:
        """Inside, have the database end a statement that takes longer: :meth:`meanings`.

        Some databases keep the limit until the transaction ends.

        Args:
            connection: in a transaction, not in AUTOCOMMIT.
        """
        return nullcontext()

    # -- statistics -----------------------------------------------------

    def told_of_rows(self, connection: Connection, table: Table, rows: int) -> None:
        """Have the planner know of many new rows, if it does not see by itself that there are more.

        Args:
            connection: the one that has inserted them, perhaps in a transaction that is not over.
            rows: how many are new.
        """

    def unanalyzed_rows(self, connection: Connection, table: Table) -> int:
        """Return how many rows have changed since the planner knew the table; 0: not too many."""
        return 0

    # -- the clock ------------------------------------------------------

    def moment(self) -> ColumnElement[Any]:
        """Return the time of a statement as a column, with the same value in all rows."""
        return utc_now()

    def claim_date(self) -> ColumnElement[Any]:
        """Return the time that a claim writes as its owner_date, or a renewal.

        It is the same for every row of a statement, and part of the fence. Two claims of one
        owner could have the same time if the clock were coarse, or were read before the claim
        got its rows.
        """
        return utc_now()

    # -- inserts --------------------------------------------------------

    def insert_new(self, target: Any) -> Insert:
        """Return an INSERT that skips rows whose keys exist already, and no others.

        Args:
            target: a table or a mapped class.

        Raises:
            UnsupportedDatabase: the database has no such INSERT.
        """
        raise UnsupportedDatabase(
            f"sa_jobqueue cannot tell duplicates from other errors on {self}. A database of your "
            "own provides that by its insert_new()."
        )

    # -- writes by primary key ------------------------------------------

    def key_is_in(self, key: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        """Compare a key of one column with a parameter that holds a list of values.

        Integers, which most keys are, are written into the statement's text:
        a parameter for each costs more than the row that it names.
        """
        if isinstance(key.type, Integer):
            return key.op("IN", is_comparison=True)(
                bindparam(parameter, type_=IntegerLiterals(), literal_execute=True)
            )
        if self.keeps_one_key:
            return key.in_(bindparam(parameter, type_=or_null(key.type), expanding=True))
        return key.in_(bindparam(parameter, expanding=True))

    def update_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Update:
        """Return an UPDATE of rows that are found by these columns, usually the primary key."""
        return update(table)

    def delete_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Delete:
        """Return a DELETE of rows that are found by these columns, usually the primary key."""
        return delete(table)

    # -- texts for later statements --------------------------------------

    def leaving(self, text: ColumnElement[str]) -> ColumnElement[str]:
        """Return an expression that leaves a text to later statements of the transaction.

        Raises:
            UnsupportedDatabase: the database cannot: see `leaves_texts`.
        """
        raise UnsupportedDatabase(f"{self} leaves no text to later statements")

    def left_text(self) -> ColumnElement[str]:
        """Return an expression of the text that was left; empty or NULL: none was.

        Raises:
            UnsupportedDatabase: as for :meth:`leaving`.
        """
        raise UnsupportedDatabase(f"{self} leaves no text to later statements")

    def undoing(self, finished: ColumnElement[int]) -> ColumnElement[Any]:
        """Return an expression that fails where it is evaluated: its statement is undone.

        Args:
            finished: counts the jobs that the statement had finished. The planner would evaluate
                an expression without an aggregate ahead of the statement.

        Raises:
            UnsupportedDatabase: as for :meth:`leaving`.
        """
        raise UnsupportedDatabase(f"{self} has no statements that undo themselves")

    # -- the claim order ------------------------------------------------

    def comparable(self, expression: Any) -> Any:
        """Return an expression that ``<`` compares as ORDER BY sorts it."""
        return expression

    # -- plans ----------------------------------------------------------

    def by_index(self, connection: Connection) -> AbstractContextManager[None]:
        """Inside, make the planner read a range by its index, however long it expects it to be."""
        return nullcontext()

    def without_table_scans(
        self, connection: Connection, *, sorting: bool = False
    ) -> AbstractContextManager[None]:
        """Inside, keep the planner from reading a whole table where an index will do.

        Args:
            sorting: no index has the rows in their order; else the planner is kept from a sort.
        """
        return nullcontext()

    def index_hint(self, index: Index) -> str | None:
        """Return the comment behind SELECT that binds it to an index; None: there is none."""
        return None

    def forced_index(self, index: Index) -> str | None:
        """Return the clause behind the table that binds a SELECT to an index; None: no clause.

        Where the table has no such index, the statement fails (see :meth:`meanings`).
        """
        return None

    #: The clause behind a table whose rows are read in claim order, or None if none is needed. It
    #: keeps the optimizer from walking over all rows by primary key.
    order_hint: ClassVar[str | None] = None

    def index_name(self, index: Index) -> str:
        """Return an index's name as it is written in SQL."""
        return str(index.name)

    # -- errors ---------------------------------------------------------

    @classmethod
    def meanings(cls, error: BaseException) -> tuple[Meaning, ...]:
        """Return what a driver's error means; nothing: an error that is not of this database.

        ==================  ==========================================================
        failed_transaction  an earlier statement of the transaction has failed
        lock_timeout        the wait for a lock took too long
        missing_index       the statement names a missing index
        missing_table       the statement names a missing table
        mistake             the program's, though the driver's class does not say so
        read_only           this server takes no writes at present
        refused_login       the URL is wrong: the user, the database
        shortage            the server lacks room, or is read-only
        time_limit          the statement took longer than it may
        transient           it may go away when the transaction is run again
        undone              that of :meth:`undoing`
        ==================  ==========================================================
        """
        return ()


def _roll_back(connection: Connection) -> None:
    """Roll back after an error, which must stay the error that is raised."""
    if connection.invalidated:  # the server has rolled back when it lost the connection
        return
    try:
        connection.exec_driver_sql("ROLLBACK")
    except Exception:
        connection.invalidate()  # no transaction may stay open on a pooled connection


def _dotted(version: Version) -> str:
    return ".".join(map(str, version[:3]))


IDENTITY_LENGTH = 16


class OwnerState(StrEnum):
    """What is known about whether an owner is alive.

    Only ``DEAD`` is a reason to reap its claims at once. With ``UNKNOWN`` the lease decides.
    ``STUCK`` is what a worker tells of itself: its lock alone would call it alive.
    """

    ALIVE = "alive"
    STUCK = "stuck"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Server:
    """The server and database that a connection leads to.

    Attributes:
        identity: 16 hexadecimal digits, the same on each connection to this server
            and database.
        alone: whether a connection that this server does not list is closed. False on a
            node of a cluster and on a standby: another node may have the connection.
    """

    identity: str
    alone: bool = True

    @classmethod
    def identified_by(cls, *parts: object, alone: bool = True) -> Server:
        """Hash everything that distinguishes this server and database into its identity."""
        text = "\0".join(map(str, parts))
        return cls(hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_LENGTH], alone)


@dataclass(frozen=True)
class Process:
    """A connection as its server lists it.

    Attributes:
        id: the number that the server gave it; servers use numbers again.
        started: what distinguishes connections with the same number, in the server's
            own units: when the connection began, or where that is unknown, when the
            server was started.
    """

    id: int
    started: int
