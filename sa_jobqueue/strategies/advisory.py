"""advisory: lock rows by their key, write nothing, check again what was locked.

PostgreSQL only, on a session bound to one connection. It claims any mapped class, with
JobMixin or without: the criteria define which rows are ready, and whoever marks a row
makes the criteria false for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Engine,
    Executable,
    Integer,
    String,
    Uuid,
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
from sqlalchemy.sql import ColumnElement

from ..dialects import Database, driver_connection
from ..dialects.database import plain_type
from ..errors import UnsupportedDatabase
from ..fence.token import Identity
from ..model.keys import key_values, keys_of
from ..sessions.writer import Writer
from .advisory_locks import ISOLATION, LockKey, check_connection, check_database, locks_of
from .reads import ReadBack
from .ready_rows import LIMIT
from .spec import ClaimSpec, Request, Taken
from .strategy import Strategy

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

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        check_database(database)
        super().__init__(spec, database)
        self._check_keys()
        self._check_read = ReadBack(self.mapping, self._select_locked)

    @staticmethod
    def refusal(database: Database) -> str | None:
        return None if database.advisory_locks else "it has no advisory locks for rows"

    def take(self, writer: Writer, request: Request) -> Taken:
        _check_bind(writer)
        connection = writer.connection
        locks = locks_of(connection)
        locks.reconcile(connection)
        jobs: list[Any] = []
        kept: dict[Identity, LockKey] = {}
        seen: list[LockKey] = []
        with locks.doubted():
            while len(jobs) < request.limit:
                locked = self._lock(writer, {*locks.held, *seen}, request.limit - len(jobs))
                passed = self._check(writer, request, locked) if locked else {}
                mine = _one_row_for_each_lock(locked, passed)
                failed = [row.key for row in locked if mine.get(row.identity) != row.key]
                locks.unlock(connection, failed)
                jobs += [passed[identity] for identity in mine]
                kept |= mine
                seen += [row.key for row in locked]
                if not failed:
                    break
            hold = locks.keep(kept, self._rounds(request, jobs))
        if not seen:
            check_connection(connection, self.database)
        return Taken(jobs, hold=hold, candidates=len(seen), lost=len(seen) - len(jobs))

    def _rounds(self, request: Request, jobs: Sequence[Any]) -> dict[Identity, int]:
        """Return the round of each row: a new round may take a row that nothing marks."""
        mapping = self.mapping
        if not mapping.has("round"):
            return {}
        if request.rows:
            index = mapping.round_ordinal
            rounds = [row[index] for row in jobs]
        else:
            rounds = [getattr(job, mapping.attributes["round"]) for job in jobs]
        return dict(zip(keys_of(mapping, jobs, rows=request.rows), rounds, strict=True))

    def statements(self) -> list[Executable]:
        levels = self.ready.levels.statements()
        return [*levels, self.lock_next, self._check_read.entities]

    # -- the locks ------------------------------------------------------

    def _lock(self, writer: Writer, known: Collection[LockKey], limit: int) -> list[Locked]:
        statement = self.lock_next_but_known if known else self.lock_next
        always: dict[str, Any] = {
            "sa_jobqueue_backend": self.database.told_backend(driver_connection(writer.connection))
        }
        if known:
            always["sa_jobqueue_tables"], always["sa_jobqueue_rows"] = map(
                list, zip(*known, strict=True)
            )
        found = self.ready.levels.collect(
            writer,
            limit,
            lambda **parameters: list(writer.rows(statement, {**always, **parameters}).all()),
        )
        return [Locked(tuple(row[:-2]), (row[-2], row[-1])) for row in found]

    @cached_property
    def lock_next(self) -> Any:
        """Lock the next rows, on a connection that has no rows locked."""
        return self._locking()

    @cached_property
    def lock_next_but_known(self) -> Any:
        """Lock the next rows, but not those that we have locked or looked at.

        The locks are re-entrant: we would get our own rows again.
        """
        numbers = ARRAY(Integer)
        arrays = [
            bindparam(name, type_=numbers) for name in ("sa_jobqueue_tables", "sa_jobqueue_rows")
        ]
        known = (
            func.unnest(*(cast(array, numbers) for array in arrays))
            .table_valued("in_table", "in_row", name="sa_jobqueue_known")
            .render_derived()
        )
        return self._locking(tuple_(*self._lock_key).not_in(select(*known.c)))

    def _locking(self, *criteria: ColumnElement[bool]) -> Any:
        columns: list[Any] = [*self.mapping.key_attributes, *self._lock_key]
        names = [f"sa_jobqueue_{index}" for index in range(len(columns))]
        labelled = [column.label(name) for column, name in zip(columns, names, strict=True)]
        candidates = (
            self.candidates(*labelled)
            .where(*self._sound, *criteria)
            .offset(literal_column("0"))
            .subquery("sa_jobqueue_candidates")
        )
        found = [candidates.c[name] for name in names]
        return select(*found).where(func.pg_try_advisory_lock(*found[-2:])).limit(LIMIT)

    def candidates(self, *columns: Any) -> Any:
        """Select claimable rows, in claim order if the class has an order."""
        if self.mapping.is_queue:
            return self.ready.select(*columns, plain=True).limit(None)
        ordered = self.mapping.is_ordered or not self.spec.own_order
        order = self.spec.order if ordered else ()
        criteria = [*self.spec.where_round_ranges, *self._in_a_round]
        return select(*columns).where(*criteria).order_by(*order)

    @property
    def _in_a_round(self) -> list[ColumnElement[bool]]:
        """The criterion that a row's round has not done it, for a class with RoundMixin alone."""
        mapping = self.mapping
        if mapping.is_queue or not mapping.has("round") or self.spec.of_round:
            return []
        return [mapping.attribute("round") > 0]

    @property
    def _sound(self) -> list[ColumnElement[bool]]:
        """The criteria that advisory locks work on this connection.

        Where they do not, no row is found and no lock is taken, and then
        :func:`check_connection` raises the reason. So the check costs no round trip.
        """
        known = func.coalesce(
            bindparam("sa_jobqueue_backend", type_=Integer), func.pg_backend_pid()
        )
        return [
            func.current_setting("transaction_isolation").in_(_ISOLATION),
            func.pg_backend_pid() == known,
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
        hashed = self._hash()
        key, *more = self.mapping.key_attributes
        if more or not isinstance(plain_type(key.type), Integer):
            return hashed
        number = type_coerce(key, BigInteger)
        small = number.between(literal_column(str(SMALLEST)), literal_column(str(LARGEST)))
        return case((small, cast(number, Integer)), else_=hashed)

    def _hash(self) -> ColumnElement[Any]:
        """Hash the key into 32 bits; two rows with one hash cannot be claimed at the same time."""
        row = func.row(*self.mapping.key_attributes)
        if self.database.hashes_records:
            return func.hash_record(row, type_=Integer)
        return func.hashtext(cast(row, String), type_=Integer)

    def _check_keys(self) -> None:
        """Refuse keys whose text depends on a session's settings, where text is hashed."""
        plain = (Integer, String, Uuid)
        if not self.database.hashes_records and not all(
            isinstance(plain_type(key.type), plain) for key in self.mapping.keys
        ):
            raise UnsupportedDatabase(
                f"the key of {self.mapping} cannot be locked on {self.database}: before "
                "PostgreSQL 14 only integers, strings and UUIDs can; upgrade the server"
            )

    # -- the post-check -------------------------------------------------

    def _check(
        self, writer: Writer, request: Request, locked: Sequence[Locked]
    ) -> dict[Identity, Any]:
        """Read the locked rows that still fulfil all criteria."""
        keys = {"sa_jobqueue_keys": key_values([row.identity for row in locked])}
        if request.rows:
            jobs = list(writer.rows(self._check_read.rows, keys).all())
        else:
            found = writer.orm(self._check_read.entities, keys, populate_existing=True)
            jobs = list(found.unique().scalars().all())
        return dict(zip(keys_of(self.mapping, jobs, rows=request.rows), jobs, strict=True))

    def _select_locked(self, *columns: Any) -> Any:
        """Select the locked rows that still fulfil all criteria."""
        ready = self.ready
        claimable = [ready.has_status, *ready.due] if self.mapping.is_queue else self._in_a_round
        return select(*columns).where(
            ready.key_is_in("sa_jobqueue_keys"), *claimable, *self.spec.where
        )


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
