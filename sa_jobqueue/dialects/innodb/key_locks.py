"""MySQL and MariaDB: a key is locked by GET_LOCK, until the transaction has ended.

InnoDB's own locks cannot do it: a key has no row of its own. The lock is one of the
session, so it is given back after the outermost COMMIT or ROLLBACK. It is taken once
in a transaction, however often it is asked for: GET_LOCK counts.
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
from sqlalchemy.sql.visitors import InternalTraversal

from ..after_commit import Ending, ending_of, fetched, follow
from ..key_locks import KeyLocks, in_order, plain_type

log = logging.getLogger("sa_jobqueue.claim")

_ENDING = "key locks"

#: Locks that one statement takes or gives back.
_AT_ONCE = 200

#: Of the 64 characters that a name may have: 12 for what it is, 40 for a hash.
_PREFIX, _HASHED = "sa_jobqueue:", 40


class InnoDBKeyLocks(KeyLocks):
    """``GET_LOCK`` and ``RELEASE_LOCK``."""

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # CONCAT is NULL where a part is: such a key is none.
        ordered = in_order(columns)
        names = ",".join(str(column.expression.name) for column in ordered)
        words = func.concat(TableWords(table), _literal(f":{names}"), *_parts(ordered))
        return func.concat(_literal(_PREFIX), func.left(func.sha2(words, 256), _HASHED), type_=CHAR)

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        held = _held_by(connection)
        held.settle(connection)
        new = [token for token in dict.fromkeys(tokens) if token not in held.names]
        for start in range(0, len(new), _AT_ONCE):
            held.take(connection, new[start : start + _AT_ONCE])
        return held.names & set(tokens)

    def statement(self) -> Executable:
        return text(_calling("GET_LOCK({}, 0)", [f"{_PREFIX}.."]))


class HeldKeys(Ending):
    """The keys that a connection has locked in its transaction.

    Attributes:
        names: their locks.
        doubtful: locks that may be held or not: a statement that takes or gives
            them back was broken off.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.doubtful: set[str] = set()

    def take(self, connection: Connection, names: Sequence[str]) -> None:
        """Take those of some locks that are free."""
        self.doubtful.update(names)
        answers = connection.exec_driver_sql(_calling("GET_LOCK({}, 0)", names)).one()
        self.names.update(name for name, had in zip(names, answers, strict=True) if had)
        self.doubtful.difference_update(names)

    def settle(self, connection: Connection) -> None:
        """Give back what is doubtful: taken once more, it would be given back once too little."""
        self._give(lambda statement: connection.exec_driver_sql(statement).all())

    def ended(self, driver: Any, *, committed: bool) -> None:
        """Give everything back."""
        self.doubtful |= self.names
        self.names.clear()
        self._give(partial(fetched, driver))

    def _give(self, run: Callable[[str], object]) -> None:
        names = sorted(self.doubtful)
        for start in range(0, len(names), _AT_ONCE):
            run(_calling("RELEASE_LOCK({})", names[start : start + _AT_ONCE]))
        self.doubtful.clear()

    def broken_off(self) -> None:
        """Keep them: either the connection is gone, and they with it, or a ROLLBACK follows."""

    def not_done(self, error: Exception) -> None:
        """Say so; of a broken connection the server has freed the locks."""
        log.warning("locks of keys could not be freed: %s", error)

    def returned(self, driver: Any) -> None:
        """Give back what the last transaction has left: its connection was dropped, say."""
        if self.names or self.doubtful:
            driver.rollback()
            self.ended(driver, committed=False)


def _held_by(connection: Connection) -> HeldKeys:
    held = ending_of(connection, _ENDING)
    if held is None:
        held = HeldKeys()
        follow(connection, _ENDING, held)
    assert isinstance(held, HeldKeys)
    return held


def _calling(call: str, names: Iterable[str]) -> str:
    """Call a lock function for each name; the server made them, of letters and digits."""
    return "SELECT " + ", ".join(call.format(f"'{name}'") for name in names)


def _parts(columns: Iterable[Any]) -> Iterable[ColumnElement[Any]]:
    for column in columns:
        yield _literal(":")
        yield _text_of(column)


def _text_of(column: Any) -> ColumnElement[Any]:
    """Say a value so that what the server takes for equal is the same: 'a', 'A' and 'á', maybe."""
    kind = plain_type(column.type)
    if isinstance(kind, String):
        return func.hex(func.weight_string(func.rtrim(column)))
    if isinstance(kind, LargeBinary):
        return func.hex(column)
    return func.hex(cast(column, CHAR))


def _literal(text: str) -> ColumnElement[str]:
    return literal_column("'" + text.replace("'", "''").replace("\\", "\\\\") + "'", String())


class TableWords(ColumnElement[str]):
    """A table's database and name, as one string: locks are those of the whole server."""

    __visit_name__ = "sa_jobqueue_table_words"
    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's own protocol, for the statement cache
        ("table", InternalTraversal.dp_clauseelement)
    ]
    inherit_cache = True
    type = String()

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(TableWords, "mysql", "mariadb")
def _table_words(element: TableWords, compiler: Any, **kw: Any) -> str:
    # A name of backquotes in it is told apart by less, and locked more than needed.
    name = compiler.preparer.format_table(element.table).replace("`", "")
    name = name.replace("\\", "\\\\").replace("'", "''")
    database = "" if element.table.schema else "DATABASE(), '.', "
    return f"HEX(LOWER(CONCAT({database}'{name}')))"
