"""Types and expressions of SQL that all databases share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Cast, ColumnElement, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import String, TypeDecorator, TypeEngine, UserDefinedType

Value = TypeVar("Value")


class TableExpression(ColumnElement[Value]):
    """An expression made of a table; a subclass says its type and how it is compiled."""

    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's own protocol, for the statement cache
        ("table", InternalTraversal.dp_clauseelement)
    ]
    inherit_cache: Any = True

    def __init__(self, table: Table) -> None:
        self.table = table


class IntegerLiterals(UserDefinedType[Sequence[int]]):
    """A list of integers in parentheses, written into the SQL text as the right side of IN."""

    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Any:
        """Return the function that writes integers, None as NULL, and refuses anything else."""

        def write(value: Sequence[int | None]) -> str:
            words = ("NULL" if number is None else str(int(number)) for number in value)
            return f"({','.join(words)})"

        return write


class OrNull(TypeDecorator[Any]):
    """Binds None as NULL, and every other value as the given type does.

    A list of keys may hold a NULL, which no key's type expects.
    """

    impl = String
    cache_ok = True

    def __init__(self, kind: TypeEngine[Any]) -> None:
        self.kind = kind
        self.impl = kind  # type: ignore[assignment]  # an instance

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return the function that makes a value for the driver; None: the value as it is."""
        bind = self.kind.dialect_impl(dialect).bind_processor(dialect)
        if bind is None:
            return None
        return lambda value: None if value is None else bind(value)


def or_null(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type of a parameter for keys of this type."""
    return OrNull(kind) if isinstance(kind, TypeDecorator) else kind


class as_enum(Cast[Any]):  # noqa: N801 - reads as the SQL function that it is
    """A literal word, cast to its enum where the database has enums as types of their own.

    PostgreSQL takes the words of a CASE for text, and refuses them.
    """

    inherit_cache = True


@compiles(as_enum)
def _word(element: as_enum, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clause, **kw))


@compiles(as_enum, "postgresql")
def _cast_word(element: as_enum, compiler: Any, **kw: Any) -> str:
    return str(compiler.visit_cast(element, **kw))
