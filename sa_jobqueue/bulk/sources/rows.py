"""Rows of an iterable or a function, which can be read from any index on.

A row is a mapping from attribute names to values. :mod:`.row_files` reads them from files.
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
    Sequence,
    Sized,
)
from itertools import islice
from typing import Any, TypeAlias

from ...errors import ArgumentError, SourceChanged
from ..source import sync_iterator

Row: TypeAlias = Mapping[str, Any]
GivenRows: TypeAlias = Iterable[Row] | AsyncIterable[Row]


class Rows(ABC):
    """Rows that can be read from any index on.

    Attributes:
        total: how many there are; None: nobody knows.
        details: JSON that differs where the rows are not the same again.
        seeks: whether a row is found by its byte offset.
    """

    total: int | None = None
    details: Mapping[str, Any] = {}
    seeks = False

    @abstractmethod
    def read(self, index: int, offset: int) -> Iterator[tuple[int, Row]]:
        """Yield rows from an index on, each with its byte offset; 0 where there are none.

        Args:
            offset: the byte offset of the first row wanted.
        """


def rows_from_iterable(given: Any) -> Rows:
    """Wrap an iterable of rows, or a function that returns such an iterable.

    Raises:
        ArgumentError: `given` is neither.
    """
    if callable(given):
        make: Any = given
        return _CalledRows(make)
    if isinstance(given, Iterator | AsyncIterator):
        return _ReadOnce(given)
    if isinstance(given, Iterable | AsyncIterable) and not isinstance(given, Mapping):
        return _IterableRows(given)
    raise ArgumentError(
        "rows are an iterable of mappings, a function that returns such an iterable, or the path "
        f"of a .csv or .jsonl file, not {given!r}"
    )


class _IterableRows(Rows):
    def __init__(self, rows: GivenRows) -> None:
        self._rows = rows
        self.total = len(rows) if isinstance(rows, Sized) else None

    def read(self, index: int, offset: int) -> Iterator[tuple[int, Row]]:
        return ((0, row) for row in islice(sync_iterator(self._rows), index, None))


class _CalledRows(Rows):
    def __init__(self, make: Callable[[], GivenRows]) -> None:
        self._make = make

    def read(self, index: int, offset: int) -> Iterator[tuple[int, Row]]:
        return ((0, row) for row in islice(sync_iterator(self._make()), index, None))


class _ReadOnce(Rows):
    """An iterator: the rows that it has yielded are gone."""

    def __init__(self, rows: Iterator[Row] | AsyncIterator[Row]) -> None:
        self._rows = sync_iterator(rows)
        self._yielded = 0

    def read(self, index: int, offset: int) -> Iterator[tuple[int, Row]]:
        if index < self._yielded:
            raise SourceChanged(
                f"row {index} is needed again, but this iterator has yielded {self._yielded} rows "
                "already: give a list, a file, or a function that returns a new iterator"
            )
        for row in self._rows:
            self._yielded += 1
            if self._yielded > index:
                yield 0, row


def group_by_columns(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[tuple[str, ...], list[Mapping[str, Any]]]]:
    """Group rows that have the same columns; their order within a group stays."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    yield from groups.items()
