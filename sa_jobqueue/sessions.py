"""The session's side of a verb: which connection writes, in which transaction.

No verb commits or rolls back. What this module adds to the caller's session:

* every statement of a verb goes to the bind that *writes* go to, also where a
  routing session would send a SELECT to a replica;
* a transaction that is only about to begin, begins fit for claims (READ
  COMMITTED on MySQL and MariaDB); one that is open is left as it is;
* under AUTOCOMMIT, several statements that belong together become one
  transaction of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Executable, Table, Update, event, false, update
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.engine import CursorResult, Result
from sqlalchemy.orm import Mapper, Session, SessionTransaction, scoped_session
from sqlalchemy.orm.attributes import set_committed_value

from .dialects import Database, database_of
from .errors import ArgumentError
from .mapping import QueueMapping

AnySession: TypeAlias = "Session | scoped_session[Any]"


def session_of(session: AnySession) -> Session:
    """Return the Session itself, also behind a scoped_session.

    Raises:
        ArgumentError: not a session, or an async one.
    """
    if isinstance(session, Session):
        return session
    if isinstance(session, scoped_session):
        found: Session = session()
        return found
    raise ArgumentError(
        f"a Session is needed, not {type(session).__name__}; for an AsyncSession the same verbs "
        "are in sa_jobqueue.asyncio: await claim(async_session, ...)"
    )


@dataclass(frozen=True)
class Writer:
    """A session and its writing connection, for the statements of one verb."""

    session: Session
    connection: Connection
    database: Database
    in_autocommit: bool
    mapper: Mapper[Any]

    @cached_property
    def keeps_snapshot(self) -> bool:
        """Whether a plain read would miss what others committed meanwhile.

        Not in a transaction that a verb began, nor under AUTOCOMMIT.
        """
        if self.in_autocommit or _begun_by_us(self.session, self.connection):
            return False
        return self.database.keeps_snapshot(self.connection)

    @cached_property
    def sees_commits(self) -> bool:
        """Whether a plain read shows what is committed by now, and nothing else."""
        if self.in_autocommit or _begun_by_us(self.session, self.connection):
            return True
        return self.database.sees_commits(self.connection)

    @property
    def bind(self) -> Engine | Connection:
        """What the session is bound to for this class: an engine, or one connection."""
        return self.session.get_bind(self.mapper)

    @property
    def hooked(self) -> bool:
        """Whether do_orm_execute hooks may add criteria to what the session selects."""
        return bool(self.session.dispatch.do_orm_execute)

    def atomically(self) -> AbstractContextManager[None]:
        """Hold several statements together, also under AUTOCOMMIT."""
        if self.in_autocommit:
            return self.database.transaction_in_autocommit(self.connection)
        return nullcontext()

    def lock_writes(self, table: Table) -> None:
        """Take the write lock of a database with one writer, before the first read.

        A read that comes first would pin a snapshot, and a write on an old one
        is refused at once; or, outside a transaction, what it saw is gone by
        the time of the write.
        """
        if self.database.one_writer:
            column = table.c[0]
            self.core(update(table).where(false()).values({column: column}))

    def core(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run a statement on tables, past the session and its hooks."""
        return self.connection.execute(statement, parameters)

    def orm(self, statement: Executable, parameters: Any = None, **options: Any) -> Result[Any]:
        """Run a statement on entities, through the session and its hooks."""
        return self.session.execute(statement, parameters, execution_options=options)


@contextmanager
def writing(session: AnySession, mapping: QueueMapping) -> Iterator[Writer]:
    """Give a verb the connection that this session writes the mapped class with.

    What is pending in the session is flushed first, also where autoflush is
    off: claimed rows overwrite what is loaded, and an unflushed change to one
    of them would be lost.
    """
    session = session_of(session)
    if session.new or session.dirty or session.deleted:
        session.flush()
    with _pinned(session, mapping.mapper, update(mapping.table)):
        yield connected(session, mapping)


def connected(session: Session, mapping: QueueMapping) -> Writer:
    """Take the session's connection for a mapped class, its transaction fit for claims."""
    connection = session.connection(bind_arguments={"mapper": mapping.mapper})
    database = database_of(connection)
    in_autocommit = database.in_autocommit(connection)
    if not in_autocommit:
        _begin(session, connection, database)
    return Writer(session, connection, database, in_autocommit, mapping.mapper)


# For each transaction of a session, its connections that a verb was the first to
# use (True), or had been used before (False): asked once, and remembered.
_begun: WeakKeyDictionary[SessionTransaction, dict[int, bool]] = WeakKeyDictionary()


def _begin(session: Session, connection: Connection, database: Database) -> None:
    transaction = session.get_transaction()
    assert transaction is not None
    known = _begun.setdefault(transaction, {})
    if id(connection) not in known:
        known[id(connection)] = database.begin(connection)


def _begun_by_us(session: Session, connection: Connection) -> bool:
    transaction = session.get_transaction()
    return transaction is not None and _begun.get(transaction, {}).get(id(connection), False)


@contextmanager
def _pinned(session: Session, mapper: Mapper[Any], write: Update) -> Iterator[None]:
    """Have a routing session answer with its writer for this mapper.

    Such a session decides by the statement's class, and SELECT .. FOR UPDATE
    looks like a read to it; what it gets to see cannot be chosen from outside,
    and not every get_bind() takes a ``bind`` argument. Other mappers, such as
    eagerly loaded relationships in another database, are routed as ever.
    """
    if type(session).get_bind is Session.get_bind:
        yield
        return
    routed = session.get_bind
    writer = routed(mapper=mapper, clause=write)

    def get_bind(mapper_: Any = None, **kw: Any) -> Any:
        asked = kw.pop("mapper", mapper_)
        if asked is not None and sa_inspect(asked).mapper.base_mapper is mapper.base_mapper:
            return writer
        return routed(mapper=asked, **kw)

    vars(session)["get_bind"] = get_bind
    try:
        yield
    finally:
        del vars(session)["get_bind"]


def show(session: Session, entity: Any, values: dict[str, Any]) -> None:
    """Let an entity show what was just written to its row."""
    for key, value in values.items():
        set_committed_value(entity, key, value)
    expire_with_savepoint(session, [entity], list(values))


def expire_with_savepoint(session: Session, entities: Sequence[Any], keys: list[str]) -> None:
    """Have entities read attributes again once a savepoint is rolled back."""

    def expire() -> None:
        for entity in entities:
            if entity in session:
                session.expire(entity, keys)

    undone_with_savepoint(session, expire)


_UNDO = "sa_jobqueue.undo"


def undone_with_savepoint(session: Session, undo: Callable[[], None]) -> None:
    """Have something done when a savepoint of the session is rolled back.

    A session expires what it flushed in a savepoint, but not what was set as
    committed in one.
    """
    if session.in_nested_transaction():
        session.info.setdefault(_UNDO, []).append(undo)


@event.listens_for(Session, "after_soft_rollback")
def _undo(session: Session, previous_transaction: SessionTransaction) -> None:
    for undo in session.info.pop(_UNDO, ()):
        undo()


@event.listens_for(Session, "after_commit")
def _nothing_to_undo(session: Session) -> None:
    session.info.pop(_UNDO, None)


def show_expired(session: Session, entities: list[Any], mapping: QueueMapping) -> None:
    """Have entities read the queue's attributes again when they are next looked at."""
    for entity in entities:
        if entity in session:
            session.expire(entity, list(mapping.attributes.values()))


def show_deleted(session: Session, entities: list[Any]) -> None:
    """Leave entities whose rows were deleted as session.delete() and flush() would."""
    states = [sa_inspect(entity) for entity in entities if entity in session]
    if states:
        session._remove_newly_deleted(states)  # what flush() itself calls; it has no public name
