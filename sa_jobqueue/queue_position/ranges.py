"""What stands before a value in an ORDER BY, as ranges that an index finds.

::

    Ordering.of(Email.sent_at.desc(), database).before(value, is_null=False)

A column that may be NULL makes two ranges where those come first: a list of
criteria, never an OR.
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
    """One of the expressions that a queue is ordered by.

    Attributes:
        what: the expression, as it compares.
        modifiers: its DESC and NULLS FIRST, the outermost first.
        nullable: whether it may be NULL.
        nulls_first: where those stand.
    """

    what: Any
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
        """List what stands before a value, each a range of its own."""
        if is_null:
            return [] if self.nulls_first else [self.what.is_not(None)]
        behind = operators.desc_op in self.modifiers
        sooner = self.what > value if behind else self.what < value
        return [self.what.is_(None), sooner] if self.nullable and self.nulls_first else [sooner]

    def same(self, value: Any, *, is_null: bool) -> ColumnElement[bool]:
        """Compare with a value for equality."""
        criterion: ColumnElement[bool] = self.what.is_(None) if is_null else self.what == value
        return criterion

    def again(self, column: Any) -> Any:
        """Order by another column in the same direction."""
        for modifier in reversed(self.modifiers):
            column = UnaryExpression(column, modifier=modifier)
        return column
