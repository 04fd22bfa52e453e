"""Counts that end at a limit: a queue with a million jobs is as quickly counted as a short one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select

from ..model.keys import mapping_of_queue, plain_queue, queue_name
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import DONE, UNCLAIMED
from ..sessions.writer import Writer
from ..strategies import ClaimSpec

#: The most jobs that are counted.
MOST = 10_000


@dataclass(frozen=True)
class Count:
    """A number of jobs.

    Attributes:
        number: how many were counted.
        more: whether there are more.
    """

    number: int
    more: bool = False

    def __str__(self) -> str:
        """Write it as ``1,234``, or ``10,000+``."""
        return f"{self.number:,}{'+' if self.more else ''}"

    @classmethod
    def up_to(cls, most: int, found: int, *, more: bool = False) -> Count:
        """Return a count that ends at `most`, of so many rows that were found."""
        return cls(min(found, most), more or found > most)


def count_rows(writer: Writer, keys: Select[Any]) -> Count:
    """Count the rows of a SELECT, up to MOST."""
    counted = keys.limit(MOST + 1).subquery("sa_jobqueue_counted")
    counting = select(func.count()).select_from(counted)
    return Count.up_to(MOST, int(writer.rows(counting).scalar_one()))


@dataclass(frozen=True, eq=False)
class Counted:
    """A queue that is counted.

    Attributes:
        spec: which jobs are its own, and in which order they are claimed.
        then: the status of a completed job.
    """

    name: str
    spec: ClaimSpec
    then: str

    @classmethod
    def of(cls, queue: Any) -> Counted:
        """Take a mapped class, a JobQueue or a workflow's step.

        Raises:
            ArgumentError: it is no queue, or its class has no JobMixin, and so no status to show.
        """
        mapping = mapping_of(mapping_of_queue(queue).mapper)
        plain = plain_queue(queue)
        if isinstance(plain, type):
            return cls(queue_name(queue), _whole_queue(mapping), DONE)
        return cls(queue_name(queue), plain.plan.spec, plain.then)

    @property
    def mapping(self) -> QueueMapping:
        """Where the queue's columns are in the entity."""
        return self.spec.mapping


def _whole_queue(mapping: QueueMapping) -> ClaimSpec:
    """Return the queue of a class: all of its unclaimed rows.

    It is kept in the mapping, for its statements; a cache would keep the class alive.
    """
    whole = ClaimSpec(
        mapping=mapping,
        where=(),
        order_by=(),
        ready=mapping.word(UNCLAIMED),
        during=mapping.claimed,
    )
    kept: ClaimSpec = vars(mapping).setdefault("_whole_queue", whole)
    return kept
