"""Where rows come from: what was given, or a file; read on from any row.

A row is a mapping of attribute names to values. Rows of a file come with the place
at which they begin, so that a load that goes on need not read what is before it.
"""

from __future__ import annotations

import csv
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sized
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from uuid import UUID

from ..errors import ArgumentError, SourceChanged
from .source import in_step

Row: TypeAlias = Mapping[str, Any]
GivenRows: TypeAlias = Iterable[Row] | AsyncIterator[Row]
Types: TypeAlias = Mapping[str, tuple[type, bool]]


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


def rows_from(given: Any, types: Types) -> Rows:
    """Make rows out of what a user gives.

    Args:
        given: a path, something to iterate over, or a function that returns that.
        types: the type of each attribute, and whether it may be None: of what a file
            says as text.

    Raises:
        ArgumentError: none of these.
    """
    if isinstance(given, str | Path):
        return _file(Path(given), types)
    if callable(given):
        make: Any = given
        return _CalledRows(make)
    if isinstance(given, Iterator | AsyncIterator):
        return _ReadOnce(given)
    if isinstance(given, Iterable) and not isinstance(given, Mapping):
        return _IterableRows(given)
    raise ArgumentError(
        "rows are an iterable of mappings, a function that returns one, or the path of a .csv or "
        f".jsonl file: {given!r}"
    )


class _IterableRows(Rows):
    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self.total = len(rows) if isinstance(rows, Sized) else None

    def read(self, index: int, place: int) -> Iterator[tuple[int, Row]]:
        return ((0, row) for row in islice(self._rows, index, None))


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


# -- files --------------------------------------------------------------


def _file(path: Path, types: Types) -> Rows:
    kinds: Mapping[str, type[_CSVRows | _JSONRows]] = {
        ".csv": _CSVRows,
        ".jsonl": _JSONRows,
        ".ndjson": _JSONRows,
    }
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ArgumentError(f"{path} is none of {', '.join(kinds)}; what it is, its name says")
    return kind(path, types)


class _FileRows(Rows):
    seeks = True

    def __init__(self, path: Path, types: Types) -> None:
        self.path = path
        self._types = types

    @property
    def details(self) -> Mapping[str, Any]:  # type: ignore[override]  # read when asked for
        with self.path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return {"file": self.path.name, "size": file.tell(), "sha256": sha256}

    def read(self, index: int, place: int) -> Iterator[tuple[int, Row]]:
        with self.path.open("rb") as file:
            yield from self._read(file, place)

    @abstractmethod
    def _read(self, file: BinaryIO, place: int) -> Iterator[tuple[int, Row]]: ...

    def _typed(self, name: str, value: Any) -> Any:
        kind, nullable = self._types.get(name, (str, True))
        if value == "" and kind is not str:
            value = None if nullable else value
        read = _FROM_TEXT.get(kind)
        if read is None or not isinstance(value, str):
            return value
        try:
            return read(value)
        except (ValueError, ArithmeticError) as error:
            raise ArgumentError(f"{self.path}: {name}={value!r} is no {kind.__name__}") from error


class _CSVRows(_FileRows):
    """The first line has the names. An empty field is None, but for texts."""

    def _read(self, file: BinaryIO, place: int) -> Iterator[tuple[int, Row]]:
        names, begin = self._names(file)
        file.seek(place or begin)
        records = csv.reader(_lines(file))
        while True:
            here = file.tell()
            fields = next(records, None)
            if fields is None:
                return
            if len(fields) != len(names):
                if not fields:  # an empty line
                    continue
                raise ArgumentError(
                    f"{self.path}: the row at byte {here} has {len(fields)} fields, not "
                    f"{len(names)}"
                )
            yield here, dict(zip(names, map(self._typed, names, fields), strict=True))

    def _names(self, file: BinaryIO) -> tuple[list[str], int]:
        names = next(csv.reader(_lines(file)), [])
        return [name.removeprefix("\ufeff") for name in names], file.tell()


class _JSONRows(_FileRows):
    """An object a line."""

    def _read(self, file: BinaryIO, place: int) -> Iterator[tuple[int, Row]]:
        file.seek(place)
        while True:
            here = file.tell()
            line = file.readline()
            if not line:
                return
            if line.strip():
                row = json.loads(line)
                yield here, {name: self._typed(name, value) for name, value in row.items()}


def _lines(file: BinaryIO) -> Iterator[str]:
    # Not `for line in file`: tell() would be ahead of what was read.
    while line := file.readline():
        yield line.decode("utf-8")


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError(text)
    return _TRUTHS[text.lower()]


_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

_FROM_TEXT: Mapping[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    Decimal: Decimal,
    bool: _truth,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    bytes: bytes.fromhex,
}
