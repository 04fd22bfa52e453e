"""How fast jobs are finished: the finishes of the last minutes.

A finished row keeps the time of its finish in owner_date. So the newest finishes of a
status are one end of an index (status, owner_date), and no other rows are read. On MySQL
and MariaDB the reap index is such an index. On PostgreSQL and SQLite the reap index holds
claimed rows only, and the table needs another index: see docs/positions.md. Without an
index the rate is refused, since the done rows of years would be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, bindparam, func, select

from ..dialects.clock import as_utc, utc_now
from ..dialects.examination import ServerIndex, normalised
from ..errors import ArgumentError
from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, DONE
from ..model.transitions import FINISHED
from ..sessions.writer import Writer
from ..strategies import ClaimSpec

#: How far back finishes are counted by default.
RECENT = timedelta(minutes=5)

#: The most finishes of a status that are counted. If there are more, the newest tell the
#: rate as well: a queue that finishes 10,000 jobs in a minute is measured by that minute.
MOST_FINISHES = 10_000


@dataclass(frozen=True)
class Finishes:
    """The finishes of a queue.

    Attributes:
        spec: the claim spec of the queue; its criteria choose the rows.
        then: the status of a completed job.
    """

    spec: ClaimSpec
    then: str

    @property
    def mapping(self) -> QueueMapping:
        """The mapping of the queue's entity."""
        return self.spec.mapping

    def rate(self, writer: Writer, over: timedelta) -> float | None:
        """Return the finishes per second; None if there are none, or done rows are not kept.

        Raises:
            ArgumentError: `over` is not a positive timedelta, or no index finds the rows.
        """
        if not isinstance(over, timedelta) or over <= timedelta(0):
            raise ArgumentError(f"over= is a timedelta longer than 0, not {over!r}")
        if not self.mapping.args.keep:
            return None
        indexes = writer.database.examination().indexes(writer.connection, self.mapping.table)
        words = self.words(indexes)
        if not words:
            raise ArgumentError(_no_index(self.mapping))
        return self.rate_by(writer, words, over)

    def words(self, indexes: Iterable[ServerIndex]) -> list[str]:
        """List the finished statuses whose newest rows an index finds; none without done."""
        mapping, there = self.mapping, list(indexes)
        done = word_of(mapping, self.then)
        others = (mapping.word(status) for status in FINISHED if status is not DONE)
        found = [
            word
            for word in (done, *others)
            if any(finds_newest(mapping, index, word) for index in there)
        ]
        return found if done in found else []

    def rate_by(self, writer: Writer, words: list[str], over: timedelta) -> float | None:
        """Return the finishes per second to these statuses; None if there are none."""
        return sum(self._rates(writer, words, over)) or None

    def _rates(self, writer: Writer, words: list[str], over: timedelta) -> Iterator[float]:
        age = {"sa_jobqueue_age": -(over // timedelta(microseconds=1))}
        for word in words:
            count, oldest, now = tuple(writer.orm(self._newest(word), age).one())
            if count:
                full = count == MOST_FINISHES
                time = min(over, as_utc(now) - as_utc(oldest)) if full else over
                yield count / max(time, timedelta(milliseconds=1)).total_seconds()

    def _newest(self, word: str) -> Any:
        mapping = self.mapping
        date = mapping.attribute("owner_date")
        age = bindparam("sa_jobqueue_age", type_=BigInteger)
        newest = select(date.label("date")).where(
            mapping.has_status(word), date > utc_now(age), *self.spec.where
        )
        if word == mapping.word(CANCELLED):
            # Only jobs that their worker cancelled: unclaimed jobs were cancelled without an owner.
            newest = newest.where(mapping.attribute("owner").is_not(None))
        found = newest.order_by(date.desc()).limit(MOST_FINISHES).subquery("sa_jobqueue_newest")
        return select(func.count(), func.min(found.c.date), utc_now()).select_from(found)


def finds_newest(mapping: QueueMapping, index: ServerIndex, word: str) -> bool:
    """Tell whether an index finds the newest rows of a status."""
    status, date = (mapping.column(role).name for role in ("status", "owner_date"))
    names = [column.name for column in index.columns]
    if index.unusable or not index.ordered:
        return False
    if index.predicate is None:
        return names[:2] == [status, date]
    if normalised(index.predicate) != normalised(f"{status} = '{word}'"):
        return False
    return [name for name in names if name != status][:1] == [date]


def _no_index(mapping: QueueMapping) -> str:
    status, date = (mapping.column(role).name for role in ("status", "owner_date"))
    table = mapping.table.name
    return (
        f"no index finds the newest finishes of {mapping}, and without it all done rows are "
        "read. Add "
        f'Index("ix_{table}_finish", "{status}", "{date}") to its __table_args__ and to the table'
    )
