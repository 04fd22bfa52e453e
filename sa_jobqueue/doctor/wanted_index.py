"""The indexes that a queue wants, derived from its criteria and its order.

The claim wants the columns that are compared for equality, then those of the order, and
the primary key last. A class without JobMixin has no status: there a criterion such as
``last_mail_at < started`` is a range, and the index is (equality columns, range column,
key). reap() wants the status and owner_date.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from ..model.indexes import (
    EQUALITIES,
    RANGES,
    claim_index,
    compared,
    index_of,
    index_serving,
    reap_index,
)
from ..model.mapping import QueueMapping
from ..strategies import ClaimSpec

#: ``IS NULL`` leads to a single range of an index, as ``=`` does.
_EQUALITIES_AND_NULL = EQUALITIES | {operators.is_}


@dataclass(frozen=True)
class WantedIndex:
    """The index that leads a statement to its rows.

    Attributes:
        index: its best declaration.
        leading: the columns that come first, in any order.
        further: other columns that are compared for equality, which may stand among them.
        order: the columns that follow; None where the order is by expressions.
        status: the status column, which a partial index need not hold.
    """

    index: Index
    leading: tuple[str, ...]
    further: frozenset[str]
    order: tuple[IndexColumn, ...] | None
    status: str | None = None

    @property
    def of_model(self) -> bool:
        """Whether the model declares the index."""
        return self.index.table is not None and self.index in self.index.table.indexes

    def name(self, dialect: Dialect) -> str:
        """Return its name in the database, which a naming convention may make."""
        return name_of(self.index, dialect)

    def fitted_by(self, index: ServerIndex, predicate: str | None) -> bool:
        """Tell whether an index has the wanted columns, whatever its predicate.

        Args:
            predicate: the wanted predicate; an index with it need not hold the status.
        """
        if self.order is None or not index.ordered or index.unusable:
            return False
        missing = set(self.leading)
        if index.predicate is not None and same_predicate(index.predicate, predicate):
            missing.discard(self.status or "")
        equal = self.further | set(self.leading)
        first = list(takewhile(lambda column: column.name in equal, index.walked))
        # A column further back that is compared for equality is equal in all rows of the walk.
        rest = [column for column in index.walked if column.name not in equal]
        return missing <= {column.name for column in first} and _in_order(rest, self.order)

    def create_statement(self, dialect: Dialect) -> str:
        """Return the CREATE INDEX statement."""
        return create_statement(self.index, dialect)

    def predicate(self, examination: Examination, dialect: Dialect) -> str | None:
        """Return its predicate on this database, as SQLAlchemy writes it."""
        where = examination.predicate(self.index)
        if where is None:
            return None
        how = {"literal_binds": True, "include_table": False}
        return as_value(dialect, str(where.compile(dialect=dialect, compile_kwargs=how)))

    def __str__(self) -> str:
        columns = (_index_column(expression) or expression for expression in self.index.expressions)
        return f"({', '.join(map(str, columns))})"


def name_of(index: Index, dialect: Dialect) -> str:
    """Return the name of an index in the database, without quotes."""
    name = dialect.identifier_preparer.format_constraint(index, _alembic_quote=False)
    assert name is not None
    return name


def create_statement(index: Index, dialect: Dialect) -> str:
    """Return a CREATE INDEX statement, as a user types it."""
    written = str(CreateIndex(index).compile(dialect=dialect))
    return as_value(dialect, " ".join(written.split()))


# -- the index of a claim -----------------------------------------------


def wanted_claim_index(spec: ClaimSpec) -> WantedIndex:
    """Derive the index of a claim.

    Raises:
        ArgumentError: no index can serve it.
    """
    return _of_queue_class(spec) if spec.mapping.is_queue else _of_plain_class(spec)


def _of_queue_class(spec: ClaimSpec) -> WantedIndex:
    mapping = spec.mapping
    equal = _compared_columns(spec, _EQUALITIES_AND_NULL)
    leading = [name for name in map(_name, mapping.equality) if name in equal]
    status = mapping.column("status").name
    own = claim_index(mapping)
    serves = (
        not spec.order_by and spec.ready in mapping.ready and len(leading) == len(mapping.equality)
    )
    return WantedIndex(
        index=own if serves and own is not None else _own_index(spec),
        leading=(*leading, status),
        further=frozenset(equal),
        order=_order(spec),
        status=status,
    )


def _of_plain_class(spec: ClaimSpec) -> WantedIndex:
    ranged = tuple(IndexColumn(name) for name in _ranges(spec)[:1])
    return WantedIndex(
        index=_own_index(spec),
        leading=tuple(compared_for_equality(spec)),
        further=frozenset(_compared_columns(spec, _EQUALITIES_AND_NULL)),
        order=_order(spec) if is_ordered(spec) else ranged,
    )


def _own_index(spec: ClaimSpec) -> Index:
    """Declare an index for this queue alone, beside the index of its class."""
    mapping = spec.mapping
    return index_serving(
        mapping,
        spec.where,
        order=() if range_before_order(spec) else spec.order_by or mapping.order,
        ready=spec.ready if mapping.is_queue else None,
    )


def is_ordered(spec: ClaimSpec) -> bool:
    """Tell whether the claim has an ORDER BY; a class without JobMixin may have none."""
    return spec.mapping.is_ordered or not spec.own_order


def range_before_order(spec: ClaimSpec) -> str | None:
    """Name the range column beside which no index can serve the order, if there is one."""
    ranges = _ranges(spec)
    if spec.mapping.is_queue or not is_ordered(spec) or not ranges:
        return None
    order = _order(spec)
    served = order is not None and (not order or order[0].name in ranges)
    return None if served else ranges[0]


def lacks_criterion(spec: ClaimSpec) -> list[str]:
    """Name the columns that lead the model's claim index, if the claim has no criteria at all."""
    return [] if spec.where else list(map(_name, spec.mapping.equality))


def compared_for_equality(spec: ClaimSpec) -> list[str]:
    """Name the columns that the criteria compare for equality."""
    return _compared_columns(spec, EQUALITIES)


def order_text(spec: ClaimSpec) -> str:
    """Return the order as it stands behind ORDER BY."""
    texts: dict[str, str] = {}
    for element in spec.order:
        column = _index_column(element, spec.mapping)
        name = str(element) if column is None else column.name
        # A column that comes a second time orders nothing.
        texts.setdefault(name, str(column or element))
    return ", ".join(texts.values())


def same_predicate(found: str | None, wanted: str | None) -> bool:
    """Tell whether two predicates are the same, whatever their spelling."""
    return normalised(found) == normalised(wanted)


# -- the index of reap() ------------------------------------------------


def wanted_reap_index(spec: ClaimSpec, examination: Examination) -> WantedIndex:
    """Derive the index that leads to the oldest claims of a queue."""
    mapping = spec.mapping
    status = mapping.column("status").name
    own = index_of(mapping.table, "reap")
    holds_all = own is not None and examination.predicate(own) is None
    return WantedIndex(
        index=own if own is not None and holds_all else reap_index(mapping, spec.during),
        leading=(status,),
        further=frozenset(_compared_columns(spec, _EQUALITIES_AND_NULL))
        & set(map(_name, mapping.equality)),
        order=(IndexColumn(mapping.column("owner_date").name),),
        status=status,
    )


# -- other indexes of the model -------------------------------------------


def as_declared(index: Index) -> WantedIndex:
    """Want an index with the columns that the model declares, in their order."""
    columns = [_index_column(expression) for expression in index.expressions]
    order = tuple(column for column in columns if column is not None)
    return WantedIndex(
        index=index,
        leading=(),
        further=frozenset(),
        order=order if len(order) == len(columns) else None,
    )


# -- what is compared, and what is ordered ------------------------------


def _in_order(walked: Sequence[IndexColumn], order: Sequence[IndexColumn]) -> bool:
    """Tell whether an index can be walked in this order, forwards or backwards."""
    start = list(walked[: len(order)])
    return start in (list(order), [column.reversed() for column in order])


def _order(spec: ClaimSpec) -> tuple[IndexColumn, ...] | None:
    """Return the columns of the claim order; None where it has expressions.

    Columns that order nothing are left out: repeated columns, and those with the same value
    in all claimed rows.
    """
    mapping = spec.mapping
    constant = set(compared_for_equality(spec))
    if mapping.is_queue:
        constant.add(mapping.column("status").name)
    found: dict[str, IndexColumn] = {}
    for element in spec.order:
        column = _index_column(element, mapping)
        if column is None:
            return None
        if column.name not in constant:
            found.setdefault(column.name, column)
    return tuple(found.values())


def _index_column(element: Any, mapping: QueueMapping | None = None) -> IndexColumn | None:
    plain, descending = _clause(element), False
    if isinstance(plain, UnaryExpression) and plain.modifier in (
        operators.desc_op,
        operators.asc_op,
    ):
        descending = plain.modifier is operators.desc_op
        plain = _clause(plain.element)
    if not isinstance(plain, Column) or (mapping is not None and not _is_of(plain, mapping)):
        return None
    return IndexColumn(plain.name, descending)


def _ranges(spec: ClaimSpec) -> list[str]:
    equal = compared_for_equality(spec)
    return [name for name in _compared_columns(spec, RANGES) if name not in equal]


def _compared_columns(spec: ClaimSpec, comparisons: Collection[Any]) -> list[str]:
    """Name the table's columns that criteria compare with a constant by these operators."""
    columns = map(_clause, compared(spec.where, comparisons))
    return [
        column.name
        for column in columns
        if isinstance(column, Column) and _is_of(column, spec.mapping)
    ]


def _name(attribute: Any) -> str:
    return str(_clause(attribute).name)


def _clause(element: Any) -> Any:
    return element.__clause_element__() if hasattr(element, "__clause_element__") else element


def _is_of(column: Column[Any], mapping: QueueMapping) -> bool:
    """Tell whether a column, annotated or not, belongs to the mapped table."""
    return getattr(column.table, "fullname", None) == mapping.table.fullname
