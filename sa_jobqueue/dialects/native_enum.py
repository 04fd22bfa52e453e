"""A value of a native enum: PostgreSQL takes the words of a CASE for text, and refuses them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Cast
from sqlalchemy.ext.compiler import compiles


class as_enum(Cast[Any]):  # noqa: N801 - reads as the SQL function that it is
    """A literal word, cast to its enum where the database has enums as types of their own."""

    inherit_cache = True


@compiles(as_enum)
def _word(element: as_enum, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clause, **kw))


@compiles(as_enum, "postgresql")
def _cast_word(element: as_enum, compiler: Any, **kw: Any) -> str:
    return str(compiler.visit_cast(element, **kw))
