"""Steering: verbs on many jobs, a batch in each transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from ..counts import Listed, ListedJob, list_jobs
from ..dialects import database_of
from ..dialects.clock import as_utc
from ..errors import ClaimLost
from ..fence.claim import jobs_with_keys
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from .keys import Key, jobs_of_keys, key_text

R = TypeVar("R")

#: How many jobs one transaction changes.
BATCH = 500

#: Changes jobs, and returns those that it has changed.
Verb = Callable[[Session, list[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Steering:
    """A queue whose jobs are changed in transactions of their own.

    Attributes:
        time_limit: for each statement, and for all tries of a transaction; None: there is none.
    """

    engine: Engine
    queue: JobQueue[Any]
    time_limit: timedelta | None = None

    def change(self, keys: Sequence[Key], verb: Verb) -> list[Key]:
        """Change jobs in one transaction; return the keys of those that were changed.

        Raises:
            DBAPIError: the database refused it, or it took too long; nothing was changed.
        """
        return self.run(
            lambda session: _keys(verb(session, jobs_of_keys(session, self.queue, keys)))
        )

    def retry_failed(self, until: datetime) -> Iterator[Key]:
        """Retry page after page, those that failed last first; yield the keys.

        Args:
            until: leave jobs alone that failed later, by the database's clock.

        Raises:
            ArgumentError: no index finds the failed jobs, and the table has more than 10,000 rows.
        """
        last: ListedJob | None = None
        verb = partial(_retry_older, self.queue, until)
        while page := self.run(partial(self._failed, last, until)):
            last = page[-1]
            yield from self.change([job.key for job in page], verb)

    def cancel_all(self) -> Iterator[Key]:
        """Cancel batch after batch, until no unclaimed job is left; yield the keys."""
        while changed := self.run(lambda session: _keys(_cancel_some(session, self.queue))):
            yield from changed

    def release_owner(self, owner: str) -> list[Key]:
        """Release all that an owner has claimed; return the keys."""
        return self.run(lambda session: _keys(_release(session, self.queue, owner)))

    def run(self, work: Callable[[Session], R]) -> R:
        """Run `work` in a transaction, within the time limit; return its result."""
        limit = self.time_limit
        if limit is None:
            return run_with_retries(self.engine, work)

        def limited(session: Session) -> R:
            connection = session.connection()
            with database_of(connection).time_limit(connection, limit):
                return work(session)

        return run_with_retries(self.engine, limited, within=limit)

    def _failed(self, last: ListedJob | None, until: datetime, session: Session) -> list[ListedJob]:
        return list_jobs(
            session,
            self.queue,
            Listed.FAILED,
            limit=BATCH,
            after=last,
            until=until,
            complete=True,
        )


def retry_jobs(queue: JobQueue[Any], statuses: Mapping[str, str]) -> Verb:
    """Return a function that retries jobs.

    Args:
        statuses: by the texts of keys; leave a job alone that has another status by now.
    """

    def work(session: Session, jobs: list[Any]) -> list[Any]:
        mapping, pairs = queue.mapping, zip(jobs, _keys(jobs), strict=True)
        status = attrgetter(mapping.attributes["status"])
        same = [
            job for job, key in pairs if statuses.get(key_text(key)) == mapping.told(status(job))
        ]
        return queue.retry(session, same)

    return work


def release_jobs(queue: JobQueue[Any], owners: Mapping[str, str] | None = None) -> Verb:
    """Return a function that releases those of the jobs that are claimed.

    Args:
        owners: by the texts of keys; leave a job alone that another owner has by now. None:
            whoever has them.
    """

    def work(session: Session, jobs: list[Any]) -> list[Any]:
        owner = queue.mapping.attributes["owner"]
        owned: dict[str, set[Key]] = {}
        for job, key in zip(jobs, _keys(jobs), strict=True):
            name = getattr(job, owner)
            if name and (owners is None or owners.get(key_text(key)) == name):
                owned.setdefault(name, set()).add(key)
        return [
            released
            for name, keys in owned.items()
            for released in _release(session, queue, name, keys)
        ]

    return work


def _retry_older(
    queue: JobQueue[Any], until: datetime, session: Session, jobs: list[Any]
) -> list[Any]:
    """Retry jobs, but for those that were changed after they were listed."""
    dates = ((job, getattr(job, queue.mapping.attributes["owner_date"])) for job in jobs)
    return queue.retry(session, [job for job, date in dates if date and as_utc(date) <= until])


def _cancel_some(session: Session, queue: JobQueue[Any]) -> list[Any]:
    spec = queue.plan.spec
    unclaimed = select(spec.mapping.entity).where(spec.mapping.has_status(spec.ready), *spec.where)
    return queue.cancel(session, session.scalars(unclaimed.limit(BATCH)).unique().all())


def _release(
    session: Session, queue: JobQueue[Any], owner: str, only: set[Key] | None = None
) -> list[Any]:
    claimed = queue.claimed_by(session, owner)
    jobs = [job for job in claimed if only is None or _keys([job])[0] in only]
    try:
        queue.release(session, jobs)
    except ClaimLost as lost:  # its owner was first; the others are released
        return list(lost.kept)
    return jobs


def _keys(jobs: Iterable[Any]) -> list[Key]:
    return [tuple(key) for _, _, key in jobs_with_keys(list(jobs))]
