"""advisory: lock rows by their key, write nothing, check once more what was locked.

PostgreSQL only, on a session bound to one connection. Any mapped class, with
JobMixin or without: the predicate says what is ready, and whoever marks a row
takes it out of the predicate.
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
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..dialects import Database
from ..errors import UnsupportedDatabase
from ..fence.token import Identity
from ..model.keys import key_values, keys_of
from ..model.plain_rows import row_columns
from ..sessions.writer import Writer
from .advisory_locks import LockKey, locks_of
from .advisory_session import ISOLATION, check_connection, check_database
from .base import LIMIT, Strategy
from .spec import ClaimSpec, Request, Taken

# Literals: a list of values would be written into the statement at each execution.
_ISOLATION: list[ColumnElement[str]] = [literal_column(f"'{level}'") for level in ISOLATION]

#: The integers that are their own lock key; of others a hash is.
SMALLEST, LARGEST = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class Locked:
    """One row whose lock was had."""

    identity: Identity
    key: LockKey


class Advisory(Strategy):
    """Rows locked by advisory locks of the connection, and not marked."""

    # The lock function stands outside of a sub-select that is fenced by OFFSET 0,
    # and the LIMIT outside of both: it runs for one row after the other, in
    # order, until enough were locked. Beside the criteria it would run before
    # some of them (331 locks for 100 rows), and under a sort for every row.
    #
    # The second statement sees what was committed before the locks were had: a
    # row that somebody finished between our snapshot and our lock is seen as
    # finished, and given back. Without it 11 to 256 rows of 30,000 ran twice.

    name = "advisory"
    marks: ClassVar[bool] = False
    any_class: ClassVar[bool] = True

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        check_database(database)
        super().__init__(spec, database)
        self._check_keys()

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
                mine = _one_each(locked, passed)
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
        """Note the round of each row: nothing in the table keeps a new one from taking it."""
        mapping = self.mapping
        if not mapping.has("round"):
            return {}
        if request.rows:
            place = mapping.round_ordinal
            rounds = [row[place] for row in jobs]
        else:
            rounds = [getattr(job, mapping.attributes["round"]) for job in jobs]
        return dict(zip(keys_of(mapping, jobs, rows=request.rows), rounds, strict=True))

    def statements(self) -> list[Executable]:
        steps = [self.first_step] if self.spec.steps else []
        return [*steps, self.lock_free, self.check_entities]

    # -- the locks ------------------------------------------------------

    def _lock(self, writer: Writer, known: Collection[LockKey], limit: int) -> list[Locked]:
        statement = self.lock_further if known else self.lock_free
        told: dict[str, Any] = {"claim_backend": self.database.told_backend(writer.connection)}
        if known:
            told["claim_tables"], told["claim_rows"] = map(list, zip(*known, strict=True))
        found = self.in_steps(
            writer,
            limit,
            lambda **parameters: list(writer.rows(statement, {**told, **parameters}).all()),
        )
        return [Locked(tuple(row[:-2]), (row[-2], row[-1])) for row in found]

    @cached_property
    def lock_free(self) -> Any:
        """Lock the next rows, on a connection that keeps none."""
        return self._locking()

    @cached_property
    def lock_further(self) -> Any:
        """Lock the next rows but those that we keep, or have looked at.

        The locks are re-entrant: we would have our own rows again.
        """
        numbers = ARRAY(Integer)
        arrays = [bindparam(name, type_=numbers) for name in ("claim_tables", "claim_rows")]
        known = (
            func.unnest(*(cast(array, numbers) for array in arrays))
            .table_valued("in_table", "in_row", name="known")
            .render_derived()
        )
        return self._locking(tuple_(*self._lock_key).not_in(select(*known.c)))

    def _locking(self, *criteria: ColumnElement[bool]) -> Any:
        columns: list[Any] = [*self.mapping.key_attributes, *self._lock_key]
        names = [f"claim_{place}" for place in range(len(columns))]
        labelled = [column.label(name) for column, name in zip(columns, names, strict=True)]
        candidates = (
            self.candidates(*labelled)
            .where(*self._sound, *criteria)
            .offset(literal_column("0"))
            .subquery("candidates")
        )
        found = [candidates.c[name] for name in names]
        return select(*found).where(func.pg_try_advisory_lock(*found[-2:])).limit(LIMIT)

    def candidates(self, *what: Any) -> Any:
        """Select claimable rows, in claim order if there is one."""
        if self.mapping.is_queue:
            return self.ready(*what, plain=True).limit(None)
        ordered = self.mapping.is_ordered or not self.spec.own_order
        order = self.spec.order if ordered else ()
        criteria = [*self.spec.where_round_ranges, *self._in_a_round]
        return select(*what).where(*criteria).order_by(*order)

    @property
    def _in_a_round(self) -> list[ColumnElement[bool]]:
        """The criterion that a round has a row still before it, where rounds are all there is."""
        mapping = self.mapping
        if mapping.is_queue or not mapping.has("round") or self.spec.of_round:
            return []
        return [mapping.attribute("round") > 0]

    @property
    def _sound(self) -> list[ColumnElement[bool]]:
        """The criteria that a claim by advisory locks can work on this connection.

        Where it cannot, no row is found and no lock is taken; then
        :func:`check_connection` says why. So the check costs no round trip.
        """
        told = func.coalesce(bindparam("claim_backend", type_=Integer), func.pg_backend_pid())
        return [
            func.current_setting("transaction_isolation").in_(_ISOLATION),
            func.pg_backend_pid() == told,
        ]

    @cached_property
    def _lock_key(self) -> list[ColumnElement[Any]]:
        """What names a row's lock: the oid of its table, and its key or a hash of that.

        The oid keeps tables apart, and the partitions of one. An integer is taken as
        it is, so that pg_locks shows which rows are locked; if it has more than
        32 bits, its hash. So the lock is the same however wide a model says that
        its key is.
        """
        # SQLAlchemy has no system columns; this is how a column comes by its table.
        table: Any = sa_column("tableoid", Integer)
        table.table = self.mapping.table
        return [cast(table, Integer), self._small_key()]

    def _small_key(self) -> ColumnElement[Any]:
        hashed = self._hash()
        key, *more = self.mapping.key_attributes
        if more or not isinstance(_plain(key.type), Integer):
            return hashed
        number = type_coerce(key, BigInteger)
        small = number.between(literal_column(str(SMALLEST)), literal_column(str(LARGEST)))
        return case((small, cast(number, Integer)), else_=hashed)

    def _hash(self) -> ColumnElement[Any]:
        """Hash the key into 32 bits: two rows of one hash are not kept at once, at worst."""
        row = func.row(*self.mapping.key_attributes)
        if self.database.hashes_records:
            return func.hash_record(row, type_=Integer)
        return func.hashtext(cast(row, String), type_=Integer)

    def _check_keys(self) -> None:
        """Refuse keys whose text depends on a session's settings, where text is hashed."""
        plain = (Integer, String, Uuid)
        if not self.database.hashes_records and not all(
            isinstance(_plain(key.type), plain) for key in self.mapping.keys
        ):
            raise UnsupportedDatabase(
                f"the key of {self.mapping} cannot be locked on {self.database}: before "
                "PostgreSQL 14 only integers, strings and UUIDs can; upgrade the server"
            )

    # -- the post-check -------------------------------------------------

    def _check(
        self, writer: Writer, request: Request, locked: Sequence[Locked]
    ) -> dict[Identity, Any]:
        """Read those of the locked rows that still fulfil the whole predicate."""
        statement = self.check_rows if request.rows else self.check_entities
        keys = {"claim_keys": key_values([row.identity for row in locked])}
        if request.rows:
            jobs = list(writer.rows(statement, keys).all())
        else:
            found = writer.orm(statement, keys, populate_existing=True)
            jobs = list(found.unique().scalars().all())
        return dict(zip(keys_of(self.mapping, jobs, rows=request.rows), jobs, strict=True))

    @cached_property
    def check_entities(self) -> Any:
        """The post-check, of entities."""
        return self._checking(self.mapping.entity).options(*self.loading)

    @cached_property
    def check_rows(self) -> Any:
        """The post-check, of plain rows."""
        return self._checking(*row_columns(self.mapping, during=None, orm=True))

    def _checking(self, *what: Any) -> Any:
        ready = [self.is_ready, *self.due] if self.mapping.is_queue else self._in_a_round
        return select(*what).where(self.key_is_in("claim_keys"), *ready, *self.spec.where)


def _one_each(locked: Sequence[Locked], passed: Collection[Identity]) -> dict[Identity, LockKey]:
    """Pick the rows that passed the check, in the order locked: one lock each."""
    mine: dict[LockKey, Identity] = {}
    for row in locked:
        if row.identity in passed:
            mine.setdefault(row.key, row.identity)
    return {identity: key for key, identity in mine.items()}


def _check_bind(writer: Writer) -> None:
    if isinstance(writer.bind, Engine):
        raise UnsupportedDatabase(
            "advisory locks belong to one connection, and this session takes another one from its "
            "pool for each transaction: use `with advisory_session(engine) as session:`, or bind "
            "the session to a Connection"
        )


def _plain(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind
