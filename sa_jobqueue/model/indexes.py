"""The indexes of a queue: for claims, for reapers, for each serial key, and for failed jobs.

The claim index is (equality columns, status, order columns, primary key). So a claim of n
rows reads n entries and sorts nothing. If a column were missing, InnoDB would lock every
row that it has to sort. On PostgreSQL and SQLite the index holds only the claimable rows,
and stays small however many are done.

An index of a serial key, such as an account, is (equality columns, status, the key's
columns, attempts, order columns, primary key). The next job of a key is its first entry;
if a job of the key was tried already, that is its last entry. The claimed jobs of a key are
found too. The attempts do not descend, because MariaDB goes from key to key only by an index
without descending columns: with one it read 50,000 entries to find 13 keys.

The index of failed jobs is (status, owner_date, primary key), and optional. Without it the
five failed jobs among two million done ones are not counted, since all would be read. It is no
default: on InnoDB the reap index finds these jobs already, and with this index MySQL took 18 % more
CPU for claims and finishes in batches of 100. On PostgreSQL and SQLite no difference was seen
beside a noise of 5 %, but Alembic cannot leave an index out on some databases.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Index, MetaData, Table, True_
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.visitors import iterate

from ..errors import ArgumentError
from .mapping import QueueMapping
from .status import CANCELLED, FAILED, UNCLAIMED, status_is, status_is_not
from .transitions import FINISHED, words_of

#: The databases' shortest limit for a name: PostgreSQL cuts names at 63 bytes.
_NAME_LENGTH = 63

#: How much of a name may say what the index is for: the table's name needs the rest.
_PURPOSE_LENGTH = 40

#: Where a table keeps its indexes by purpose. Not in Table.info, which Alembic renders into
#: migrations. Not in a WeakKeyDictionary of tables, which would never free one, since an index
#: holds its table.
_KEPT = "_sa_jobqueue_indexes"

#: The statuses of the index of failed jobs.
UNSUCCESSFUL = (FAILED, CANCELLED)

#: The comparisons by which an index finds rows.
EQUALITIES = frozenset({operators.eq})
RANGES = frozenset({operators.lt, operators.le, operators.gt, operators.ge, operators.between_op})


def add_indexes(mapping: QueueMapping) -> None:
    """Attach the claim index, the reap index and those of serial keys to the mapped table, once.

    A class with rounds alone, where claims write no status, gets an index of its rounds.
    """
    if not mapping.is_queue:
        _add(mapping.table, "claim", _each_once(mapping, (*mapping.order, *mapping.keys)))
        return
    status, table, keys = mapping.column("status"), mapping.table, mapping.keys
    # SQLite proves that `status = 'a'` implies the index's condition only if that is the same
    # term, not if it is an IN.
    ready, claimed = status_is(status, *mapping.ready), status_is(status, *mapping.during)
    one_ready, one_claimed = len(mapping.ready) == 1, len(mapping.during) == 1
    columns = _each_once(mapping, (*mapping.equality, status, *mapping.order, *keys))
    _add(table, "claim", columns, ready, sqlite_where=one_ready)
    by_age = [status, mapping.column("owner_date")]
    _add(table, "reap", by_age, claimed, sqlite_where=one_claimed)
    unfinished = status_is_not(status, *words_of(mapping, FINISHED))
    tried = [mapping.column("attempts")] if mapping.has("attempts") else []
    for key in mapping.per_key:
        leading = (*mapping.equality, status, *key, *tried)
        columns = _each_once(mapping, (*leading, *mapping.order, *keys))
        _add(table, _per_key(key), columns, unfinished, sqlite_where=False)
    if mapping.has("group_id"):
        _add(table, "group", [mapping.column("group_id")])
    if mapping.args.failed_index:
        columns = _each_once(mapping, (*by_age, *keys))
        _add(table, "failed", columns, is_unsuccessful(mapping, status))


def is_unsuccessful(mapping: QueueMapping, status: Any) -> ColumnElement[bool]:
    """Return the condition of the index of failed jobs.

    SQLite uses the index only for a statement that has the same term.
    """
    return status_is(status, *map(mapping.word, UNSUCCESSFUL))


def job_indexes(table: Table) -> Mapping[str, Index]:
    """Return the indexes that the model of a queue declares for a table, by their purposes.

    The purposes are ``"claim"``, ``"reap"``, ``"failed"``, and that of each serial key.
    """
    found: dict[str, Index] = vars(table).get(_KEPT, {})
    return found


def claim_index(mapping: QueueMapping) -> Index | None:
    """Return the claim index of a mapped table; None if it could not have one."""
    return job_indexes(mapping.table).get("claim")


def key_index(mapping: QueueMapping, key: Sequence[Any]) -> Index | None:
    """Return the model's index of a serial key, if it has one."""
    return job_indexes(mapping.table).get(_per_key(key))


def _per_key(key: Sequence[Any]) -> str:
    return _in_name("key", *(attribute.key for attribute in key))


def _each_once(mapping: QueueMapping, columns: Iterable[Any]) -> list[ColumnElement[Any]]:
    """List columns of the table, each once: a second mention would order nothing."""
    found: list[ColumnElement[Any]] = []
    for column in columns:
        own = _table_column(mapping, column)
        if not _is_among(own, found):
            found.append(own)
    return found


def _table_column(mapping: QueueMapping, column: Any) -> ColumnElement[Any]:
    if isinstance(column, UnaryExpression) and column.modifier is not None:
        inner = _table_column(mapping, column.element)
        if column.modifier is operators.asc_op:
            return inner
        return UnaryExpression(inner, modifier=column.modifier)
    if isinstance(column, Column):
        return column
    if not isinstance(column, InstrumentedAttribute):
        return column  # type: ignore[no-any-return]  # an expression, as the criteria have it
    found: ColumnElement[Any] = mapping.mapper.columns[column.key]
    return found


def _is_among(column: Any, others: Iterable[Any]) -> bool:
    return any(_plain(column).compare(_plain(other)) for other in others)


def _plain(column: Any) -> Any:
    """Return the expression that is ordered by, without its direction."""
    while isinstance(column, UnaryExpression) and column.modifier is not None:
        column = column.element
    return column


def _add(
    table: Table,
    purpose: str,
    columns: list[Any],
    where: ColumnElement[bool] | None = None,
    *,
    sqlite_where: bool = True,
) -> None:
    name = index_name(table, purpose)
    kept: dict[str, Index] = vars(table).setdefault(_KEPT, {})
    for index in table.indexes:
        if index.name == name:
            kept[purpose] = index
            return
    if all(_plain(column).table is table for column in columns):
        kept[purpose] = _new(name, columns, where, sqlite_where=sqlite_where)
    # Else joined inheritance orders by a column of another table.


def _new(
    name: str,
    columns: Sequence[Any],
    where: ColumnElement[bool] | None,
    *,
    sqlite_where: bool = True,
) -> Index:
    """Make an index that is partial where the database can."""
    partial: dict[str, Any] = {
        "postgresql_where": where,
        "sqlite_where": where if sqlite_where else None,
    }
    return Index(name, *columns, **{key: term for key, term in partial.items() if term is not None})


def _apart(
    mapping: QueueMapping,
    name: str,
    columns: Sequence[ColumnElement[Any]],
    where: ColumnElement[bool] | None,
) -> Index:
    """Make an index that is attached to no table."""
    index = _new(name, columns, where)
    mapping.table.indexes.discard(index)
    return index


def reap_index(mapping: QueueMapping, during: str) -> Index:
    """Return the index that finds the claims in a status by their age.

    It is the model's reap index if that serves the status, else a new index that is
    attached to no table.
    """
    own = job_indexes(mapping.table).get("reap")
    if own is not None and during in mapping.during:
        return own
    status, name = mapping.column("status"), index_name(mapping.table, _in_name("reap", during))
    return _apart(mapping, name, [status, mapping.column("owner_date")], status_is(status, during))


def index_serving(
    mapping: QueueMapping,
    where: Sequence[ColumnElement[bool]],
    *,
    order: Sequence[ColumnElement[Any]],
    ready: str | None = None,
    name: str | None = None,
) -> Index:
    """Return the index that finds rows by a predicate, in an order.

    It is the model's claim index if that has the same columns. Else it is a new index,
    attached to no table, and named after its columns, so that nobody takes it for the
    model's.

    Args:
        where: the criteria. Columns compared for equality lead the index; without a
            mixin, a column compared with a range comes behind them.
        order: the claim order, without the primary key at its end.
        ready: the status that is claimed, if the class has a status.
        name: a name of your own for the index.

    Raises:
        ArgumentError: no index both finds the range and has the order.
    """
    equal, criterion = list(compared(where, EQUALITIES)), None
    # First the columns that lead the model's index.
    declared = [each.expression for each in mapping.equality if _is_among(each.expression, equal)]
    if ready is None:
        behind = _range_and_order(mapping, where, equal, order)
    else:
        criterion = status_is(mapping.column("status"), ready)
        behind = [mapping.column("status"), *order]
    columns = _each_once(mapping, (*declared, *equal, *behind, *mapping.keys))
    own = claim_index(mapping)
    modelled = ready in mapping.ready if mapping.is_queue else ready is None
    if name is None and own is not None and modelled:
        there: list[Any] = list(own.expressions)  # in these directions, too
        if len(there) == len(columns) and all(
            each.compare(other) for each, other in zip(there, columns, strict=True)
        ):
            return own
    name = name or index_name(mapping.table, _purpose_of(mapping, columns, ready))
    return _apart(mapping, name, columns, criterion)


def _purpose_of(
    mapping: QueueMapping, columns: Sequence[ColumnElement[Any]], ready: str | None
) -> str:
    """Return words for what a queue's own index is for, the same in each run."""
    words = ["claim"]
    if ready not in (None, mapping.word(UNCLAIMED)):
        words.append(str(ready))
    status = mapping.column("status") if mapping.is_queue else None
    named = [column for column in columns if column is not status]
    while len(named) > 1 and any(named[-1] is key for key in mapping.keys):
        named.pop()
    return _in_name(*words, *map(_word, named))


def _in_name(*words: str) -> str:
    return re.sub(r"\W+", "_", "_".join(words))


def _word(column: Any) -> str:
    """Return a column's name with its direction: ``amount_desc``."""
    plain = _plain(column)
    name = plain.name if isinstance(plain, Column) else str(plain)
    return name + str(column).removeprefix(str(plain)).lower()


def twin(index: Index, *, name: str | None = None, **options: Any) -> Index:
    """Copy an index, with further options; the copy is attached to no table."""
    expressions = index.expressions
    given = {"unique": index.unique, **index.dialect_kwargs, **options}
    made = Index(name or index.name, *expressions, **given)
    if made.table is None:  # no column tells the table: its expressions are texts
        assert index.table is not None
        Table(index.table.name, MetaData(), made, schema=index.table.schema)
    assert made.table is not None
    made.table.indexes.discard(made)
    return made


def _range_and_order(
    mapping: QueueMapping,
    where: Sequence[ColumnElement[bool]],
    equal: Sequence[ColumnElement[Any]],
    order: Sequence[ColumnElement[Any]],
) -> list[ColumnElement[Any]]:
    """List what comes behind the columns that are compared for equality."""
    ranges = [column for column in compared(where, RANGES) if not _is_among(column, equal)]
    if not order:
        return ranges[:1]
    ordering = [
        column
        for column in _each_once(mapping, (*order, *mapping.keys))
        if not _is_among(column, equal)
    ]
    if ranges and ordering and not _is_among(ordering[0], ranges):
        raise ArgumentError(
            f"no index of {mapping.table.description!r} can serve both the range of {ranges[0]} "
            f"and the order by {ordering[0]}: each claim would sort all rows of the range. Order "
            "by the column of the range, or leave the order out. Or use rounds, whose number is "
            "compared for equality"
        )
    return ordering


def compared(where: Iterable[Any], how: Collection[Any]) -> Iterator[ColumnElement[Any]]:
    """Yield each expression that criteria compare with a constant in one of these ways.

    A constant is whatever is the same for all rows of the table.
    """
    seen: list[ColumnElement[Any]] = []
    for criterion in _each_criterion(where):
        if getattr(criterion, "operator", None) not in how:
            continue
        if _tables(criterion.left) & _tables(criterion.right):  # the right side is no constant
            continue
        if not _is_among(criterion.left, seen):
            seen.append(criterion.left)
            yield criterion.left


def _each_criterion(where: Iterable[Any]) -> Iterator[Any]:
    """Yield the criteria that are joined by AND, also those inside of an and_()."""
    for criterion in where:
        if getattr(criterion, "operator", None) is operators.and_:
            yield from _each_criterion(criterion.clauses)
        elif not isinstance(criterion, True_):
            yield criterion


def _tables(element: Any) -> set[str]:
    # By name, because mapped attributes have annotated copies of their table.
    tables: list[Any] = [getattr(part, "table", None) for part in iterate(element)]
    return {table.fullname for table in tables if isinstance(table, Table)}


def index_name(table: Table, purpose: str) -> str:
    """Return the name of a queue's index: ``ix_<table>_<purpose>``, at most 63 bytes.

    A naming convention that asks for a constraint name gets the purpose alone.
    """
    purpose = shortened(purpose, _PURPOSE_LENGTH)
    convention = table.metadata.naming_convention.get("ix")
    if isinstance(convention, str) and "%(constraint_name)s" in convention:
        return purpose
    room = _NAME_LENGTH - len(f"ix__{purpose}".encode())
    return f"ix_{shortened(table.name, room)}_{purpose}"


def shortened(text: str, room: int) -> str:
    """Return a text of at most `room` bytes; a longer text is cut and ends with its digest."""
    if len(text.encode()) <= room:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    kept = text.encode()[: room - len(digest) - 1].decode(errors="ignore")
    return f"{kept}_{digest}"
