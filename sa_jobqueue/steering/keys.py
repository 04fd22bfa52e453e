r"""Primary keys as people write them: ``7``, or ``north,7`` for a key of several columns.

A comma within a column of such a key is written as ``\,``, and a backslash as ``\\``. Dates and
times are written by ISO 8601, bytes by hexadecimal digits, and a member of an enum by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from sqlalchemy import Column, select
from sqlalchemy.orm import Session

from ..errors import ArgumentError
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..queue import JobQueue

Key = tuple[Any, ...]

#: How many keys a sentence names before it says "and 12 more".
NAMED = 5

#: The largest integer of a key, of 64 bits.
MOST_INTEGER = 2**63 - 1

#: The most digits before or behind the point of a decimal number of a key.
MOST_DIGITS = 65

#: A wide key, and a column of it: characters that are escaped, and others.
_WIDE = re.compile(r"(?:\\.|[^\\])*", re.S)
_PART = re.compile(r"((?:\\.|[^,\\])*)(?:,|$)", re.S)


def keys_from(mapping: QueueMapping, texts: Iterable[str]) -> list[Key]:
    """Read primary keys; each counts once.

    Raises:
        ArgumentError: a text that is no key of the table.
    """
    return list(dict.fromkeys(key_from(mapping, text) for text in texts))


def key_from(mapping: QueueMapping, text: str) -> Key:
    """Read a primary key.

    Raises:
        ArgumentError: it is no key of the table.
    """
    try:
        parts = _parts(text) if len(mapping.keys) > 1 else [text]
        return tuple(_value(*pair) for pair in zip(mapping.keys, parts, strict=True))
    except (ValueError, ArithmeticError, LookupError) as error:
        names = ",".join(column.name for column in mapping.keys)
        raise ArgumentError(f"{text!r} is no key of {mapping}, which is {names}") from error


def _parts(text: str) -> list[str]:
    """Divide the text of a wide key at its commas.

    Raises:
        ValueError: nothing follows a backslash.
    """
    if not _WIDE.fullmatch(text):
        raise ValueError(text)
    return [re.sub(r"\\(.)", r"\1", part, flags=re.S) for part in _PART.findall(f"{text},")[:-1]]


def _value(column: Column[Any], text: str) -> Any:
    kind = _type_of(column)
    return kind[text] if issubclass(kind, Enum) else _READERS.get(kind, _text)(text)


def _type_of(column: Column[Any]) -> type[Any]:
    try:
        return column.type.python_type
    except NotImplementedError:  # a type of the user's own
        return str


# What no database stores is refused here: some drivers refuse to ask for it.


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError(text)
    text.encode()  # half of a surrogate pair raises a ValueError
    return text


def _integer(text: str) -> int:
    if abs(value := int(text)) > MOST_INTEGER:
        raise ValueError(text)
    return value


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite() or abs(value.adjusted()) > MOST_DIGITS:
        raise ValueError(text)
    return value


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


_READERS: Mapping[type[Any], Callable[[str], Any]] = {
    int: _integer,
    UUID: UUID,
    Decimal: _decimal,
    float: _float,
    bool: {"True": True, "False": False}.__getitem__,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
    bytes: bytes.fromhex,
}


def jobs_of_keys(session: Session, queue: JobQueue[Any], keys: Sequence[Key]) -> list[Any]:
    """Return the jobs of a queue that have these keys."""
    mapping = queue.mapping
    named = select(mapping.entity).where(
        key_is_in(mapping, "sa_jobqueue_keys"), *queue.plan.spec.where
    )
    return [
        job
        for batch in key_batches(keys)
        for job in session.scalars(named, {"sa_jobqueue_keys": key_values(batch)}).unique()
    ]


@dataclass(frozen=True)
class JobState:
    """What a job is.

    Attributes:
        status: in the table's word.
        owner: who has it claimed; None: nobody.
    """

    status: str
    owner: str | None


def states_of(session: Session, queue: JobQueue[Any], keys: Sequence[Key]) -> dict[Key, JobState]:
    """Return the state of each job of a queue that has one of these keys, by the key as given."""
    mapping, given = queue.mapping, {key_text(key): key for key in keys}
    columns = (*mapping.key_attributes, mapping.status_word, mapping.attribute("owner"))
    named = select(*columns).where(key_is_in(mapping, "sa_jobqueue_keys"), *queue.plan.spec.where)
    return {
        given.get(key_text(tuple(key)), tuple(key)): _state(queue, status, owner)
        for batch in key_batches(keys)
        for *key, status, owner in session.execute(named, {"sa_jobqueue_keys": key_values(batch)})
    }


def _state(queue: JobQueue[Any], status: str, owner: str | None) -> JobState:
    return JobState(status, owner if status in queue.plan.spec.in_progress else None)


def keys_without(keys: Iterable[Key], others: Iterable[Key]) -> list[Key]:
    """Return the keys that are not among others.

    Their texts are compared: of a type of the user's own, key_from() reads the text alone.
    """
    texts = set(map(key_text, others))
    return [key for key in keys if key_text(key) not in texts]


def key_text(key: Key) -> str:
    """Write a key so that :func:`key_from` reads it."""
    parts = [_written(part) for part in key]
    if len(parts) == 1:
        return parts[0]
    return ",".join(re.sub(r"([\\,])", r"\\\1", part) for part in parts)


def _written(part: Any) -> str:
    if isinstance(part, Enum):
        return part.name
    if isinstance(part, date | time):
        return part.isoformat()
    return part.hex() if isinstance(part, bytes) else str(part)


def keys_text(keys: Sequence[Key]) -> str:
    """Name keys, not too many."""
    more = f" and {len(keys) - NAMED:,} more" if len(keys) > NAMED else ""
    return ", ".join(map(key_text, keys[:NAMED])) + more
