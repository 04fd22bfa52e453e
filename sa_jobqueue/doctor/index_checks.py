"""Checks of the indexes of a queue: their columns, their predicates, and the plan of the claim."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from sqlalchemy import Column, Index
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import UnaryExpression

from ..databases import Database, is_missing_index
from ..databases.connections import as_value
from ..model.indexes import (
    EQUALITIES,
    claim_index,
    compared,
    index_serving,
    job_indexes,
    key_index,
    reap_index,
)
from ..strategies import ClaimSpec
from .examination import (
    BATCH,
    Finding,
    IndexColumn,
    Plan,
    ServerIndex,
    Severity,
    Subject,
    normalised,
)

#: What a search belongs to whose index create_job_indexes() makes for any queue.
CLAIM = "the claim"

#: The name of an index that REINDEX CONCURRENTLY builds, or replaces.
_LEFT_BEHIND = re.compile(r"_cc(?:new|old)\d*$")

#: A plan that reads no more rows than this is good enough.
FEW_ROWS = 1_000 + 10 * BATCH


def check_index(subject: Subject) -> Iterator[Finding]:
    """Look for the indexes that the claim wants, and whether EXPLAIN walks the first."""
    lacks_criterion = subject.mapping.equality and not subject.spec.where
    yield from (_without_criterion if lacks_criterion else _claim_index)(subject)
    yield from _key_indexes(subject)
    for index in subject.indexes:
        if index.unusable and _LEFT_BEHIND.search(index.name):
            yield Finding.warning(
                f"{index.name} is what a REINDEX CONCURRENTLY has left behind: no statement uses "
                "it, and each write writes it, too",
                f"if no REINDEX runs now: DROP INDEX CONCURRENTLY {index.name}",
            )


def check_reap(subject: Subject) -> Iterator[Finding]:
    """Look for the index that reap() wants."""
    if subject.strategy.marks:
        wanted = wanted_reap_index(subject.spec, subject.database)
        yield _of_less_weight(Search(subject, "reap()", wanted))


def check_failed(subject: Subject) -> Iterator[Finding]:
    """Look for the index of failed jobs, where the model declares it."""
    index = job_indexes(subject.mapping.table).get("failed")
    if index is not None:
        who = "the search for failed jobs, which are neither counted nor listed without it"
        yield _of_less_weight(Search(subject, who, WantedIndex(index)))


@dataclass(frozen=True)
class Search:
    """The index that should lead a statement to its rows, and those that are there.

    Attributes:
        who: what the statement belongs to, as messages name it: the claim, or reap().
    """

    subject: Subject
    who: str
    wanted: WantedIndex

    @cached_property
    def name(self) -> str:
        """The name of the wanted index in the database."""
        return name_of(self.wanted.index, self.subject.connection.dialect)

    @cached_property
    def predicate(self) -> str | None:
        """The predicate that the wanted index has on this database."""
        subject = self.subject
        return self.wanted.predicate(subject.database, subject.connection.dialect)

    @cached_property
    def fitting(self) -> dict[str, ServerIndex]:
        """The table's indexes with the wanted columns, whatever their predicate, by name."""
        fits = self.wanted.fitted_by
        return {each.name: each for each in self.subject.indexes if fits(each, self.predicate)}

    @cached_property
    def serving(self) -> list[ServerIndex]:
        """The fitting indexes that are known to hold all rows of the search."""
        return [
            index
            for index in self.fitting.values()
            if index.predicate is None or same_predicate(index.predicate, self.predicate)
        ]

    @property
    def fix(self) -> str:
        """How the table gets the index, and what keeps autogenerate from dropping it."""
        replaces = any(index.name == self.name for index in self.subject.indexes)
        of_model, dialect = self.wanted.of_model, self.subject.connection.dialect
        create = " ".join(str(CreateIndex(self.wanted.index).compile(dialect=dialect)).split())
        fix = f"drop {self.name}, then " * replaces + as_value(dialect, create)
        if of_model or self.who == CLAIM:
            what = f"{self.subject.mapping if of_model else 'queue'}{', replace=True' * replaces}"
            fix += f" (while others write: sa_jobqueue.migration.create_job_indexes(op, {what}))"
        if not of_model:
            fix += "; declare it in __table_args__ too, or the next autogenerate drops it"
        return fix

    def __str__(self) -> str:
        where = f" WHERE {self.predicate}" if self.predicate else ""
        return f"{self.who}, which wants {self.wanted}{where}"


# -- the claim ----------------------------------------------------------


def _without_criterion(subject: Subject) -> Iterator[Finding]:
    """Ask for the queue with its criterion: a class alone is not what its workers claim."""
    entity = subject.mapping.entity.__name__
    names = " and ".join(each.key for each in subject.mapping.equality)
    compared = ", ".join(f"{entity}.{each.key} == .." for each in subject.mapping.equality)
    yield Finding.error(
        f'the claim index of {entity} begins with {names} (__queue_args__["equality"]), and this '
        "queue has no criteria: no index serves the claim of all jobs",
        f"give the queue with its criterion, as in JobQueue({entity}, {compared}), also to the "
        f"doctor; or take {names} out of equality",
    )


def _claim_index(subject: Subject) -> Iterator[Finding]:
    search = Search(subject, CLAIM, wanted_claim_index(subject.spec))
    by_expressions = search.wanted.order is None  # then only the plan tells
    if not search.fitting and not by_expressions:
        yield _misfit(search)
        return
    try:
        chosen = subject.claim_plan()
    except DBAPIError as error:
        if not is_missing_index(error):
            raise
        yield Finding.error(
            f"the claim names the index {search.name}, which is missing: it claims without the "
            "index, and locks more rows than it takes",
            search.fix,
        )
        return
    possible = subject.claim_plan(next(iter(search.fitting), ""))
    served = not possible.sorts if by_expressions else possible.walks(search.fitting)
    if not served and not search.serving:
        yield _misfit(search)
        return
    if search.fitting:
        yield _fit(search)
    yield _planned(search, chosen, possible)


def _planned(search: Search, chosen: Plan, possible: Plan) -> Finding:
    """Judge the plan that the database chooses where it could walk an index."""
    walked = _joined(search.fitting or possible.indexes)
    if not search.fitting or chosen.walks(search.fitting):
        return Finding(f"the claim walks {walked}, and sorts nothing")
    way = f"uses {_joined(chosen.indexes)}" if chosen.indexes else "reads the whole table"
    does = f"{way} and sorts" if chosen.sorts else way
    stops = not is_ordered(search.subject.spec) and not chosen.sorts  # when the batch is full
    few = (chosen.rows or 0) <= FEW_ROWS and possible.walks(search.fitting)
    if stops or few:
        return Finding(f"with these few rows the claim {does}; with more, it walks {walked}")
    return Finding.warning(
        f"the claim could walk {walked}, but {does}: {chosen.rows or 0:,} rows by the planner's "
        "estimate",
        f"ANALYZE the table ({search.subject.mapping.table.fullname}): the planner's statistics "
        "are old or missing; where that does not help, drop the index that it takes instead",
    )


def _key_indexes(subject: Subject) -> Iterator[Finding]:
    """Look for the index that finds the next job of each key."""
    limit = subject.spec.key_limit
    if limit is None:
        return
    who = f"the search for the next job of each {limit}"
    index = key_index(subject.mapping, limit.columns)
    if index is not None:
        yield _of_less_weight(Search(subject, who, WantedIndex(index)))
    else:
        key = [limit.names] if len(limit.names) > 1 else [*limit.names]
        yield Finding.warning(
            f"no index serves {who}: claims read all unclaimed jobs of a key",
            f'__queue_args__ = {{"per_key": {key}}} in the model',
        )


# -- a search, by the columns and the predicate of its index ------------


def _of_less_weight(search: Search) -> Finding:
    """Judge the index of a search that the claim can do without: a misfit is a warning."""
    found = _fit(search) if search.serving else _misfit(search)
    error = found.severity is Severity.ERROR
    return replace(found, severity=Severity.WARNING) if error else found


def _misfit(search: Search) -> Finding:
    """Say what is wrong with the index that comes nearest."""
    named = [index for index in search.subject.indexes if index.name == search.name]
    nearest = next(iter([*named, *search.fitting.values()]), None)
    if nearest is None:
        wrong = f"no index serves {search}: it reads, and sorts, many rows for each that it takes"
    elif nearest.unusable:
        wrong = f"{nearest} serves no statement: {nearest.unusable}"
    elif nearest.name in search.fitting:
        wrong = f"the predicate of {nearest} does not fit {search}"
    else:
        wrong = f"{nearest} does not fit {search}: it reads and sorts rows that it does not take"
    return Finding.error(wrong, search.fix)


def _fit(search: Search) -> Finding:
    """Judge the predicate of the index that serves."""
    index, predicate = next(iter([*search.serving, *search.fitting.values()])), search.predicate
    if predicate is None or any(serving.predicate for serving in search.serving):
        return Finding(f"{index} fits {search.who}")
    but = (
        f"it holds finished jobs too, and grows with them; the rows WHERE {predicate} would do"
        if search.serving
        else f"the model's index holds the rows WHERE {predicate}. Alembic does not see that the "
        "predicate has changed"
    )
    return Finding.warning(f"{index} serves {search.who}, but {but}", search.fix)


def _joined(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


# The indexes that a queue wants, derived from its criteria and its order.
#
# The claim wants the columns that are compared for equality, then those of the order, and
# the primary key last. A class without JobMixin has no status: there a criterion such as
# ``last_mail_at < started`` is a range, and the index is (equality columns, range column,
# key). reap() wants the status and owner_date.

#: ``IS NULL`` leads to a single range of an index, as ``=`` does.
_EQUALITIES_AND_NULL = EQUALITIES | {operators.is_}


@dataclass(frozen=True)
class WantedIndex:
    """The index that leads a statement to its rows.

    Attributes:
        index: its best declaration.
        leading: the columns that come first, in any order.
        equal: all columns that are equal in the rows; further ones may stand among the leading.
        status: the status column, which a partial index need not hold.
        any_order: columns of the index's end that a statement without an order does not need.
    """

    index: Index
    leading: frozenset[str] = frozenset()
    equal: frozenset[str] = frozenset()
    status: str = ""
    any_order: frozenset[str] = frozenset()

    @property
    def of_model(self) -> bool:
        """Whether the model declares the index."""
        return self.index.table is not None and self.index in self.index.table.indexes

    @property
    def order(self) -> list[IndexColumn] | None:
        """The columns behind the leading ones; None where the order is by expressions."""
        columns = [_index_column(expression) for expression in self.index.expressions]
        known = [column for column in columns if column is not None]
        behind = [each for each in known if each.name not in self.equal | self.any_order]
        return behind if len(known) == len(columns) else None

    def fitted_by(self, index: ServerIndex, predicate: str | None) -> bool:
        """Tell whether an index has the wanted columns, whatever its predicate.

        Args:
            predicate: the wanted predicate; an index with it need not hold the status.
        """
        order = self.order
        if order is None or not index.ordered or index.unusable:
            return False
        implied = index.predicate is not None and same_predicate(index.predicate, predicate)
        missing = self.leading - ({self.status} if implied else set())
        first = takewhile(lambda column: column.name in self.equal, index.walked)
        # A column further back that is compared for equality is equal in all rows of the walk.
        rest = [column for column in index.walked if column.name not in self.equal][: len(order)]
        walked = rest in (order, [column.reversed() for column in order])  # or backwards
        return walked and missing <= {column.name for column in first}

    def predicate(self, database: Database, dialect: Dialect) -> str | None:
        """Return its predicate on this database, as SQLAlchemy writes it."""
        where: Any = database.predicate(self.index)
        if where is None or isinstance(where, str):  # autogenerate writes down what it has read
            return where
        how = {"literal_binds": True, "include_table": False}
        return as_value(dialect, str(where.compile(dialect=dialect, compile_kwargs=how)))

    def __str__(self) -> str:
        columns = (_index_column(expression) or expression for expression in self.index.expressions)
        return f"({', '.join(map(str, columns))})"


def wanted_claim_index(spec: ClaimSpec) -> WantedIndex:
    """Derive the index of a claim.

    Raises:
        ArgumentError: no index can serve it.
    """
    mapping, own = spec.mapping, claim_index(spec.mapping)
    equal = _names(compared(spec.where, _EQUALITIES_AND_NULL))
    declared = _names(mapping.equality)
    ready = spec.ready if mapping.is_queue else None
    serves = mapping.is_queue and not spec.order_by and spec.ready in mapping.ready
    if own is None or not serves or not declared <= equal:
        order = spec.order_by or mapping.order
        own = index_serving(mapping, spec.where, order=order, ready=ready)
    if ready is None:
        any_order = frozenset() if is_ordered(spec) else _names(mapping.keys)
        leading = _names(compared(spec.where, EQUALITIES))
        return WantedIndex(own, leading, equal, any_order=any_order)
    status = mapping.column("status").name
    return WantedIndex(own, declared & equal | {status}, equal | {status}, status)


def wanted_reap_index(spec: ClaimSpec, database: Database) -> WantedIndex:
    """Derive the index that leads to the oldest claims of a queue."""
    mapping, own = spec.mapping, job_indexes(spec.mapping.table).get("reap")
    status = mapping.column("status").name
    if own is None or database.predicate(own) is not None:
        own = reap_index(mapping, spec.during)
    equal = _names(compared(spec.where, _EQUALITIES_AND_NULL)) & _names(mapping.equality)
    return WantedIndex(own, frozenset({status}), equal | {status}, status)


def is_ordered(spec: ClaimSpec) -> bool:
    """Tell whether the claim has an ORDER BY; a class without JobMixin may have none."""
    return spec.mapping.is_ordered or not spec.own_order


def same_predicate(found: str | None, wanted: str | None) -> bool:
    """Tell whether two predicates are the same, whatever their spelling."""
    return normalised(found) == normalised(wanted)


def name_of(index: Index, dialect: Dialect) -> str:
    """Return the name of an index in the database, without quotes."""
    name = dialect.identifier_preparer.format_constraint(index, _alembic_quote=False)
    assert name is not None
    return name


def _index_column(element: Any) -> IndexColumn | None:
    """Return a column of an index; None: an expression."""
    descending = False
    if isinstance(element, UnaryExpression):
        descending = element.modifier is operators.desc_op
        element = element.element
    return IndexColumn(element.name, descending) if isinstance(element, Column) else None


def _names(elements: Iterable[Any]) -> frozenset[str]:
    """Return the names of the columns among some expressions and attributes."""
    columns = (getattr(each, "__clause_element__", lambda each=each: each)() for each in elements)
    return frozenset(column.name for column in columns if isinstance(column, Column))
