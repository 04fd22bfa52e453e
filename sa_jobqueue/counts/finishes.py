"""How fast jobs are finished: the finishes of the last minutes.

A finished row keeps the time of its finish in owner_date. So the newest finishes of a
status are one end of an index (status, owner_date), and no other rows are read. On MySQL
and MariaDB the reap index is such an index. On PostgreSQL and SQLite the reap index holds
claimed rows only, and the table needs another index: see docs/positions.md. Without an
index there is no rate, since the done rows of years would be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, bindparam, func, select

from ..dialects.clock import as_utc, utc_now
from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, DONE
from ..model.transitions import FINISHED
from ..sessions.writer import Writer
from .count import MOST, Counted
from .schema import finds_newest, indexes_of

#: How far back finishes are counted.
RECENT = timedelta(minutes=5)


def rated_words(queue: Counted, writer: Writer) -> list[str]:
    """List the finished statuses whose newest rows an index finds; none without done."""
    mapping = queue.mapping
    if not mapping.args.keep:
        return []
    there = indexes_of(writer, mapping)
    done = word_of(mapping, queue.then)
    words = [done, *(mapping.word(status) for status in FINISHED if status is not DONE)]
    found = [word for word in words if any(finds_newest(mapping, each, word) for each in there)]
    return found if done in found else []


def finish_rate(queue: Counted, writer: Writer, words: Sequence[str]) -> float | None:
    """Return the finishes per second to these statuses; None if there are none."""
    return sum(_rates(queue, writer, words)) or None


def _rates(queue: Counted, writer: Writer, words: Sequence[str]) -> Iterator[float]:
    for word in words:
        count, oldest, now = tuple(writer.orm(_newest(queue, word)).one())
        if count:
            # If there are more, the newest tell the rate as well: a queue that finishes 10,000
            # jobs in a minute is measured by that minute.
            time = as_utc(now) - as_utc(oldest) if count == MOST else RECENT
            yield count / max(min(time, RECENT), timedelta(milliseconds=1)).total_seconds()


def _newest(queue: Counted, word: str) -> Any:
    mapping = queue.mapping
    date = mapping.attribute("owner_date")
    age = bindparam("sa_jobqueue_age", -(RECENT // timedelta(microseconds=1)), type_=BigInteger)
    newest = select(date.label("date")).where(
        mapping.has_status(word), date > utc_now(age), *queue.spec.where
    )
    if word == mapping.word(CANCELLED):
        # Only jobs that their worker cancelled: unclaimed jobs were cancelled without an owner.
        newest = newest.where(mapping.attribute("owner").is_not(None))
    found = newest.order_by(date.desc()).limit(MOST).subquery("sa_jobqueue_newest")
    return select(func.count(), func.min(found.c.date), utc_now()).select_from(found)


def no_rate(mapping: QueueMapping) -> str:
    """Say that no index finds the finishes, and how to get one."""
    status, date = (mapping.column(role).name for role in ("status", "owner_date"))
    table = mapping.table.name
    return (
        f"no index finds the newest finishes of {mapping}, and without it all done rows are "
        "read. Add "
        f'Index("ix_{table}_finish", "{status}", "{date}") to its __table_args__ and to the table'
    )
