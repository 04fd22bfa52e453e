"""Choose the connection and the transaction in which a verb writes.

No verb commits or rolls back. This module adds four things to the caller's session:

* every statement of a verb goes to the bind that *writes* go to, even where a
  routing session would send a SELECT to a replica;
* a transaction that a verb begins is fit for claims (READ COMMITTED on MySQL and
  MariaDB); a transaction that is open already is left as it is;
* under AUTOCOMMIT, statements that belong together become one transaction;
* the session's hooks learn that a verb writes. The verbs write with statements on tables, past
  the session. An extension that asks whether a session was written to, such as zope.sqlalchemy,
  listens to flushes and to the UPDATEs of entities. Without our announcement it would consider
  the session unchanged, and roll back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    RootTransaction,
    Table,
    event,
    false,
    update,
)
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.engine import CursorResult, Dialect, Result
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    ORMExecuteState,
    Query,
    Session,
    scoped_session,
)

from ..databases import Database, database_of
from ..databases.registry import ByDialect
from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from .transaction_end import undo_on_rollback

AnySession: TypeAlias = "Session | scoped_session[Any]"

#: Plain rows are claimed and finished with any of these; entities need a Session.
AnyConnection: TypeAlias = "Session | scoped_session[Any] | Connection"


IN_A_SESSION = (
    "entities need a Session, and this is a Connection: claim with claim_rows(), and finish the "
    "claim or its fences; or use a Session"
)


#: A ShardedSession runs one statement on several databases: a limit would count for each.
IN_A_SHARDED_SESSION = (
    "a ShardedSession has several databases, and this call does not tell which one it means: give "
    'claim() options=[set_shard_id("eu")], and a finish the entities of that claim. For all else '
    "use a plain Session of one shard: with Session(engine_of_the_shard) as session: .."
)


def session_of(session: AnyConnection) -> Session:
    """Return the Session itself, also behind a scoped_session.

    Raises:
        ArgumentError: not a session, or an async session, or one of several shards.
    """
    found = any_session_of(session)
    if is_sharded(found):
        raise ArgumentError(IN_A_SHARDED_SESSION)
    return found


def is_sharded(session: Session) -> bool:
    """Tell whether it is a ShardedSession, which this module does not import for those without."""
    return type(session).get_bind is not Session.get_bind and hasattr(session, "shard_chooser")


def shard_of(given: Iterable[Any]) -> Any:
    """Return the shard that an entity is of, or that SQLAlchemy's set_shard_id() names, or None."""
    from sqlalchemy.ext.horizontal_shard import set_shard_id

    for each in given:
        if isinstance(each, set_shard_id):
            return each.shard_id
        state = sa_inspect(each, raiseerr=False)
        if isinstance(state, InstanceState):
            return state.identity_token
    return None


def any_session_of(session: AnyConnection) -> Session:
    """Return the Session itself, which may be one of several shards; see :func:`session_of`."""
    if isinstance(session, Session):
        return session
    if isinstance(session, scoped_session):
        found: Session = session()
        return found
    if isinstance(session, Connection):
        raise ArgumentError(IN_A_SESSION)
    raise ArgumentError(
        f"a Session is needed, not {type(session).__name__}. With an AsyncSession await a verb of "
        "sa_jobqueue.asyncio, or await async_session.run_sync(schedules.pause, name)"
    )


_IN_TRANSACTION = nullcontext()


@dataclass(eq=False)
class Writer:
    """The connection that a verb writes with, and the session that it belongs to.

    Attributes:
        options: the execution options of the verb's statements.
        hooked: whether do_orm_execute hooks may add criteria to the session's SELECTs.
        shard: where the connection leads, of the databases of a ShardedSession.
    """

    of_session: Session | None
    connection: Connection
    database: Database
    in_autocommit: bool
    mapper: Mapper[Any]
    options: Mapping[str, Any] | None = None
    hooked: bool = False
    shard: Any = None

    @property
    def session(self) -> Session:
        """The session, for work that a connection cannot do.

        Raises:
            ArgumentError: the caller gave a Connection.
        """
        if self.of_session is None:
            raise ArgumentError(IN_A_SESSION)
        return self.of_session

    @cached_property
    def keeps_snapshot(self) -> bool:
        """Whether a plain read misses what others have committed since the transaction began.

        False in a transaction that a verb began, and under AUTOCOMMIT.
        """
        return not self.begun_by_verb and self.database.keeps_snapshot(self.connection)

    @property
    def begun_by_verb(self) -> bool:
        """Whether a verb begins the transaction, fit for claims; also under AUTOCOMMIT."""
        return self.in_autocommit or bool(_known_of(self.connection).begun_by_verb)

    @cached_property
    def sees_commits(self) -> bool:
        """Whether a plain read shows everything that is committed now, and nothing else."""
        if self.in_autocommit:
            return True
        known = _known_of(self.connection)
        if known.sees_commits is None:
            begun = bool(known.begun_by_verb)
            known.sees_commits = (begun and known.is_own) or self.database.sees_commits(
                self.connection, begun=begun
            )
        return known.sees_commits

    @property
    def bind(self) -> Engine | Connection:
        """The engine or the connection that the session is bound to for this class."""
        if self.of_session is None:
            return self.connection
        return self.of_session.get_bind(self.mapper, **(_route(self.shard) or {}))

    def undo_on_savepoint_rollback(self, undo: Callable[[], None]) -> None:
        """Call `undo` if the savepoint that is open now is rolled back.

        Raises:
            ArgumentError: it is a savepoint of a Connection, which does not report its end.
        """
        if not self.connection.in_nested_transaction():
            return
        if self.of_session is None:
            raise ArgumentError("a held claim in a savepoint needs a Session, not a Connection")
        if self.of_session.in_nested_transaction():
            undo_on_rollback(self.of_session, undo)

    def atomically(self) -> AbstractContextManager[None]:
        """Make several statements one transaction, also under AUTOCOMMIT."""
        if self.in_autocommit:
            return self.database.transaction_in_autocommit(self.connection)
        return _IN_TRANSACTION

    def lock_writes(self, table: Table) -> None:
        """Take the write lock before the first read, on a database with one writer.

        A read that came first would pin a snapshot, and the database refuses a write on
        an old snapshot at once. Outside a transaction, what a read saw may be gone by
        the time of the write.
        """
        if self.database.one_writer:
            column = table.c[0]
            self.core(update(table).where(false()).values({column: column}))

    def core(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run a statement on tables, without the session and its hooks."""
        return self.connection.execute(statement, parameters, execution_options=self.options)

    def built(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run a statement on tables that is built once; see ``compiled_once``."""
        options = compiled_once(self.connection.dialect)
        if self.options:
            options = {**self.options, **options}
        return self.connection.execute(statement, parameters, execution_options=options)

    def rows(self, statement: Executable, parameters: Any = None) -> Result[Any]:
        """Run a statement on mapped columns, past the session if it has no hooks.

        The result is the same, in half the time.
        """
        return (self.orm if self.hooked else self.core)(statement, parameters)

    def orm(self, statement: Executable, parameters: Any = None, **options: Any) -> Result[Any]:
        """Run a statement on entities, through the session and its hooks."""
        if self.options:
            options = {**self.options, **options}
        return self.session.execute(
            statement, parameters, execution_options=options, bind_arguments=_route(self.shard)
        )

    def fresh(self, statement: Executable, parameters: Any = None) -> Result[Any]:
        """Run a statement that is built once, on entities; overwrite those loaded before.

        If the session has loaded none, nothing is overwritten, and a claim of a hundred entities
        saves 8 % of its instructions. Hooks may load some before the statement is run.
        """
        session = self.of_session or self.session
        options: dict[str, Any] = {**(self.options or {}), **compiled_once(self.connection.dialect)}
        if self.hooked or len(session.identity_map):
            options["populate_existing"] = True
        return session.execute(
            statement, parameters, execution_options=options, bind_arguments=_route(self.shard)
        )


def _route(shard: Any) -> dict[str, Any] | None:
    """Return the bind arguments that lead to a shard."""
    return None if shard is None else {"shard_id": shard}


def writing(
    session: AnyConnection,
    mapping: QueueMapping,
    *,
    rows: bool = False,
    reads: bool = False,
    shard_by: Iterable[Any] = (),
) -> AbstractContextManager[Writer]:
    """Give a verb the connection that this session writes the mapped class with.

    Pending changes of the session are flushed first, even if autoflush is off: claimed
    rows overwrite what is loaded, so an unflushed change to them would be lost.

    Args:
        rows: the verb handles plain rows or fences, so a Connection will do.
        reads: the verb only reads, so the session's hooks learn of no write.
        shard_by: entities or loader options that tell which database of a ShardedSession it is.

    Raises:
        ArgumentError: not a session; with `rows`, not a Connection either. Or a ShardedSession,
            and nothing tells the shard.
    """
    if isinstance(session, Connection) and rows:
        return nullcontext(writer_for(session, mapping))
    if not isinstance(session, Session):
        session = any_session_of(session)
    shard, own_routes = None, type(session).get_bind is not Session.get_bind
    if own_routes and is_sharded(session) and (shard := shard_of(shard_by)) is None:
        raise ArgumentError(IN_A_SHARDED_SESSION)
    if not session._is_clean():  # flush() asks the same, but refuses to run inside of a flush
        session.flush()
    if not reads and (session.dispatch.do_orm_execute or session.dispatch.after_bulk_update):
        _announce_write(session, mapping, shard)
    if own_routes and shard is None:
        return _routed_to_writes(session, mapping)
    return nullcontext(writer_for(session, mapping, shard))


def writer_for(session: Session | Connection, mapping: QueueMapping, shard: Any = None) -> Writer:
    """Return a writer on a Connection, or on that of a session for a mapped class and a shard."""
    if isinstance(session, Connection):
        of_session, connection = None, session
    else:
        of_session = session
        mapper = {"mapper": mapping.mapper}
        connection = session.connection(bind_arguments={**mapper, **(_route(shard) or {})})
    database = database_of(connection)
    in_autocommit = database.in_autocommit(connection)
    if schemas := connection.get_execution_options().get("schema_translate_map"):
        _refuse_quotes(schemas)
    options = None
    if (
        not in_autocommit
        and type(database).begin is not Database.begin
        and not _begin(connection, database)
    ):
        options = database.past_snapshot(connection)
    hooked = of_session is not None and bool(of_session.dispatch.do_orm_execute)
    known = (of_session, connection, database, in_autocommit, mapping.mapper, options, hooked)
    return Writer(*known, shard)


def _refuse_quotes(schemas: Mapping[Any, str | None]) -> None:
    """Refuse names that end a string: SQLAlchemy writes a translated schema into the text as it is.

    The locks of a table are found by its name, which stands in a string there.
    """
    for name in filter(None, schemas.values()):
        if "'" in name or "\\" in name:
            raise ArgumentError(
                f"schema_translate_map leads to {name!r}: rename the schema, so that its name has "
                "no single quote and no backslash"
            )


@dataclass
class _Known:
    """What is known of a transaction; each is asked once.

    Attributes:
        begun_by_verb: a verb was the first to use it, and has made it fit for claims.
        is_own: the library has begun it, so nobody has chosen another isolation level for it.
        sees_commits: a plain read shows what others commit.
    """

    begun_by_verb: bool | None = None
    is_own: bool = False
    sees_commits: bool | None = None


_known: WeakKeyDictionary[RootTransaction, _Known] = WeakKeyDictionary()


def _known_of(connection: Connection) -> _Known:
    """Return what is known of a connection's transaction, which begins if there is none."""
    transaction = connection.get_transaction() or connection.begin()
    known = _known.get(transaction)
    if known is None:
        known = _known[transaction] = _Known()
    return known


def note_own_transaction(connection: Connection) -> None:
    """Note that the library, and nobody else, has begun this connection's transaction."""
    _known_of(connection).is_own = True


def _begin(connection: Connection, database: Database) -> bool:
    known = _known_of(connection)
    if known.begun_by_verb is None:
        known.begun_by_verb = database.begin(connection)
    return known.begun_by_verb


@contextmanager
def _routed_to_writes(session: Session, mapping: QueueMapping) -> Iterator[Writer]:
    """Make a routing session use its bind for writes for all statements on this mapper.

    Such a session decides by the statement's class, and treats SELECT .. FOR UPDATE as a
    read. The statement that it sees cannot be chosen from outside, and not every
    get_bind() takes a ``bind`` argument. Other mappers, such as those of eagerly loaded
    relationships in another database, are routed as before.
    """
    mapper, routed = mapping.mapper, session.get_bind
    writer = routed(mapper=mapper, clause=update(mapping.table))

    def get_bind(mapper_: Any = None, **kw: Any) -> Any:
        asked = kw.pop("mapper", mapper_)
        if asked is not None and sa_inspect(asked).mapper.base_mapper is mapper.base_mapper:
            return writer
        return routed(mapper=asked, **kw)

    vars(session)["get_bind"] = get_bind
    try:
        yield writer_for(session, mapping)
    finally:
        del vars(session)["get_bind"]


#: The execution option of an UPDATE that the hooks see and the database does not.
ANNOUNCED = "sa_jobqueue_write"


def has_execute_hooks(session: Session) -> bool:
    """Tell whether do_orm_execute hooks may add criteria to the session's SELECTs."""
    return bool(session.dispatch.do_orm_execute)


def _announce_write(session: Session, mapping: QueueMapping, shard: Any) -> None:
    """Tell the session's hooks that a verb writes to rows of a mapped class.

    They see an UPDATE of the class by do_orm_execute and after_bulk_update, with a WHERE that
    is false and the execution option ANNOUNCED. The database does not get this UPDATE: the last
    hook, which is ours, answers it. A hook that refuses writes raises before the verb has written.
    """
    status = mapping.attributes.get("status")
    query: Query[Any] = Query(mapping.entity, session).filter(false())
    query = query.execution_options(**{ANNOUNCED: True, "identity_token": shard})
    values: dict[Any, Any] = {} if status is None else {status: mapping.attribute("status")}
    event.listen(session, "do_orm_execute", _answered)
    try:
        query.update(values, synchronize_session=False)
    finally:
        event.remove(session, "do_orm_execute", _answered)


class _NoRows(IteratorResult[Any]):
    rowcount = 0


def _answered(state: ORMExecuteState) -> Result[Any] | None:
    if ANNOUNCED not in state.execution_options:
        return None
    return _NoRows(SimpleResultMetaData([]), iter(()))


# -- statements that are built, and compiled, once for each owner and database ----
#
# The owner is what the statements are built for: a mapped class, a queue or its claim plan.
# The statements are kept in the owner, under the dialect of the engine. If the application drops
# a class, a queue or an engine, its statements are freed with it. `lru_cache` would keep all of
# them alive. A WeakKeyDictionary of owners would, too, because statements refer to their owner.


Owner = TypeVar("Owner")
P = ParamSpec("P")
R = TypeVar("R")

#: The most entries for one owner and one dialect; a full cache is emptied.
MOST = 1_000

_KEPT = "_sa_jobqueue_built"


def built_once(
    build: Callable[Concatenate[Owner, Any, P], R],
) -> Callable[Concatenate[Owner, Any, P], R]:
    """Call a function once for each owner, dialect and further arguments.

    Its result may refer to the owner and the database, but neither to the dialect nor to the
    writer.
    """

    @wraps(build)
    def built(owner: Owner, writer: Any, /, *args: P.args, **named: P.kwargs) -> R:
        key = (build, args, *named.items()) if named else (build, args)
        dialect = writer.connection.dialect
        try:
            found: R = vars(owner)[_KEPT].values[id(dialect)][key]
        except KeyError:
            kept = _kept(owner, dialect)
            if len(kept) >= MOST:
                kept.clear()
            found = kept.setdefault(key, build(owner, writer, *args, **named))
        return found

    return built


def _kept(owner: Any, dialect: Dialect) -> dict[Any, Any]:
    by_dialect: ByDialect[dict[Any, Any]] = vars(owner).setdefault(_KEPT, ByDialect())
    return by_dialect.setdefault(dialect, {})


# Find compiled statements by the statement itself instead of by all of its parts.
#
# SQLAlchemy keeps compiled statements under a key that has a part for each part of the statement:
# 450 for a claim of one job. Python hashes all of these parts at each execution. But SQLAlchemy
# makes the tuple of parts only once for a statement. For a statement that is built once, the id()
# of this tuple is therefore enough. For a claim and its finish this saves 25,000 instructions.

#: The most statements for one engine, as many as SQLAlchemy keeps; a full cache is emptied.
MOST_COMPILED = 500

_COMPILED = "_sa_jobqueue_compiled"


class CompiledStatements:
    """Compiled statements by their keys, for SQLAlchemy's option `compiled_cache`.

    A key is a tuple, and its second element is the tuple of the statement's parts. This tuple is
    kept here, so no other tuple gets the same id().
    """

    def __init__(self) -> None:
        self._by_key: dict[Any, Any] = {}
        self._by_id: dict[Any, tuple[Any, Any]] = {}

    def get(self, key: Any) -> Any:
        """Return the compiled statement of a key; None if there is none."""
        parts = key[1]
        short = (id(parts), key[0], key[2:])
        known = self._by_id.get(short)
        if known is not None:
            return known[1]
        compiled = self._by_key.get(key)
        if compiled is not None:
            _keep(self._by_id, short, (parts, compiled))
        return compiled

    def __setitem__(self, key: Any, compiled: Any) -> None:
        _keep(self._by_key, key, compiled)


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= MOST_COMPILED:
        kept.clear()
    kept[key] = value


def compiled_once(dialect: Dialect) -> Mapping[str, Any]:
    """Return the execution options for statements that are built once."""
    kept = dialect.__dict__  # compiled statements refer to their dialect, so they are freed with it
    try:
        options: Mapping[str, Any] = kept[_COMPILED]
    except KeyError:
        options = kept.setdefault(_COMPILED, {"compiled_cache": CompiledStatements()})
    return options
