"""Lists of integers that are written into the SQL text itself, on any database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.types import UserDefinedType


class IntegerLiterals(UserDefinedType[Sequence[int]]):
    """A list of integers in parentheses, as the right side of IN."""

    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Any:
        """Return the function that writes integers, None as NULL, and refuses anything else."""

        def write(value: Sequence[int | None]) -> str:
            words = ("NULL" if number is None else str(int(number)) for number in value)
            return f"({','.join(words)})"

        return write
