"""Lists of primary keys in statements: compared, sorted, in batches, locked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    MetaData,
    Select,
    Table,
    and_,
    bindparam,
    literal,
    or_,
    tuple_,
)
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.types import TupleType

from ..databases import Database
from ..databases.clock import as_utc
from ..databases.database import or_null
from ..errors import ArgumentError, UnsupportedDatabase
from .mapping import QueueMapping, mapping_of
from .status import UNCLAIMED

#: Keys of one statement: SQLite takes 32,766 parameters, some drivers 65,535.
MOST_KEYS = 5_000

#: Keys of several columns in one statement. PostgreSQL plans `(a, b) IN (..)` in the
#: square of their number: 2 ms for 100, 0.4 s for 1,000, 6.7 s for 5,000.
MOST_WIDE_KEYS = 200


def key_is_in(
    mapping: QueueMapping, parameter: str, database: Database | None = None
) -> ColumnElement[bool]:
    """Compare the primary key with a parameter, a list of keys.

    The parameter's values are the keys themselves where the key is one column, else
    tuples; see :func:`key_values`.

    Args:
        database: if given, the comparison is the one that is fastest there.
    """
    return columns_are_in(mapping.keys, parameter, database)


def key_is(mapping: QueueMapping, parameter: str) -> ColumnElement[bool]:
    """Compare a primary key of one column with a parameter, a single key."""
    (key,) = mapping.keys
    return key == bindparam(parameter, type_=_type_of(key))


def beyond(
    columns: Sequence[Any], values: Sequence[Any], database: Database, *, ascending: bool = True
) -> list[ColumnElement[bool]]:
    """Return criteria of the rows behind these values, in the order of the columns.

    The first criterion bounds the index on every database. Each value gets the type of its column.
    In a row it would get a type of its own: the member of an enum has none, and a type of the
    user's may write its values in another way.
    """
    typed = [literal(*each) for each in zip(values, map(_type_of, columns), strict=True)]
    begin, row = ([*map(database.comparable, each)] for each in (typed, columns))
    if ascending:
        return [row[0] >= begin[0], tuple_(*row) > tuple_(*begin)]
    return [row[0] <= begin[0], tuple_(*row) < tuple_(*begin)]


def not_before(columns: Sequence[Any], parameter: str, database: Database) -> ColumnElement[bool]:
    """Return the criterion that a row does not stand before the values of parameters.

    It bounds an index on these columns.

    Args:
        parameter: the names of the parameters begin so, and end with the numbers from 0.
    """
    given = [
        bindparam(f"{parameter}{number}", type_=_type_of(column), required=True)
        for number, column in enumerate(columns)
    ]
    if len(columns) > 1 and not database.locks_what_it_scans:
        return tuple_(*columns) >= tuple_(*given)
    # InnoDB's optimizers bound no index by a comparison of rows.
    criterion: ColumnElement[bool] = columns[-1] >= given[-1]
    for column, value in zip(columns[-2::-1], given[-2::-1], strict=True):
        criterion = or_(column > value, and_(column == value, criterion))
    return criterion


def _type_of(column: Any) -> Any:
    # BIGINT, since the table's integers may have more bits than the model's.
    return BigInteger() if isinstance(column.type, Integer) else column.type


def columns_are_in(
    keys: Sequence[ColumnElement[Any]], parameter: str, database: Database | None = None
) -> ColumnElement[bool]:
    """Compare the columns of a primary key, perhaps of an alias; see :func:`key_is_in`."""
    if len(keys) == 1:
        if database is not None:
            return database.key_is_in(keys[0], parameter)
        return keys[0].in_(bindparam(parameter, expanding=True))
    kind = None
    if database is not None and database.keeps_one_key:
        kind = TupleType(*(or_null(key.type) for key in keys))
    return tuple_(*keys).in_(bindparam(parameter, type_=kind, expanding=True))


def key_batches(identities: Sequence[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Divide identities into batches that one statement takes well."""
    if 0 < len(identities) <= MOST_WIDE_KEYS:
        return [list(identities)]
    most = MOST_KEYS if not identities or len(identities[0]) == 1 else MOST_WIDE_KEYS
    starts = range(0, len(identities), most)
    return [list(identities[begin : begin + most]) for begin in starts]


def key_values(identities: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return identities as values for ``key_is_in()``, sorted if their types have an order."""
    if len(identities) == 1:
        # With a single row, as in `(a, b) IN ((1, 2))`, UPDATE and DELETE of MariaDB walk
        # over the whole table, and lock it. The same row twice is read as a range.
        (identity,) = identities
        return list(identity) if len(identity) == 1 else [identity, identity]
    one = bool(identities) and len(identities[0]) == 1
    values = list(chain.from_iterable(identities)) if one else list(identities)
    try:
        return sorted(values)
    except TypeError:  # a type without an order: any order will do
        return values


def by_key(statement: Any, table: Table, database: Database) -> Any:
    """Make a SELECT by primary key use that key, where an optimizer may choose another index."""
    if database.key_hint is None or not table.primary_key:
        return statement
    return statement.with_hint(table, database.key_hint)


def locked_by_key(
    statement: Select[Any],
    mapping: QueueMapping,
    database: Database,
    *,
    keep_references: bool = False,
    skip_locked: bool = False,
) -> Select[Any]:
    """Have a SELECT by primary key lock its rows, in the order of their keys.

    It is bound to the key: else a tiny table is scanned, and waits for rows that others
    hold.

    Args:
        keep_references: rows of other tables may go on referencing these meanwhile, where
            the database has such a lock (FOR NO KEY UPDATE).
        skip_locked: pass over the rows that others hold, where the database can. The rows
            of the mapped table alone are locked then, also where hooks add a join.
    """
    bound: Select[Any] = by_key(statement, mapping.table, database)
    return bound.order_by(*mapping.keys).with_for_update(
        key_share=keep_references and database.no_key_update,
        skip_locked=skip_locked and database.skip_locked,
        of=mapping.table if skip_locked and database.lock_of else None,
    )


def repeated_key(mapping: QueueMapping) -> UnsupportedDatabase:
    """Return the error that several claimed rows have one primary key."""
    return UnsupportedDatabase(
        f"several rows of {mapping} that a claim got have one primary key, so no finish could tell "
        f"them apart; roll back. The tables that INHERIT from {mapping.table.description!r} repeat "
        "its keys: make the keys unique over all of these tables, as one sequence does"
    )


def keys_of(
    mapping: QueueMapping, jobs: Sequence[Any], *, rows: bool = False
) -> list[tuple[Any, ...]]:
    """Return the primary keys of entities, or of plain rows."""
    if not rows:
        states: Iterator[Any] = map(instance_state, jobs)  # persistent, so each has a key
        return [state.key[1] for state in states]
    key_of = mapping.key_of_row
    if len(mapping.keys) > 1:
        return list(map(key_of, jobs))
    return [(key_of(row),) for row in jobs] if len(jobs) == 1 else list(zip(map(key_of, jobs)))


def key_json(identity: tuple[Any, ...]) -> str:
    """Write a primary key as text for a table of the library's own, such as ``[7]``."""
    return json.dumps(identity, default=_plain)


def _plain(value: Any) -> str:
    """Write what JSON does not know: times as UTC, everything else as its text."""
    if not isinstance(value, datetime):
        return str(value)
    return f"{as_utc(value).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def plain_queue(queue: Any) -> Any:
    """Return the JobQueue of a workflow's step, or in an AsyncJobQueue; all else as it is."""
    if isinstance(queue, type):  # it may have a column of such a name
        return queue
    return getattr(queue, "sync_queue", getattr(queue, "queue", queue))


def mapping_of_queue(queue: Any) -> QueueMapping:
    """Return the mapping of a mapped class, of a JobQueue or of a workflow's step.

    Raises:
        ArgumentError: it is no queue.
    """
    queue = plain_queue(queue)
    mapping = getattr(queue, "mapping", None)
    return mapping if isinstance(mapping, QueueMapping) else mapping_of(queue)


def queue_name(queue: Any) -> str:
    """Return a queue's name: ``email``, or ``film/cut`` for one that claims from a status ``cut``.

    Raises:
        ArgumentError: it is no queue.
    """
    mapping = mapping_of_queue(queue)
    queue = plain_queue(queue)
    usual = mapping.word(UNCLAIMED)
    ready = usual if isinstance(queue, type) else getattr(queue, "ready", usual)
    table = mapping.table.fullname
    return table if ready == usual else f"{table}/{ready}"


def queues_by_name(queues: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return the queues by the names that their metrics and spans have.

    Raises:
        ArgumentError: something is no queue, or two have one name.
    """
    if isinstance(queues, Mapping):
        return {name: plain_queue(queue) for name, queue in queues.items()}
    found: dict[str, Any] = {}
    for queue in map(plain_queue, queues):
        name = queue_name(queue)
        if name in found:
            raise ArgumentError(
                f"two queues are called {name!r}; give names of your own: {{'one': {queue!r}, ..}}"
            )
        found[name] = queue
    return found


# Tables of the library's own beside a queue's: its MetaData tells of them.
#
# Who asks here loads nothing else: an application without such tables pays nothing for them.

#: The keys in ``MetaData.info``: of ControlTables, of Schedules, and of the Tables of the history
#: and of rates.
CONTROL = "sa_jobqueue.control"
SCHEDULES = "sa_jobqueue.schedules"
HISTORY = "sa_jobqueue.history"
RATES = "sa_jobqueue.rates"


def beside(mapping: QueueMapping, what: str) -> Any:
    """Return what is beside a queue's table; None: there is none."""
    return mapping.table.metadata.info.get(what)


def table_in(metadata: MetaData, name: str, schema: str | None = None) -> Table | None:
    """Return the table of this name in a MetaData; by default in the schema of the metadata."""
    within = schema or metadata.schema
    return metadata.tables.get(name if within is None else f"{within}.{name}")
