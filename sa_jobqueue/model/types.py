"""What types of columns have in common; SQLAlchemy has no public words for it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.types import TypeEngine


def same_kind(left: TypeEngine[Any], right: TypeEngine[Any]) -> bool:
    """Tell whether two types hold the same kind of value, such as INTEGER and BIGINT."""
    return left._type_affinity is right._type_affinity


def variant_of(type_: TypeEngine[Any], dialect: str) -> TypeEngine[Any] | None:
    """Return what ``with_variant()`` has given a type for a dialect; None: nothing."""
    return type_._variant_mapping.get(dialect)
