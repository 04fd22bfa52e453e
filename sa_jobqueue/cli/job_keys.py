"""Jobs that are named on the command line: by primary key, several columns joined by commas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import click
from sqlalchemy import Column, select
from sqlalchemy.orm import Session

from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..queue import JobQueue

Key = tuple[Any, ...]

#: How many keys a question names before it says "and 12 more".
NAMED = 5


def keys_from(mapping: QueueMapping, texts: Iterable[str]) -> list[Key]:
    """Read primary keys, such as ``7`` or ``north,7``; each counts once.

    Raises:
        UsageError: a text that is no key of the table.
    """
    return list(dict.fromkeys(_key(mapping, text) for text in texts))


def _key(mapping: QueueMapping, text: str) -> Key:
    parts = text.split(",") if len(mapping.keys) > 1 else [text]
    try:
        return tuple(_value(*pair) for pair in zip(mapping.keys, parts, strict=True))
    except ValueError as error:
        names = ",".join(column.name for column in mapping.keys)
        raise click.UsageError(f"{text!r} is no key of {mapping}, which is {names}") from error


def _value(column: Column[Any], text: str) -> Any:
    kind = column.type.python_type
    return kind(text) if kind in (int, UUID) else text


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


def key_text(key: Key) -> str:
    """Write a key as the command line takes it."""
    return ",".join(map(str, key))


def keys_text(keys: Sequence[Key]) -> str:
    """Name keys, not too many."""
    more = f" and {len(keys) - NAMED:,} more" if len(keys) > NAMED else ""
    return ", ".join(map(key_text, keys[:NAMED])) + more
