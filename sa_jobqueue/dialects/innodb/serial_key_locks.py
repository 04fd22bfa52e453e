"""MySQL and MariaDB: a serial key is locked by GET_LOCK, until the transaction has ended.

InnoDB's row locks cannot do it: a key has no row of its own. GET_LOCK's lock belongs to the
session, so it is given back after the outermost COMMIT or ROLLBACK. GET_LOCK counts how
often a session takes a lock, so within a transaction each lock is taken once only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    CHAR,
    ColumnElement,
    Connection,
    Executable,
    LargeBinary,
    String,
    Table,
    cast,
    func,
    literal_column,
    text,
)
from sqlalchemy.ext.compiler import compiles

from ..after_commit import TransactionHooks, add_hooks, fetch_all, hooks_of
from ..serial_key_locks import SerialKeyLocks, plain_type, sorted_by_name
from ..table_expression import TableExpression

log = logging.getLogger("sa_jobqueue.claim")

#: The name of this module's hooks on a connection.
_HOOKS = "serial key locks"

#: Locks that one statement takes or gives back.
_AT_ONCE = 200

#: A name may have 64 characters: 12 say what it is, 40 are a hash.
_PREFIX, _HASHED = "sa_jobqueue:", 40


class InnoDBSerialKeyLocks(SerialKeyLocks):
    """``GET_LOCK`` and ``RELEASE_LOCK``."""

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # CONCAT is NULL where one of its parts is: such a row has no key.
        ordered = sorted_by_name(columns)
        names = ",".join(str(column.expression.name) for column in ordered)
        words = func.concat(TableName(table), _literal(f":{names}"), *_parts(ordered))
        return func.concat(_literal(_PREFIX), func.left(func.sha2(words, 256), _HASHED), type_=CHAR)

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        held = _held_by(connection)
        held.release_doubtful(connection)
        new = [token for token in dict.fromkeys(tokens) if token not in held.names]
        for start in range(0, len(new), _AT_ONCE):
            held.take(connection, new[start : start + _AT_ONCE])
        return held.names & set(tokens)

    def statement(self) -> Executable:
        return text(_calling("GET_LOCK({}, 0)", [f"{_PREFIX}.."]))


class HeldKeys(TransactionHooks):
    """The keys that a connection has locked in its transaction.

    Attributes:
        names: the names of their locks.
        doubtful: names of locks that we may have or not: a statement that takes them or
            gives them back was interrupted.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.doubtful: set[str] = set()

    def take(self, connection: Connection, names: Sequence[str]) -> None:
        """Take the locks that are free."""
        self.doubtful.update(names)
        answers = connection.exec_driver_sql(_calling("GET_LOCK({}, 0)", names)).one()
        self.names.update(name for name, had in zip(names, answers, strict=True) if had)
        self.doubtful.difference_update(names)

    def release_doubtful(self, connection: Connection) -> None:
        """Give back the doubtful locks: if one were taken twice, one release would not free it."""
        self._give(lambda statement: connection.exec_driver_sql(statement).all())

    def after_end(self, driver: Any, *, committed: bool) -> None:
        """Give everything back."""
        self.doubtful |= self.names
        self.names.clear()
        self._give(partial(fetch_all, driver))

    def _give(self, run: Callable[[str], object]) -> None:
        names = sorted(self.doubtful)
        for start in range(0, len(names), _AT_ONCE):
            run(_calling("RELEASE_LOCK({})", names[start : start + _AT_ONCE]))
        self.doubtful.clear()

    def end_interrupted(self) -> None:
        """Keep the locks: either they are gone with the connection, or a ROLLBACK follows."""

    def after_end_failed(self, error: Exception) -> None:
        """Log it. If the connection is broken, the server has freed the locks."""
        log.warning("locks of serial keys could not be freed: %s", error)

    def on_return(self, driver: Any) -> None:
        """Give back what the last transaction left, say because its connection was dropped."""
        if self.names or self.doubtful:
            driver.rollback()
            self.after_end(driver, committed=False)


def _held_by(connection: Connection) -> HeldKeys:
    held = hooks_of(connection, _HOOKS)
    if held is None:
        held = HeldKeys()
        add_hooks(connection, _HOOKS, held)
    assert isinstance(held, HeldKeys)
    return held


def _calling(call: str, names: Iterable[str]) -> str:
    """Call a lock function for each name; the server made the names of letters and digits."""
    return "SELECT " + ", ".join(call.format(f"'{name}'") for name in names)


def _parts(columns: Iterable[Any]) -> Iterable[ColumnElement[Any]]:
    for column in columns:
        yield _literal(":")
        yield _text_of(column)


def _text_of(column: Any) -> ColumnElement[Any]:
    """Return a text that is the same for values that are equal here, maybe 'a', 'A' and 'á'."""
    kind = plain_type(column.type)
    if isinstance(kind, String):
        return func.hex(func.weight_string(func.rtrim(column)))
    if isinstance(kind, LargeBinary):
        return func.hex(column)
    return func.hex(cast(column, CHAR))


def _literal(text: str) -> ColumnElement[str]:
    return literal_column("'" + text.replace("'", "''").replace("\\", "\\\\") + "'", String())


class TableName(TableExpression[str]):
    """A table's database and name as one string, since locks are shared by the whole server."""

    __visit_name__ = "sa_jobqueue_table_name"
    inherit_cache = True
    type = String()


@compiles(TableName, "mysql", "mariadb")
def _table_name(element: TableName, compiler: Any, **kw: Any) -> str:
    # The schema stands apart from the name: SQLAlchemy puts a translated one into the text when
    # the statement runs, and a worker whose default database it is must compute the same text.
    # Without the backquotes: so names that differ only by them share locks, which does no harm.
    preparer = compiler.preparer
    schema = preparer.schema_for_object(element.table)
    database = "DATABASE()" if schema is None else _quoted(preparer.quote_schema(schema))
    name = _quoted(preparer.format_table(element.table, use_schema=False))
    return f"HEX(LOWER(REPLACE(CONCAT({database}, '.', {name}), '`', '')))"


def _quoted(name: str) -> str:
    """Write a name as a string."""
    escaped = name.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
