"""The due jobs that wait behind others of their serial key, so that no claim can get them now.

A key lets a claim have as many jobs as it allows, less those that are claimed; with ``serial_by``
none while one of its jobs is in its retry delay. The due jobs are grouped by their key in the
database, 10,000 of them at most.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from sqlalchemy import func, select

from ..databases.clock import utc_now
from ..sessions.writer import Writer, built_once
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows
from ..strategies.spec import KeyLimit
from .count import LEVELS, MOST, due_rows


def count_behind(spec: ClaimSpec, writer: Writer) -> int:
    """Count the due jobs of a queue with a limit for each key that their keys keep back."""
    assert spec.key_limit is not None
    most, due, delayed = spec.key_limit.most, Counter[Any](), set[Any]()
    by_key, claimed, retried = _statements(spec, writer)
    for level in islice(ReadyRows(spec, writer.database).each_level(writer), LEVELS):
        asked = level | {"sa_jobqueue_limit": MOST + 1 - due.total()}
        due.update(dict(map(tuple, writer.rows(by_key, asked))))
        if retried is not None:
            delayed.update(writer.rows(retried, level | {"sa_jobqueue_limit": MOST}).scalars())
    taken: dict[Any, int] = dict(map(tuple, writer.rows(claimed)))
    room = {key: 0 if key in delayed else max(most - taken.get(key, 0), 0) for key in due}
    return sum(max(due[key] - room[key], 0) for key in due if key is not None)


@built_once
def _statements(spec: ClaimSpec, writer: Writer) -> tuple[Any, Any, Any]:
    """Count the due and the claimed jobs of each key; find keys with a job in its retry delay."""
    mapping, limit = spec.mapping, spec.key_limit
    assert limit is not None
    key = writer.database.serial_key(mapping.table, limit.columns).label("serial_key")
    claimed: Any = select(key).where(mapping.has_status(*spec.in_progress), *spec.equalities)
    return (
        _by_key(due_rows(spec, writer, key)),
        _by_key(claimed.limit(MOST)),
        _in_delay(spec, writer, limit, key),
    )


def _by_key(rows: Any) -> Any:
    found = rows.subquery("sa_jobqueue_of_keys")
    return select(found.c.serial_key, func.count()).group_by(found.c.serial_key)


def _in_delay(spec: ClaimSpec, writer: Writer, limit: KeyLimit, key: Any) -> Any:
    """Find keys among the next jobs of a level, of which those that were tried keep others back."""
    mapping = spec.mapping
    if not (limit.serial and mapping.has("attempts") and mapping.has("run_at")):
        return None
    tried = mapping.attribute("attempts").label("tried")
    ready = ReadyRows(spec, writer.database)
    next_ones = ready.by_claim_index(ready.select(key, tried, plain=True, due=False))
    later = next_ones.where(mapping.attribute("run_at") > utc_now())
    found = later.subquery("sa_jobqueue_later")
    return select(found.c.serial_key).where(found.c.tried > 0).distinct()
