"""The indexes that a queue wants, worked out from its criteria and its order.

For the claim: columns that are compared for equality, then those of the order, the
primary key last. A class without JobMixin has no status: there a criterion such as
``last_mail_at < started`` is a range, and the index is (equality columns, range
column, key). For a reaper: the status and owner_date.
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

#: ``IS NULL`` leads to one place of an index, as ``=`` does.
_ALIKE = EQUALITIES | {operators.is_}


@dataclass(frozen=True)
class Wanted:
    """The index by which a statement walks to its rows.

    Attributes:
        index: as it is best declared.
        leading: the columns that come first, in any order.
        further: others that are compared for equality, and may stand among them.
        order: those that follow; None where the order is of no columns.
        status: the column that a partial index fixes.
    """

    index: Index
    leading: tuple[str, ...]
    further: frozenset[str]
    order: tuple[IndexColumn, ...] | None
    status: str | None = None

    @property
    def of_model(self) -> bool:
        """Whether the model declares it."""
        return self.index.table is not None and self.index in self.index.table.indexes

    def name(self, dialect: Dialect) -> str:
        """Return what it is called in the database, by a naming convention too."""
        return name_of(self.index, dialect)

    def fitted_by(self, index: ServerIndex, predicate: str | None) -> bool:
        """Tell whether an index has the columns, whatever its predicate leaves out.

        Args:
            predicate: the one that is wanted; an index of the same fixes the status.
        """
        if self.order is None or not index.ordered or index.unusable:
            return False
        missing = set(self.leading)
        if index.predicate is not None and same_predicate(index.predicate, predicate):
            missing.discard(self.status or "")
        equal = self.further | set(self.leading)
        led = list(takewhile(lambda column: column.name in equal, index.walked))
        # What is compared for equality further behind is the same in all rows that are met.
        behind = [column for column in index.walked if column.name not in equal]
        return missing <= {column.name for column in led} and _walks(behind, self.order)

    def create_statement(self, dialect: Dialect) -> str:
        """Return the CREATE INDEX."""
        return " ".join(str(CreateIndex(self.index).compile(dialect=dialect)).split())

    def predicate(self, examination: Examination, dialect: Dialect) -> str | None:
        """Return the predicate that it has on this database, as we say it."""
        where = examination.predicate(self.index)
        if where is None:
            return None
        how = {"literal_binds": True, "include_table": False}
        return str(where.compile(dialect=dialect, compile_kwargs=how))

    def __str__(self) -> str:
        columns = (_ordering(expression) or expression for expression in self.index.expressions)
        return f"({', '.join(map(str, columns))})"


def name_of(index: Index, dialect: Dialect) -> str:
    """Return what an index is called in the database, without quotes."""
    return dialect.identifier_preparer.format_index(index).strip('"`')


# -- the claim's --------------------------------------------------------


def wanted_index(spec: ClaimSpec) -> Wanted:
    """Work out the index of a claim.

    Raises:
        ArgumentError: no index can serve it.
    """
    return _of_queue(spec) if spec.mapping.is_queue else _of_class(spec)


def _of_queue(spec: ClaimSpec) -> Wanted:
    mapping = spec.mapping
    equal = _compared(spec, _ALIKE)
    leading = [name for name in map(_name, mapping.equality) if name in equal]
    status = mapping.column("status").name
    own = claim_index(mapping)
    serves = (
        not spec.order_by and spec.ready in mapping.ready and len(leading) == len(mapping.equality)
    )
    return Wanted(
        index=own if serves and own is not None else _serving(spec),
        leading=(*leading, status),
        further=frozenset(equal),
        order=_order(spec),
        status=status,
    )


def _of_class(spec: ClaimSpec) -> Wanted:
    behind = tuple(IndexColumn(name) for name in _ranges(spec)[:1])
    return Wanted(
        index=_serving(spec),
        leading=tuple(compared_for_equality(spec)),
        further=frozenset(_compared(spec, _ALIKE)),
        order=_order(spec) if is_ordered(spec) else behind,
    )


def _serving(spec: ClaimSpec) -> Index:
    """Declare an index of this queue's own, beside the one of its class."""
    mapping = spec.mapping
    return index_serving(
        mapping,
        spec.where,
        order=() if range_before_order(spec) else spec.order_by or mapping.order,
        ready=spec.ready if mapping.is_queue else None,
    )


def is_ordered(spec: ClaimSpec) -> bool:
    """Tell whether the claim has an ORDER BY: one of a class without the mixin may have none."""
    return spec.mapping.is_ordered or not spec.own_order


def range_before_order(spec: ClaimSpec) -> str | None:
    """Name the range column beside which no index can serve the order; None: there is none."""
    ranges = _ranges(spec)
    if spec.mapping.is_queue or not is_ordered(spec) or not ranges:
        return None
    order = _order(spec)
    served = order is not None and (not order or order[0].name in ranges)
    return None if served else ranges[0]


def compared_for_equality(spec: ClaimSpec) -> list[str]:
    """Name the columns that the criteria compare for equality."""
    return _compared(spec, EQUALITIES)


def said_order(spec: ClaimSpec) -> str:
    """Say an order as it stands behind ORDER BY."""
    said: dict[str, str] = {}
    for element in spec.order:
        column = _ordering(element, spec.mapping)
        name = str(element) if column is None else column.name
        said.setdefault(name, str(column or element))  # a second time it orders nothing
    return ", ".join(said.values())


def same_predicate(found: str | None, wanted: str | None) -> bool:
    """Tell whether two predicates are the same, however they are printed."""
    return normalised(found) == normalised(wanted)


# -- the reaper's -------------------------------------------------------


def wanted_by_reapers(spec: ClaimSpec, examination: Examination) -> Wanted:
    """Work out the index that leads to the oldest claims of a queue."""
    mapping = spec.mapping
    status = mapping.column("status").name
    own = index_of(mapping.table, "reap")
    of_all = own is not None and examination.predicate(own) is None
    return Wanted(
        index=own if own is not None and of_all else reap_index(mapping, spec.during),
        leading=(status,),
        further=frozenset(_compared(spec, _ALIKE)) & set(map(_name, mapping.equality)),
        order=(IndexColumn(mapping.column("owner_date").name),),
        status=status,
    )


# -- what is compared, and what is ordered ------------------------------


def _walks(walked: Sequence[IndexColumn], order: Sequence[IndexColumn]) -> bool:
    """Tell whether an index can be walked in this order, forwards or backwards."""
    start = list(walked[: len(order)])
    return start in (list(order), [column.reversed() for column in order])


def _order(spec: ClaimSpec) -> tuple[IndexColumn, ...] | None:
    """Return the columns of the claim order; None where it has something else.

    Without those that order nothing: of a second time, or the same in all rows.
    """
    mapping = spec.mapping
    constant = set(compared_for_equality(spec))
    if mapping.is_queue:
        constant.add(mapping.column("status").name)
    found: dict[str, IndexColumn] = {}
    for element in spec.order:
        column = _ordering(element, mapping)
        if column is None:
            return None
        if column.name not in constant:
            found.setdefault(column.name, column)
    return tuple(found.values())


def _ordering(element: Any, mapping: QueueMapping | None = None) -> IndexColumn | None:
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
    return [name for name in _compared(spec, RANGES) if name not in equal]


def _compared(spec: ClaimSpec, how: Collection[Any]) -> list[str]:
    """Name the table's columns that criteria compare with a constant in one of these ways."""
    columns = map(_clause, compared(spec.where, how))
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
    """Tell whether a column, however annotated, is one of the mapped table's."""
    return getattr(column.table, "fullname", None) == mapping.table.fullname
