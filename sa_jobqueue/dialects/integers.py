"""Lists of integers that stand in the statement itself, on any database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.types import UserDefinedType


class Integers(UserDefinedType[Sequence[int]]):
    """A list of integers as it stands in SQL."""

    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Any:
        """Write integers, and None as NULL; refuse what is neither."""

        def write(value: Sequence[int | None]) -> str:
            words = ("NULL" if number is None else str(int(number)) for number in value)
            return f"({','.join(words)})"

        return write
