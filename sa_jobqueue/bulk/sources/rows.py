"""Where rows come from: what was given; read on from any row.

A row is a mapping of attribute names to values. :mod:`.row_files` has those of files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from itertools import islice
from typing import Any, TypeAlias

from ...errors import ArgumentError, SourceChanged
from ..source import in_step

Row: TypeAlias = Mapping[str, Any]
GivenRows: TypeAlias = Iterable[Row] | AsyncIterable[Row]


class Rows(ABC):
    """Rows that can be read from any of them on.

    Attributes:
        total: how many there are; None: nobody knows.
        details: what tells whether they are the same again, as JSON.
        seeks: whether a row is found by its place.
    """

    total: int | None = None
    details: Mapping[str, Any] = {}
    seeks = False

    @abstractmethod
    def read(self, index: int, place: int) -> Iterator[tuple[int, Row]]:
        """Yield rows with their places, from this one on, which was found at this place."""


def given_rows(given: Any) -> Rows:
    """Make rows out of something to iterate over, or a function that returns that.

    Raises:
        ArgumentError: it is neither.
    """
    if callable(given):
        make: Any = given
        return _CalledRows(make)
    if isinstance(given, Iterator | AsyncIterator):
        return _ReadOnce(given)
    if isinstance(given, Iterable | AsyncIterable) and not isinstance(given, Mapping):
        return _IterableRows(given)
    raise ArgumentError(
        "rows are an iterable of mappings, a function that returns one, or the path of a .csv or "
        f".jsonl file: {given!r}"
    )


class _IterableRows(Rows):
    def __init__(self, rows: GivenRows) -> None:
        self._rows = rows
        self.total = len(rows) if isinstance(rows, Sized) else None

    def read(self, index: int, place: int) -> Iterator[tuple[int, Row]]:
        return ((0, row) for row in islice(in_step(self._rows), index, None))


class _CalledRows(Rows):
    def __init__(self, make: Callable[[], GivenRows]) -> None:
        self._make = make

    def read(self, index: int, place: int) -> Iterator[tuple[int, Row]]:
        return ((0, row) for row in islice(in_step(self._make()), index, None))


class _ReadOnce(Rows):
    """An iterator: what it has yielded is gone."""

    def __init__(self, rows: Iterator[Row] | AsyncIterator[Row]) -> None:
        self._rows = in_step(rows)
        self._at = 0

    def read(self, index: int, place: int) -> Iterator[tuple[int, Row]]:
        if index < self._at:
            raise SourceChanged(
                f"row {index} is wanted, and this iterator has yielded {self._at} already: give a "
                "list, a file, or a function that returns a new iterator"
            )
        for row in self._rows:
            self._at += 1
            if self._at > index:
                yield 0, row
