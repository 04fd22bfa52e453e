"""The index that a queue's claim wants, worked out from its criteria and its order.

Columns that are compared for equality, then those of the order, the primary key
last. A class without JobMixin has no status: there a criterion such as
``last_mail_at < started`` is a range, and the index is (equality columns, range
column, key).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Index, True_
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import UnaryExpression

from ..dialects.examination import Examination, IndexColumn, ServerIndex, normalised
from ..indexes import claim_index, index_name, index_serving
from ..mapping import QueueMapping
from ..strategies import ClaimSpec

_EQUALITIES = {operators.eq}
_ALIKE = {operators.eq, operators.is_}
_RANGES = {operators.lt, operators.le, operators.gt, operators.ge, operators.between_op}


@dataclass(frozen=True)
class Wanted:
    """The index by which a claim walks to its rows.

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
    def name(self) -> str:
        """What it is called in the model."""
        return str(self.index.name)

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
        walked = index.walked
        for place in range(len(walked) + 1):
            if not missing and _walks(walked[place:], self.order):
                return True
            if place == len(walked) or walked[place].name not in equal:
                return False
            missing.discard(walked[place].name)
        return False

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
    order = _order(spec.order, mapping)
    ours = claim_index(mapping)
    own = (
        ours is not None
        and not spec.order_by
        and spec.ready in mapping.ready
        and len(leading) == len(mapping.equality)
    )
    return Wanted(
        index=ours if own and ours is not None else _serving(spec, order),
        leading=(*leading, status),
        further=frozenset(equal),
        order=order,
        status=status,
    )


def _of_class(spec: ClaimSpec) -> Wanted:
    equal, ranges = compared_for_equality(spec), _compared(spec, _RANGES)
    behind = tuple(IndexColumn(name) for name in ranges[:1] if name not in equal)
    return Wanted(
        index=_serving(spec, ()),
        leading=tuple(equal),
        further=frozenset(_compared(spec, _ALIKE)),
        order=_order(spec.order, spec.mapping) if spec.order_by else behind,
    )


def _serving(spec: ClaimSpec, order: Sequence[IndexColumn] | None) -> Index:
    """Declare an index of this queue's own, beside the one of its class."""
    mapping = spec.mapping
    purpose = ["claim", *(column.name for column in order or ())]
    return index_serving(
        mapping,
        spec.where,
        order=() if range_before_order(spec) else spec.order_by or mapping.order,
        ready=spec.ready if mapping.is_queue else None,
        name=index_name(mapping.table, "_".join(purpose)),
    )


def range_before_order(spec: ClaimSpec) -> str | None:
    """Name the range column beside which no index can serve the order; None: there is none."""
    ranges = _compared(spec, _RANGES)
    if spec.mapping.is_queue or not spec.order_by or not ranges:
        return None
    order = _order(spec.order, spec.mapping)
    return None if order is not None and order[0].name in ranges else ranges[0]


def compared_for_equality(spec: ClaimSpec) -> list[str]:
    """Name the columns that the criteria compare for equality."""
    return _compared(spec, _EQUALITIES)


def said_order(spec: ClaimSpec) -> str:
    """Say an order as it stands behind ORDER BY."""
    order = _order(spec.order, spec.mapping)
    return ", ".join(map(str, order if order is not None else spec.order))


def same_predicate(found: str | None, wanted: str | None) -> bool:
    """Tell whether two predicates are the same, however they are printed."""
    return normalised(found) == normalised(wanted)


def _walks(walked: Sequence[IndexColumn], order: Sequence[IndexColumn]) -> bool:
    """Tell whether an index can be walked in this order, forwards or backwards."""
    start = list(walked[: len(order)])
    return start in (list(order), [column.reversed() for column in order])


def _order(order: Iterable[Any], mapping: QueueMapping) -> tuple[IndexColumn, ...] | None:
    """Return the columns of an ORDER BY; None where it has something else."""
    found: dict[str, IndexColumn] = {}
    for element in order:
        column = _ordering(element, mapping)
        if column is None:
            return None
        found.setdefault(column.name, column)  # a second time it orders nothing
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


def _compared(spec: ClaimSpec, how: set[Any]) -> list[str]:
    """Name the table's columns that criteria compare with something else in this way."""
    found: dict[str, None] = {}
    for criterion in _flat(spec.where):
        if getattr(criterion, "operator", None) in how:
            column = _clause(criterion.left)
            if isinstance(column, Column) and _is_of(column, spec.mapping):
                found[column.name] = None
    return list(found)


def _flat(criteria: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for criterion in criteria:
        if getattr(criterion, "operator", None) is operators.and_:
            flat += _flat(criterion.clauses)
        elif not isinstance(criterion, True_):
            flat.append(criterion)
    return flat


def _name(attribute: Any) -> str:
    return str(_clause(attribute).name)


def _clause(element: Any) -> Any:
    return element.__clause_element__() if hasattr(element, "__clause_element__") else element


def _is_of(column: Column[Any], mapping: QueueMapping) -> bool:
    """Tell whether a column, however annotated, is one of the mapped table's."""
    return getattr(column.table, "fullname", None) == mapping.table.fullname
