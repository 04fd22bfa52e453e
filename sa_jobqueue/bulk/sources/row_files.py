"""Rows of a CSV file, or of a file with a JSON object on each line.

A row comes with its byte offset, so that a load that goes on need not read the rows
before it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from abc import abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from uuid import UUID

from ...errors import ArgumentError
from .rows import Row, Rows, rows_from_iterable

Types: TypeAlias = Mapping[str, tuple[type, bool]]
Readers: TypeAlias = Mapping[type, Callable[[str], Any]]


def rows_from(given: Any, types: Types) -> Rows:
    """Return rows of what a user gives.

    Args:
        given: a path, an iterable, or a function that returns an iterable.
        types: the type of each attribute, and whether it may be None, for values that
            a file has as text.

    Raises:
        ArgumentError: `given` is none of these.
    """
    if isinstance(given, str | Path):
        return _rows_of_file(Path(given), types)
    return rows_from_iterable(given)


def _rows_of_file(path: Path, types: Types) -> Rows:
    kinds: Mapping[str, type[_CSVRows | _JSONRows]] = {
        ".csv": _CSVRows,
        ".jsonl": _JSONRows,
        ".ndjson": _JSONRows,
    }
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ArgumentError(f"{path}: rows come from a file whose name ends in {', '.join(kinds)}")
    return kind(path, types)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def _duration(text: str) -> timedelta:
    """Read seconds, or what str() makes of a timedelta."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return timedelta(seconds=float(text))
    days, hours, minutes, seconds = found.groups()
    return timedelta(int(days or 0), float(seconds), minutes=int(minutes), hours=int(hours))


_DURATION = re.compile(r"(?:(-?\d+) days?, )?(\d+):([0-5]\d):([0-5]\d(?:\.\d{1,6})?)", re.ASCII)

_FROM_TEXT: Readers = {
    int: int,
    float: float,
    Decimal: Decimal,
    bool: _boolean,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    timedelta: _duration,
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
    def details(self) -> Mapping[str, Any]:  # type: ignore[override]  # the file is read on access
        with self.path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return {"file": self.path.name, "size": file.tell(), "sha256": sha256}

    def read(self, index: int, offset: int) -> Iterator[tuple[int, Row]]:
        with self.path.open("rb") as file:
            yield from self._read(file, offset)

    @abstractmethod
    def _read(self, file: BinaryIO, offset: int) -> Iterator[tuple[int, Row]]: ...

    def _row_error(self, offset: int, problem: str) -> ArgumentError:
        return ArgumentError(f"{self.path}: the row at byte {offset} {problem}")

    def _type(self, name: str) -> tuple[type, bool]:
        return self._types.get(name, (str, True))

    def _typed(self, name: str, value: Any) -> Any:
        kind, nullable = self._type(name)
        read = self.readers.get(kind)
        if kind is timedelta and type(value) in (int, float, Decimal):  # seconds, as JSON has them
            value = str(value)
        if read is None or not isinstance(value, str):
            return value
        if value == "" and nullable:
            return None
        try:
            return read(value)
        except (ValueError, ArithmeticError) as error:
            wanted = "JSON" if read is json.loads else kind.__name__
            if kind is timedelta:
                wanted += ": give seconds, or hours:minutes:seconds"
            raise ArgumentError(
                f"{self.path}: {name}={value!r} cannot be read as {wanted}"
            ) from error


class _CSVRows(_FileRows):
    """CSV whose first line has the names. An empty field is None, but not for texts."""

    readers: Readers = {**_FROM_TEXT, dict: json.loads, list: json.loads}  # noqa: RUF012 - constant

    def _read(self, file: BinaryIO, offset: int) -> Iterator[tuple[int, Row]]:
        names, first_row = self._names(file)
        file.seek(offset or first_row)
        for row_offset, fields in self._records(file):
            if len(fields) == len(names):
                yield row_offset, dict(zip(names, map(self._typed, names, fields), strict=True))
            elif fields:  # not an empty line
                raise self._row_error(row_offset, f"has {len(fields)} fields, not {len(names)}")

    def _names(self, file: BinaryIO) -> tuple[list[str], int]:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        _, names = next(self._records(file), (0, []))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ArgumentError(f"{self.path}: the first line has {', '.join(twice)} twice")
        return names, file.tell()

    def _records(self, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        # strict: otherwise a surplus quotation mark makes one field of all that follows.
        records = csv.reader(map(_text, file), strict=True)
        while True:
            offset = file.tell()
            try:
                fields = next(records, None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._row_error(offset, f"is not CSV in UTF-8: {error}") from error
            if fields is None:
                return
            yield offset, fields

    def _typed(self, name: str, value: Any) -> Any:
        kind, nullable = self._type(name)
        if value == "" and nullable and kind is not str:
            return None
        return super()._typed(name, value)


#: An escape of JSON for one of the two halves that UTF-16 writes a rare character with.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _JSONRows(_FileRows):
    """A JSON object on each line."""

    def _read(self, file: BinaryIO, offset: int) -> Iterator[tuple[int, Row]]:
        file.seek(offset)
        while True:
            row_offset = file.tell()
            line = file.readline()
            if not line:
                return
            if line.strip():
                row = self._object(line, row_offset)
                yield row_offset, {name: self._typed(name, value) for name, value in row.items()}

    def _object(self, line: bytes, offset: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise self._row_error(offset, f"is not JSON in UTF-8: {error}") from error
        if not isinstance(row, dict):
            raise self._row_error(offset, "is not a JSON object")
        if _SURROGATE.search(line):
            self._refuse_half_characters(row, offset)
        rounded = [name for name, value in row.items() if self._is_rounded(name, value)]
        if rounded:
            exact = json.loads(line, parse_float=Decimal)
            row.update({name: exact[name] for name in rounded})
        return row

    def _refuse_half_characters(self, row: dict[str, Any], offset: int) -> None:
        try:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise self._row_error(
                offset,
                f"has {half!r} alone, which is half of a character: UTF-16 writes it as two "
                "\\u escapes",
            ) from error

    def _is_rounded(self, name: str, value: Any) -> bool:
        return type(value) is float and self._type(name)[0] is Decimal


def _text(line: bytes) -> str:
    return line.decode("utf-8")
