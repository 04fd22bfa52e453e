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
from .ready_rows import LIMIT
from .spec import ClaimSpec, Request, Taken
from .strategy import Strategy, kept

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

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        super().__init__(spec, database, indexed=indexed)
        self._check_keys()

    @staticmethod
    def refusal(database: Database) -> str | None:
        check_database(database)
        return None

    def take(self, writer: Writer, request: Request) -> Taken:
        _check_bind(writer)
        connection = writer.connection
        locks = locks_of(connection)
        locks.reconcile(connection)
        jobs: list[Any] = []
        ours: dict[Identity, LockKey] = {}
        seen: list[LockKey] = []
        locks.doubtful = True  # until all locks are accounted for
        while len(jobs) < request.limit:
            locked = self._lock(writer, {*locks.held, *seen}, request.limit - len(jobs))
            passed = self._check(writer, request, locked) if locked else {}
            mine = _one_row_for_each_lock(locked, passed)
            failed = [row.key for row in locked if mine.get(row.identity) != row.key]
            locks.unlock(connection, failed)
            jobs += [passed[identity] for identity in mine]
            ours |= mine
            seen += [row.key for row in locked]
            if not failed:
                break
        hold = locks.keep(ours, self.rounds(request, jobs))
        locks.doubtful = False
        if not seen:
            check_connection(connection, self.database)
        return Taken(jobs, hold=hold, candidates=len(seen), lost=len(seen) - len(jobs))

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        levels = self.ready.levels.statements()
        return [*levels, self.lock_rows(), self.check_locked()]

    # -- the locks ------------------------------------------------------

    def _lock(self, writer: Writer, known: Collection[LockKey], limit: int) -> list[Locked]:
        statement = self.lock_rows(but_known=bool(known))
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

    @kept
    def lock_rows(self, *, but_known: bool = False) -> Any:
        """Lock the next rows.

        Args:
            but_known: not those that we have locked or looked at. The locks are re-entrant: we
                would get our own rows again.
        """
        columns: list[Any] = [*self.mapping.key_attributes, *self._lock_key]
        names = [f"sa_jobqueue_{index}" for index in range(len(columns))]
        labelled = [column.label(name) for column, name in zip(columns, names, strict=True)]
        candidates = self.ready.select(*labelled, plain=True).limit(None).where(*self._sound)
        if but_known:
            candidates = candidates.where(tuple_(*self._lock_key).not_in(_known_locks()))
        candidates = candidates.offset(literal_column("0")).subquery("sa_jobqueue_candidates")
        found = [candidates.c[name] for name in names]
        return select(*found).where(func.pg_try_advisory_lock(*found[-2:])).limit(LIMIT)

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
        found = self.read(writer, request, self.check_locked(request.rows), keys)
        jobs = found if request.rows else [entity for (entity,) in found]
        return dict(zip(keys_of(self.mapping, jobs, rows=request.rows), jobs, strict=True))

    @kept
    def check_locked(self, rows: bool = False) -> Any:
        """Select the locked rows that still fulfil all criteria."""
        named = self.ready.key_is_in("sa_jobqueue_keys")
        return self.select_jobs(select, rows=rows).where(named, *self.ready.criteria)


def _known_locks() -> Any:
    """Select the locks that two parameters list, one of their tables and one of their rows."""
    numbers = ARRAY(Integer)
    names = ("sa_jobqueue_tables", "sa_jobqueue_rows")
    arrays = [cast(bindparam(name, type_=numbers), numbers) for name in names]
    known = func.unnest(*arrays).table_valued("in_table", "in_row", name="sa_jobqueue_known")
    return select(*known.render_derived().c)


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
