"""The rows before a value in an ORDER BY, as ranges that an index finds.

::

    Ordering.of(Email.sent_at.desc(), database).before(value, is_null=False)

Where NULL comes first, a nullable column makes two ranges: a list of two criteria, never
an OR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import UnaryExpression

from ..dialects import Database


@dataclass(frozen=True, eq=False)
class Ordering:
    """An expression that a queue is ordered by.

    Attributes:
        expression: the expression, in a form that compares as it sorts.
        modifiers: its DESC and NULLS FIRST, the outermost first.
        nullable: whether it may be NULL.
        nulls_first: whether NULL comes before the other values.
    """

    expression: Any
    modifiers: tuple[Any, ...]
    nullable: bool
    nulls_first: bool

    @classmethod
    def of(cls, element: Any, database: Database) -> Ordering:
        """Take an element of an ORDER BY apart."""
        modifiers = []
        while isinstance(element, UnaryExpression) and element.modifier is not None:
            modifiers.append(element.modifier)
            element = element.element
        nulls_first = database.null_is_least != (operators.desc_op in modifiers)
        if operators.nulls_first_op in modifiers or operators.nulls_last_op in modifiers:
            nulls_first = operators.nulls_first_op in modifiers
        nullable = getattr(element, "nullable", True) is not False
        return cls(database.comparable(element), tuple(modifiers), nullable, nulls_first)

    def before(self, value: Any, *, is_null: bool) -> list[ColumnElement[bool]]:
        """List the criteria of what comes before a value, each for a range of its own."""
        if is_null:
            return [] if self.nulls_first else [self.expression.is_not(None)]
        descending = operators.desc_op in self.modifiers
        sooner = self.expression > value if descending else self.expression < value
        return (
            [self.expression.is_(None), sooner] if self.nullable and self.nulls_first else [sooner]
        )

    def same(self, value: Any, *, is_null: bool) -> ColumnElement[bool]:
        """Compare with a value for equality."""
        criterion: ColumnElement[bool] = (
            self.expression.is_(None) if is_null else self.expression == value
        )
        return criterion

    def of_column(self, column: Any) -> Any:
        """Order by another column in the same direction."""
        for modifier in reversed(self.modifiers):
            column = UnaryExpression(column, modifier=modifier)
        return column
