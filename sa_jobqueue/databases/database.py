"""A database as the rest of the library sees it: what its server can do, and how.

The rest of the library asks for what a database can do, never for its name: this package is the
only place where ``dialect.name`` is read. The answers here are those of most databases; a subclass
says only what differs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from time import sleep
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakSet

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Delete,
    Engine,
    Executable,
    Index,
    Insert,
    Integer,
    Table,
    TextClause,
    Update,
    and_,
    bindparam,
    case,
    delete,
    null,
    update,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import String, TypeDecorator, TypeEngine, UserDefinedType

from ..errors import UnsupportedDatabase
from .clock import utc_now
from .connections import (
    SharedConnections,
    autocommit_of,
    call_for,
    connected_apart,
    driver_connection,
)
from .named_locks import (
    Deadline,
    HeldLock,
    Holder,
    Key,
    Limits,
    OwnerState,
    Process,
    Server,
)

Version = tuple[int, ...]
Value = TypeVar("Value")

#: How long we wait for a lock where the server sets no limit; it is InnoDB's default.
LOCK_WAIT = timedelta(seconds=50)


class Database:
    """One kind of database, of one version: subclass it to add a database.

    Attributes:
        title: its name in messages.
        minimum: the oldest version that any strategy works on.
        product_question: the SELECT whose row tells which product the server is; None: there is no
            look-alike.
        skip_locked: ``FOR UPDATE SKIP LOCKED``.
        no_key_update: ``FOR NO KEY UPDATE``.
        lock_of: ``FOR UPDATE OF table``.
        lock_once: a locking sub-select in an UPDATE can be kept from running more than
            once: ``= ANY(ARRAY(..))``, materialized CTEs.
        update_returning: ``UPDATE .. RETURNING`` and ``DELETE .. RETURNING``; on the statement of
            insert_new() RETURNING returns the new rows only.
        locks_duplicates: the statement of insert_new() locks the rows that are there already.
        ordered_update: ``UPDATE .. ORDER BY .. LIMIT``.
        one_writer: the whole database has one writer at a time.
        locks_what_it_scans: a locking read locks all rows that it walks over, also those
            that it does not return.
        keeps_one_key: a locking read by a single primary key keeps the lock of a row that
            does not meet the other criteria. A read by several keys does not keep it.
        descending_indexes: an index keeps the DESC of its columns.
        advisory_locks: a connection can lock a number, such as one made of a row's key.
        forgets_implied: a SELECT that locks nothing drops the conditions that a partial
            index implies, and so cannot bound the index by them.
        strays_to_key: while the planner believes that nearly all rows wait, it walks the
            primary key, and reads all rows that were finished since.
        skips_repeats: SELECT DISTINCT of the leading columns of an index jumps from one
            value to the next, instead of reading all entries.
        joins_literals: drivers join the rows of an INSERT into one statement even where
            some of its values are literals.
        notifies: ``NOTIFY channel`` tells connections that listen, with the COMMIT.
        tells_changes: ``PRAGMA data_version`` tells whether others have committed.
        checks_references_at_end: foreign keys are checked at the end of a statement, not
            after each of its rows.
        repeats_keys: tables that inherit from another one may repeat its primary keys.
        has_network: it is a server; its driver may connect in one thread, and serve another.
        leaves_texts: a statement can leave a text to later ones of its transaction, and can undo
            itself.
        locks_keys: :meth:`serial_key` and :meth:`lock_serial_keys`.
        time_digits: how many digits of a second a time has whose type names no number.
        transaction_level: the isolation level of a transaction of the library's own on an
            AUTOCOMMIT engine.
        key_hint: the hint that binds a statement to the primary key; None: not needed.
        order_hint: the clause behind a table whose rows are read in claim order; None: not needed.
            It keeps the optimizer from walking over all rows by primary key.
        may_wait_without_limit: a connection may wait for a locked row as long as it is locked.
        to_know_owners: the reason and the way out, for the message where server_of() returns None.
    """

    title: ClassVar[str]
    minimum: ClassVar[Version]
    product_question: ClassVar[str | None] = None

    skip_locked = False
    no_key_update = False
    lock_of = False
    lock_once = False
    update_returning = False
    locks_duplicates = True
    ordered_update = False
    one_writer = False
    locks_what_it_scans = False
    keeps_one_key = False
    descending_indexes = True
    advisory_locks = False
    forgets_implied = False
    strays_to_key = False
    skips_repeats = False
    joins_literals = True
    notifies = False
    tells_changes = False
    checks_references_at_end = True
    repeats_keys = False
    has_network = True
    leaves_texts = False
    locks_keys = False
    time_digits = 6
    transaction_level: ClassVar[str] = "READ COMMITTED"
    begin_statement: ClassVar[str] = "BEGIN"
    key_hint: ClassVar[str | None] = None
    order_hint: ClassVar[str | None] = None
    may_wait_without_limit = False
    to_know_owners: ClassVar[str] = ""

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

    # -- errors ---------------------------------------------------------

    #: What the codes of the driver's errors mean: see :meth:`meanings`.
    error_codes: ClassVar[Mapping[str, Collection[Any]]] = {}

    @classmethod
    def meanings(cls, error: BaseException) -> Collection[str]:
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

    @classmethod
    def meanings_of(cls, *codes: Any) -> set[str]:
        """Look codes of an error up in the table."""
        return {meaning for meaning, known in cls.error_codes.items() if {*codes} & {*known}}

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

    #: The SELECT of the server process that works for a connection; None: the database has none.
    backend_question: ClassVar[str | None] = None

    def backend(self, connection: Connection) -> int | None:
        """Ask which server process works for this connection now.

        Returns:
            None: the database has no processes. 0: all clients share one session.
        """
        question = self.backend_question
        return None if question is None else int(connection.exec_driver_sql(question).scalar_one())

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

    # -- named locks: on a server they belong to a connection -------------

    #: How long a silent holder keeps its lock. A process that keeps the GIL for minutes is alive.
    #: The server ends the lock of a process that was stopped, and of one that is gone behind a
    #: proxy, which answers for it.
    lock_limits: ClassVar[Limits] = Limits(silence=timedelta(seconds=585))

    #: Seconds of each wait for a lock that the server is asked for. Ctrl-C is noticed only
    #: between two waits, and drivers limit how long they read.
    lock_wait_at_once: ClassVar[float] = 1.0

    def prepare_lock(self, connection: Connection) -> None:
        """Set how long the server keeps a silent connection, and lift its other time limits."""

    def lock_keys(self, connection: Connection, names: Iterable[str]) -> dict[str, Key]:
        """Return what the server calls locks, by their names.

        Raises:
            UnsupportedDatabase: the database has no named locks.
        """
        raise UnsupportedDatabase(
            f"sa_jobqueue knows no named locks of {self}. A database of your own provides them by "
            "its lock_keys(), take_lock() and statements about a lock"
        )

    def take_lock(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        """Take a lock, waiting at most this long; tell whether we have it now."""
        raise NotImplementedError

    #: Statements about the lock of a ``:key``: give it back; tell whether this very connection has
    #: it; and who has it: its process, user, host and program, or no row, or NULL for nobody.
    lock_giving: ClassVar[TextClause]
    lock_holding: ClassVar[TextClause]
    lock_holder_asking: ClassVar[TextClause]

    def key_holder(self, connection: Connection, key: Key) -> Holder | None:
        """Tell who has the lock of a key; None: nobody."""
        row = connection.execute(self.lock_holder_asking, {"key": key}).first()
        return None if row is None or row[0] is None else Holder(*row)

    def held_among(self, connection: Connection, names: Iterable[str]) -> set[str]:
        """Return which of these names somebody has locked."""
        return {name for name in names if self.lock_holder(connection, name) is not None}

    def acquire_lock(
        self,
        engine: Engine,
        name: str,
        deadline: Deadline,
        shared: SharedConnections[Any] | None = None,
    ) -> HeldLock | None:
        """Take a lock, waiting until the deadline; None if somebody else had it until then.

        Args:
            shared: where locks have a connection in common; None: this one has its own.
        """
        from .watched_connection import lock_by_connection

        return lock_by_connection(self, engine, name, deadline, shared)

    def lock_holder(self, connection: Connection, name: str) -> Holder | None:
        """Tell who has a lock, without trying to take it; None: nobody."""
        return self.key_holder(connection, self.lock_keys(connection, [name])[name])

    def lock_holder_by_engine(self, engine: Engine, name: str) -> Holder | None:
        """Tell who has a lock, by a connection that is not of the engine's pool."""

        def ask() -> Holder | None:
            with connected_apart(engine) as connection:
                return self.lock_holder(connection, name)

        return call_for(engine, ask)

    # -- serial keys ------------------------------------------------------

    # A serial key is the value of the columns of ``serial_by`` or ``limit_by``, such as an
    # account. Many rows share it and none stands for it alone, so locking rows does not lock the
    # key. A key is known by a token, which the server computes from the columns: so its own idea
    # of equal values decides.

    def serial_key(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        """Return the token of these mapped columns as a column; NULL where one of them is NULL.

        Raises:
            UnsupportedDatabase: there is no token for values of such a type.
        """
        raise NotImplementedError

    def lock_serial_keys(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        """Lock keys until the transaction ends; return those that nobody else has locked.

        It waits for none.
        """
        return set(tokens)

    def serial_key_statement(self) -> Executable | None:
        """Return an example of the statement that locks serial keys; None: it runs none."""
        return None

    # -- row locks ------------------------------------------------------

    def table_identity(self, table: Table) -> ColumnElement[Any]:
        """Return what a connection means by a table's name, to compare two connections."""
        return null()

    def claim_lock(self, table: Table) -> Executable | None:
        """Return a statement that waits for the exclusive right to claim from a table.

        The right ends with the claimer's transaction. The statement returns whether the
        transaction keeps an older snapshot; if so, it took no lock. None: there is no such
        statement, and row locks must do.
        """
        return None

    #: The SELECT of the milliseconds that a connection waits for a row; None: it has no limit.
    lock_timeout_question: ClassVar[str | None] = None

    def lock_timeout(self, connection: Connection) -> timedelta | None:
        """Return how long this connection waits for a row that others have locked; None: ever."""
        question = self.lock_timeout_question
        found = None if question is None else connection.exec_driver_sql(question).scalar_one()
        return None if found is None else timedelta(milliseconds=int(found))

    def lock_wait(self, connection: Connection) -> timedelta:
        """Return how long somebody else should wait for such a row."""
        return self.lock_timeout(connection) or LOCK_WAIT

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

    def limit_waits_of_looks(self, connection: Connection) -> None:
        """Have a connection wait for locked tables at most a second, as long as it lives."""

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        """Inside, give up on locks of tables and rows after this time."""
        return nullcontext()

    #: The call of a server's function that pauses for so many seconds; None: there is none.
    pausing: ClassVar[str | None] = None

    def pause(self, connection: Connection, time: timedelta) -> None:
        """Pause in an open transaction, on the server if it can.

        A pause on the server does not stop the event loop of an AsyncSession.
        """
        if self.pausing is None:
            sleep(time.total_seconds())
        else:
            connection.exec_driver_sql(self.pausing.format(time.total_seconds()))

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

    # -- inserts, and writes by primary key -------------------------------

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

    def key_is_in(self, key: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        """Compare a key of one column with a parameter that holds a list of values.

        Integers, which most keys are, are written into the statement's text:
        a parameter for each costs more than the row that it names.
        """
        if isinstance(key.type, Integer):
            return key.op("IN", is_comparison=True)(
                bindparam(parameter, type_=IntegerLiterals(), literal_execute=True)
            )
        kind = or_null(key.type) if self.keeps_one_key else None
        return key.in_(bindparam(parameter, type_=kind, expanding=True))

    def update_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Update:
        """Return an UPDATE of rows that are found by these columns, usually the primary key."""
        return update(table)

    def delete_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Delete:
        """Return a DELETE of rows that are found by these columns, usually the primary key."""
        return delete(table)

    # -- texts for later statements, where it `leaves_texts` --------------

    def leaving(self, text: ColumnElement[str]) -> ColumnElement[str]:
        """Return an expression that leaves a text to later statements of the transaction."""
        raise NotImplementedError

    def left_text(self) -> ColumnElement[str]:
        """Return an expression of the text that was left; empty or NULL: none was."""
        raise NotImplementedError

    def undoing(self, finished: ColumnElement[int]) -> ColumnElement[Any]:
        """Return an expression that fails where it is evaluated: its statement is undone.

        Args:
            finished: counts the jobs that the statement had finished. The planner would evaluate
                an expression without an aggregate ahead of the statement.
        """
        raise NotImplementedError

    # -- the order and the plan of a claim --------------------------------

    def comparable(self, expression: Any) -> Any:
        """Return an expression that ``<`` compares as ORDER BY sorts it."""
        return expression

    def by_index(self, connection: Connection) -> AbstractContextManager[object]:
        """Inside, make the planner read a range by its index, however long it expects it to be."""
        return nullcontext()

    def without_table_scans(
        self, connection: Connection, *, sorting: bool = False
    ) -> AbstractContextManager[object]:
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

    def index_name(self, index: Index) -> str:
        """Return an index's name as it is written in SQL."""
        return str(index.name)

    # -- partial indexes --------------------------------------------------

    #: Where SQLAlchemy keeps a dialect's condition of a partial index; None: there are none.
    partial_indexes_of: ClassVar[str | None] = None

    def predicate(self, index: Index) -> ColumnElement[bool] | None:
        """Return the condition that makes a declared index partial on this database."""
        dialect = self.partial_indexes_of
        where: ColumnElement[bool] | None = None
        if dialect is not None:
            where = index.dialect_options[dialect]["where"]
        return where


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


# -- for several databases -------------------------------------------------


def sorted_by_name(columns: Sequence[Any]) -> list[Any]:
    """Sort columns by name: (a, b) and (b, a) are the same key."""
    return sorted(columns, key=lambda column: str(column.expression.name))


def unless_null(columns: Sequence[Any], token: ColumnElement[Any]) -> ColumnElement[Any]:
    """Make a token NULL where one of the columns is NULL: such a row has no key."""
    nullable = [column for column in columns if column.expression.nullable]
    if not nullable:
        return token
    return case((and_(*(column.is_not(None) for column in nullable)), token))


def plain_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type that a TypeDecorator decorates, or the type itself."""
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind


class TableExpression(ColumnElement[Value]):
    """An expression made of a table; a subclass says its type and how it is compiled."""

    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's own protocol, for the statement cache
        ("table", InternalTraversal.dp_clauseelement)
    ]
    inherit_cache: Any = True

    def __init__(self, table: Table) -> None:
        self.table = table


class IntegerLiterals(UserDefinedType[Sequence[int]]):
    """A list of integers in parentheses, written into the SQL text as the right side of IN."""

    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Any:
        """Return the function that writes integers, None as NULL, and refuses anything else."""

        def write(value: Sequence[int | None]) -> str:
            words = ("NULL" if number is None else str(int(number)) for number in value)
            return f"({','.join(words)})"

        return write


class OrNull(TypeDecorator[Any]):
    """Binds None as NULL, and every other value as the given type does.

    A list of keys may hold a NULL, which no key's type expects.
    """

    impl = String
    cache_ok = True

    def __init__(self, kind: TypeEngine[Any]) -> None:
        self.kind = kind
        self.impl = kind  # type: ignore[assignment]  # an instance

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return the function that makes a value for the driver; None: the value as it is."""
        bind = self.kind.dialect_impl(dialect).bind_processor(dialect)
        if bind is None:
            return None
        return lambda value: None if value is None else bind(value)


def or_null(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type of a parameter for keys of this type."""
    return OrNull(kind) if isinstance(kind, TypeDecorator) else kind
