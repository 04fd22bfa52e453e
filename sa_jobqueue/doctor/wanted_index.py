"""The indexes that a queue wants, derived from its criteria and its order.

The claim wants the columns that are compared for equality, then those of the order, and
the primary key last. A class without JobMixin has no status: there a criterion such as
``last_mail_at < started`` is a range, and the index is (equality columns, range column,
key). reap() wants the status and owner_date.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Column, Index
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import UnaryExpression

from ..dialects.connections import as_value
from ..dialects.examination import Examination, IndexColumn, ServerIndex, normalised
from ..model.indexes import EQUALITIES, claim_index, compared, index_of, index_serving, reap_index
from ..strategies import ClaimSpec

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

    def predicate(self, examination: Examination, dialect: Dialect) -> str | None:
        """Return its predicate on this database, as SQLAlchemy writes it."""
        where: Any = examination.predicate(self.index)
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


def wanted_reap_index(spec: ClaimSpec, examination: Examination) -> WantedIndex:
    """Derive the index that leads to the oldest claims of a queue."""
    mapping, own = spec.mapping, index_of(spec.mapping.table, "reap")
    status = mapping.column("status").name
    if own is None or examination.predicate(own) is not None:
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


def create_statement(index: Index, dialect: Dialect) -> str:
    """Return a CREATE INDEX statement, as a user types it."""
    written = str(CreateIndex(index).compile(dialect=dialect))
    return as_value(dialect, " ".join(written.split()))


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
