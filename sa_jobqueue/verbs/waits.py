"""How long each of several failed jobs waits: by its own number of attempts.

The attempts are read from the rows, not from entities, which may be expired, or
fences, which have none.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, select

from ..dialects import Database
from ..fence.claim import FencedJobs, by_mapping
from ..fence.statements import KEYS
from ..fence.token import Identity
from ..model.keys import by_key, key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..sessions.writer import AnyConnection, writing
from .backoff import Backoff, check_backoff, delay_after


def by_delay(
    session: AnyConnection, parts: list[FencedJobs], backoff: Backoff
) -> dict[timedelta | None, list[FencedJobs]]:
    """Sort failed jobs by how long they wait; with jitter, each for itself.

    Raises:
        ArgumentError: a class whose jobs cannot wait, or a backoff that returns no wait.
    """
    for mapping, _ in by_mapping(parts):
        check_backoff(mapping, backoff)
    waits: dict[timedelta | None, list[FencedJobs]] = {}
    for part in parts:
        attempts = _attempts(session, part)
        wait_of = {identity: delay_after(backoff, count) for identity, count in attempts.items()}
        for wait, alike in _divided(part, wait_of).items():
            waits.setdefault(wait, []).append(alike)
    return waits


def _attempts(session: AnyConnection, part: FencedJobs) -> dict[Identity, int]:
    """Read how often jobs were tried, this attempt included; 1 where the row is gone.

    Locked in the order of their keys, so that the writes may come in any order.
    """
    uncounted = part.token.hold is not None  # an unmarked claim wrote nothing
    found = dict.fromkeys(part.identities, 1)
    with writing(session, part.mapping, rows=True) as writer:
        writer.lock_writes(part.mapping.table)
        locking = _locking(part.mapping, writer.database)
        for batch in key_batches(list(found)):
            for row in writer.core(locking, {KEYS: key_values(batch)}):
                found[tuple(row[:-1])] = row[-1] + uncounted
    return found


@lru_cache(maxsize=1_000)
def _locking(mapping: QueueMapping, database: Database) -> Select[Any]:
    named = key_is_in(mapping, KEYS, database)
    tried = select(*mapping.keys, mapping.column("attempts")).where(named).order_by(*mapping.keys)
    locking: Select[Any] = by_key(tried, mapping.table, database)
    return locking.with_for_update(key_share=database.no_key_update)


def _divided(part: FencedJobs, wait_of: dict[Identity, timedelta]) -> dict[timedelta, FencedJobs]:
    divided: dict[timedelta, FencedJobs] = {}
    for index, job, identity in part.indexed:
        wait = wait_of[identity]
        alike = divided.setdefault(wait, FencedJobs(part.mapping, part.token, [], [], part.rows))
        alike.identities.append(identity)
        alike.jobs.append(job)
        alike.indices.append(index)
    return divided
