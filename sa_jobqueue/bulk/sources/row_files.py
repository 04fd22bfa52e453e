"""Rows of a CSV file, or of one with a JSON object a line.

A row comes with the byte at which it begins, so that a load that goes on need not
read what is before it.
"""

from __future__ import annotations

import csv
import hashlib
import json
from abc import abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from uuid import UUID

from ...errors import ArgumentError
from .rows import Row, Rows, given_rows

Types: TypeAlias = Mapping[str, tuple[type, bool]]
Readers: TypeAlias = Mapping[type, Callable[[str], Any]]


def rows_from(given: Any, types: Types) -> Rows:
    """Make rows out of what a user gives.

    Args:
        given: a path, something to iterate over, or a function that returns that.
        types: the type of each attribute, and whether it may be None: of what a file
            says as text.

    Raises:
        ArgumentError: none of these.
    """
    return _file(Path(given), types) if isinstance(given, str | Path) else given_rows(given)


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


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError(text)
    return _TRUTHS[text.lower()]


_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

_FROM_TEXT: Readers = {
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


class _FileRows(Rows):
    seeks = True
    readers = _FROM_TEXT

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

    def _refused(self, place: int, why: str) -> ArgumentError:
        return ArgumentError(f"{self.path}: the row at byte {place} {why}")

    def _type(self, name: str) -> tuple[type, bool]:
        return self._types.get(name, (str, True))

    def _typed(self, name: str, value: Any) -> Any:
        kind, nullable = self._type(name)
        read = self.readers.get(kind)
        if read is None or not isinstance(value, str):
            return value
        if value == "" and nullable:
            return None
        try:
            return read(value)
        except (ValueError, ArithmeticError) as error:
            what = "JSON" if read is json.loads else kind.__name__
            raise ArgumentError(f"{self.path}: {name}={value!r} is no {what}") from error


class _CSVRows(_FileRows):
    """The first line has the names. An empty field is None, but for texts."""

    readers: Readers = {**_FROM_TEXT, dict: json.loads, list: json.loads}  # noqa: RUF012 - constant

    def _read(self, file: BinaryIO, place: int) -> Iterator[tuple[int, Row]]:
        names, begin = self._names(file)
        file.seek(place or begin)
        for here, fields in self._records(file):
            if len(fields) == len(names):
                yield here, dict(zip(names, map(self._typed, names, fields), strict=True))
            elif fields:  # not an empty line
                raise self._refused(here, f"has {len(fields)} fields, not {len(names)}")

    def _names(self, file: BinaryIO) -> tuple[list[str], int]:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        _, names = next(self._records(file), (0, []))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ArgumentError(f"{self.path}: the first line has {', '.join(twice)} twice")
        return names, file.tell()

    def _records(self, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        # Strictly: else a quotation mark too many makes one field of all that follows.
        records = csv.reader(map(_text, file), strict=True)
        while True:
            here = file.tell()
            try:
                fields = next(records, None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._refused(here, f"is no CSV in UTF-8: {error}") from error
            if fields is None:
                return
            yield here, fields

    def _typed(self, name: str, value: Any) -> Any:
        kind, nullable = self._type(name)
        if value == "" and nullable and kind is not str:
            return None
        return super()._typed(name, value)


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
                row = self._object(line, here)
                yield here, {name: self._typed(name, value) for name, value in row.items()}

    def _object(self, line: bytes, here: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise self._refused(here, f"is no JSON in UTF-8: {error}") from error
        if not isinstance(row, dict):
            raise self._refused(here, "is no JSON object")
        rounded = [name for name, value in row.items() if self._is_rounded(name, value)]
        if rounded:
            exactly = json.loads(line, parse_float=Decimal)
            row.update({name: exactly[name] for name in rounded})
        return row

    def _is_rounded(self, name: str, value: Any) -> bool:
        return type(value) is float and self._type(name)[0] is Decimal


def _text(line: bytes) -> str:
    return line.decode("utf-8")
