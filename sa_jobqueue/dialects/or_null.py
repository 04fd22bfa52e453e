"""The type of a key, or NULL: a list of keys may hold a NULL, which no key's type expects."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.types import String, TypeDecorator, TypeEngine


class OrNull(TypeDecorator[Any]):
    """Binds None as NULL, and every other value as the given type does."""

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
