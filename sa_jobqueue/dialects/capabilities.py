"""What one kind of database can do, and how it says it.

A subclass lists its capabilities and says only what differs from the answers
here. The rest of the library asks for a capability, never for a name: this
package is the only place where ``dialect.name`` is read. ``docs/adding-a-database.md``
walks through a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from time import sleep
from typing import Any, ClassVar
from uuid import UUID

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
    update,
)
from sqlalchemy.engine import Dialect

from ..errors import UnsupportedDatabase
from .clock import utc_now
from .drivers import autocommit_of, driver_connection
from .examination import Examination
from .integers import Integers
from .key_locks import KeyLocks, OneWriter
from .named_locks import ServerLocks
from .owner_liveness import OwnerState, Process, Server
from .schema_changes import SchemaChanges

Version = tuple[int, ...]

#: How long a lock is waited for where the engine sets no limit: InnoDB's default.
LOCK_WAIT = timedelta(seconds=50)


class Database:
    """The capabilities of one server, asked for by the strategies and verbs.

    Attributes:
        title: how messages call it.
        minimum: the oldest version that any strategy works on.
        skip_locked: ``FOR UPDATE SKIP LOCKED``.
        no_key_update: ``FOR NO KEY UPDATE``.
        lock_of: ``FOR UPDATE OF table``.
        lock_once: a locking sub-select in an UPDATE can be fenced, so that it
            runs once: ``= ANY(ARRAY(..))``, materialized CTEs.
        update_returning, delete_returning: RETURNING on those statements.
        ordered_update: ``UPDATE .. ORDER BY .. LIMIT``.
        one_writer: the whole database has one writer at a time.
        locks_what_it_scans: rows that a locking read walks over are locked,
            those that it does not return too.
        keeps_one_key: a locking read by a single primary key keeps the lock of a
            row that does not fulfil the other criteria; by several it does not.
        descending_indexes: an index keeps the DESC of its columns.
        advisory_locks: locks of a connection that are named by a row's key.
        hashes_records: the server hashes a record by its columns' own types.
        forgets_implied: a SELECT that locks nothing forgets the conditions that a
            partial index implies, for bounding the index too.
        null_is_least: NULL comes before every value in an ascending order.
        window_functions: ``row_number() OVER (..)``.
        skips_repeats: SELECT DISTINCT of the leading columns of an index goes from one of
            their values to the next, not over all entries.
        joins_literals: drivers join the rows of an INSERT into one statement also where
            values stand in it as literals.
        returns_new: RETURNING on what insert_new() makes returns the new rows, and no others.
        zero_is_a_key: 0 in a column whose keys the server makes is a key like any other.
        checks_references_at_end: of a statement, not after each of its rows.
        kept_as_given: types whose values are stored as they are: not rounded, cut off or
            filled up.
        key_hint: binds a statement to the primary key; None: none is needed.
    """

    title: ClassVar[str]
    minimum: ClassVar[Version]

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
    null_is_least = True
    window_functions = True
    skips_repeats = False
    joins_literals = True
    returns_new = False
    zero_is_a_key = True
    checks_references_at_end = True
    kept_as_given: ClassVar[tuple[type, ...]] = (int, UUID)
    key_hint: ClassVar[str | None] = None

    def __init__(self, version: Version | None) -> None:
        self.version = version

    @classmethod
    def of(cls, dialect: Dialect) -> Database:
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
        """Return the server's version, None where no server was asked yet."""
        return getattr(dialect, "server_version_info", None)

    def at_least(self, *version: int) -> bool:
        """Tell whether the server is of this version or a later one."""
        return self.version is None or self.version >= version

    def __str__(self) -> str:
        return f"{self.title} {_dotted(self.version)}" if self.version else self.title

    # -- transactions ---------------------------------------------------

    def begin(self, connection: Connection) -> bool:
        """Make a transaction that is only about to begin fit for claims.

        Returns whether it was: an open transaction is left as it is.
        """
        return False

    def begin_write(self, connection: Connection) -> None:
        """Begin a transaction of the library's own, which will write."""

    def keeps_snapshot(self, connection: Connection) -> bool:
        """Tell whether a plain read would miss what others committed meanwhile."""
        return False

    def sees_commits(self, connection: Connection) -> bool:
        """Tell whether a plain read shows what is committed by now, and nothing else."""
        return True

    def in_autocommit(self, connection: Connection) -> bool:
        """Tell whether each statement of this connection commits by itself."""
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return True
        # Of an async driver the adapter tells (asyncpg itself does not know), or the driver
        # itself (SQLAlchemy's first adapters of aiomysql and asyncmy do not).
        state = autocommit_of(connection.connection.dbapi_connection)
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
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")

    begin_statement: ClassVar[str] = "BEGIN"

    # -- connections ----------------------------------------------------

    def seen_by_others(self, connection: Connection) -> bool:
        """Tell whether another connection of the same engine sees this database too."""
        return True

    def told_backend(self, connection: Connection) -> int | None:
        """Return the server process that the driver was told when it connected.

        Behind a pooler it is another one than works for us; None: not known.
        """
        return None

    def backend(self, connection: Connection) -> int | None:
        """Ask for the server process that works for this connection now; None: there is none."""
        return None

    def through_pooler(self, connection: Connection) -> bool:
        """Tell whether a pooler stands between this connection and the server.

        Its statements may then run in one server session now and in another
        later: what a session holds, like a lock, is not ours. One round trip;
        False where the driver was told nothing to compare with.
        """
        told = self.told_backend(connection)
        return told is not None and told != self.backend(connection)

    def named_locks(self) -> ServerLocks:
        """Return how this database keeps named locks.

        Raises:
            UnsupportedDatabase: it has none.
        """
        raise UnsupportedDatabase(
            f"sa_jobqueue knows no named locks of {self}. A database of your own has them in "
            "its named_locks(): a sa_jobqueue.dialects.named_locks.ServerLocks."
        )

    def notice_silence(self, connection: Connection) -> None:
        """Have the server notice within two minutes that this client's host is gone."""

    # -- owners ---------------------------------------------------------

    #: What helps where server_of() returns None.
    to_know_owners: ClassVar[str] = ""

    def server_of(self, connection: Connection) -> Server | None:
        """Tell which server and database this is; None: it cannot be told from others."""
        return None

    def held_locks(self, connection: Connection, names: Iterable[str]) -> set[str]:
        """Return which of the named locks somebody has."""
        locks = self.named_locks()
        return {name for name in names if locks.holder(connection, name) is not None}

    def own_process(self, connection: Connection) -> Process | None:
        """Tell how the server lists this connection; None: it has no list, or hides it."""
        return None

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        """Look connections of this server up in its list, as far as this user sees it."""
        return dict.fromkeys(processes, OwnerState.UNKNOWN)

    # -- limits per key -------------------------------------------------

    def key_locks(self) -> KeyLocks | None:
        """Return how keys, such as an account, are locked for one claimer; None: they cannot be."""
        return OneWriter() if self.one_writer else None

    # -- strict order ---------------------------------------------------

    def claim_turn(self, table: Table) -> Executable | None:
        """Return a statement that waits for the turn to claim from a table.

        The turn is one claimer's until its transaction ends. The statement
        answers whether the transaction's snapshot is too old to go on with;
        then it took no turn. None: the locks of the rows must do.
        """
        return None

    def lock_wait(self, connection: Connection) -> timedelta:
        """Return how long this connection waits for a row that others have locked."""
        return LOCK_WAIT

    def pause(self, connection: Connection, time: timedelta) -> None:
        """Wait a moment in an open transaction, on the server if it can.

        Behind an AsyncSession the event loop goes on meanwhile.
        """
        sleep(time.total_seconds())

    # -- the clock ------------------------------------------------------

    def moment(self) -> ColumnElement[Any]:
        """Return the time of a statement as a column that stands in all of its rows."""
        return utc_now()

    # -- inserts --------------------------------------------------------

    def insert_new(self, target: Any) -> Insert:
        """Return an INSERT that leaves out rows whose keys are taken, and no others.

        Args:
            target: a table, or a mapped class.

        Raises:
            UnsupportedDatabase: there is none.
        """
        raise UnsupportedDatabase(
            f"sa_jobqueue cannot tell duplicates from other errors on {self}. A database of your "
            "own says how in its insert_new()."
        )

    # -- writes by primary key ------------------------------------------

    def key_is_in(self, key: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        """Compare a key of one column with a parameter that is a list of its values.

        Integers, which most keys are, are written into the statement at once:
        a parameter for each costs more than the row that it names.
        """
        if isinstance(key.type, Integer):
            return key.op("IN", is_comparison=True)(
                bindparam(parameter, type_=Integers(), literal_execute=True)
            )
        return key.in_(bindparam(parameter, expanding=True))

    def update_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Update:
        """Return an UPDATE for rows that are named by these columns, as a rule the primary key."""
        return update(table)

    def delete_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Delete:
        """Return a DELETE for rows that are named by these columns, as a rule the primary key."""
        return delete(table)

    # -- the claim order ------------------------------------------------

    def comparable(self, expression: Any) -> Any:
        """Say an expression so that ``<`` compares it as ORDER BY sorts it."""
        return expression

    # -- plans ----------------------------------------------------------

    def by_index(self, connection: Connection) -> AbstractContextManager[None]:
        """Have a range read by the index that finds it for a moment, however long it may seem."""
        return nullcontext()

    def index_hint(self, index: Index) -> str | None:
        """Say how a SELECT is bound to an index, as a comment behind SELECT; None: it is not."""
        return None

    def forced_index(self, index: Index) -> str | None:
        """Say how a SELECT is bound to an index where there are no such comments.

        What it returns stands behind the table, and is an error where there is no
        such index (:meth:`is_missing_index`). None: it is not.
        """
        return None

    #: Stands behind a table whose rows are wanted in claim order, so that no optimizer
    #: walks over all rows in the order of their keys; None: none does.
    order_hint: ClassVar[str | None] = None

    @staticmethod
    def index_name(index: Index) -> str:
        """Return an index's name as it stands in SQL."""
        return str(index.name)

    @classmethod
    def is_missing_index(cls, error: BaseException) -> bool:
        """Tell whether a driver's error says that a statement is bound to a missing index."""
        return False

    def examination(self) -> Examination:
        """Return how this database is examined by the doctor.

        Raises:
            UnsupportedDatabase: nobody knows.
        """
        raise UnsupportedDatabase(
            f"sa_jobqueue cannot read the plans of {self}. A database of your own says how in its "
            "examination(): a sa_jobqueue.dialects.examination.Examination."
        )

    # -- errors ---------------------------------------------------------

    @classmethod
    def is_lock_timeout(cls, error: BaseException) -> bool:
        """Tell whether a driver's error says that a lock was waited for too long."""
        return False

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        """Tell whether a driver's error goes away when the transaction is run again."""
        return False

    # -- schema changes -------------------------------------------------

    def schema_changes(self) -> SchemaChanges:
        """Return how tables in use are changed."""
        return SchemaChanges(self)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version[:3]))
