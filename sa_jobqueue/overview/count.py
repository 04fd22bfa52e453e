"""Counts that end at a limit: a queue with a million jobs is as quickly counted as a short one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select

from ..sessions.writer import Writer

#: The most jobs that are counted.
MOST = 10_000


@dataclass(frozen=True)
class Count:
    """A number of jobs.

    Attributes:
        number: how many were counted.
        more: whether there are more.
    """

    number: int
    more: bool = False

    def __str__(self) -> str:
        """Write it as ``1,234``, or ``10,000+``."""
        return f"{self.number:,}{'+' if self.more else ''}"

    @classmethod
    def up_to(cls, most: int, found: int, *, more: bool = False) -> Count:
        """Return a count that ends at `most`, of so many rows that were found."""
        return cls(min(found, most), more or found > most)


def count_rows(writer: Writer, keys: Select[Any]) -> Count:
    """Count the rows of a SELECT, up to MOST."""
    counted = keys.limit(MOST + 1).subquery("sa_jobqueue_counted")
    counting = select(func.count()).select_from(counted)
    return Count.up_to(MOST, int(writer.rows(counting).scalar_one()))
