r"""Steering: changes of many jobs, named by key, by status or by owner, in batches.

::

    steering = Steering(engine, outbox)
    changed = steering.change(keys_from(outbox.mapping, ["7", "8"]), outbox.retry)
    for key in steering.retry_failed(until):
        print(key_text(key))

The command line and the web page both change jobs by it. Each batch is a transaction of its own.

People write a primary key as ``7``, or ``north,7`` if it has several columns. A comma within a
column of such a key is written as ``\,``, and a backslash as ``\\``. Dates and times are written by
ISO 8601, bytes by hexadecimal digits, and a member of an enum by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Column, Engine, select, tuple_
from sqlalchemy.orm import Session

from .control import request_stop
from .counts import Listed, ListedJob, list_jobs
from .counts.jobs import UNSUCCESSFUL
from .databases import database_of
from .errors import ArgumentError, ClaimLost
from .fence.claim import jobs_with_keys
from .model.columns import FROM_TEXT
from .model.keys import CONTROL, beside, key_batches, key_is_in, key_values
from .model.mapping import QueueMapping
from .queue import JobQueue
from .sessions.transactions import run_with_retries
from .verbs.manage import PRUNE_LIMIT, prune_jobs
from .verbs.reap import ReapedJob

R = TypeVar("R")
Key = tuple[Any, ...]

#: How many keys a sentence names before it says "and 12 more".
NAMED = 5

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

    def retry_failed(self, until: datetime, error: str | None = None) -> Iterator[Key]:
        """Retry page after page, those that failed last first; yield the keys.

        Args:
            until: leave jobs alone that failed later, by the database's clock.
            error: retry those whose error has this first line.

        Raises:
            ArgumentError: no index finds the failed jobs, and the table has more than 10,000 rows.
        """
        for keys in self.change_listed(Listed.FAILED, self.queue.retry, until=until, error=error):
            yield from keys

    def change_listed(self, which: Listed, verb: Verb, **filters: Any) -> Iterator[list[Key]]:
        """Change the jobs of a list, page after page; yield the keys of each page's changed jobs.

        A job that somebody has changed since it was listed is left alone.

        Args:
            filters: `until`, `owner` and `error`, as for :func:`sa_jobqueue.counts.list_jobs`.

        Raises:
            ArgumentError: no index finds the jobs, and the table has more than 10,000 rows.
        """
        mapping, spec = self.queue.mapping, self.queue.plan.spec
        word = mapping.word(UNSUCCESSFUL[which]) if which in UNSUCCESSFUL else spec.ready
        of_owner, last = which is Listed.CLAIMED, None
        role = "owner" if of_owner else "status"

        def page(session: Session) -> list[ListedJob]:
            options: dict[str, Any] = {"limit": BATCH, "after": last, "complete": True}
            return list_jobs(session, self.queue, which, **options, **filters)

        while jobs := self.run(page):
            seen = {key_text(job.key): str(job.owner) if of_owner else word for job in jobs}
            as_listed = unless_changed(mapping, role, seen, verb)
            changed = self.change([job.key for job in jobs], as_listed)
            yield changed
            if spec.own_order or which not in (Listed.DUE, Listed.LATER):
                last = jobs[-1]
            elif not changed:  # an order of the user's own has no second page
                return

    def release_owner(self, owner: str) -> list[Key]:
        """Release all that an owner has claimed; return the keys."""
        return self.run(lambda session: _keys(_release(session, self.queue, owner)))

    def prune(self, older_than: timedelta, statuses: Sequence[str] = ()) -> int:
        """Delete old finished jobs, batch after batch; return how many.

        Args:
            older_than: how long ago they were finished at least.
            statuses: in the table's words; by default that of completed jobs.
        """
        deleted, batch = 0, PRUNE_LIMIT
        delete = partial(self.queue.prune, older_than=older_than, statuses=statuses or None)
        while batch == PRUNE_LIMIT:
            batch = self.run(delete)
            deleted += batch
        return deleted

    def reap(
        self, lease: timedelta | None = None, max_runtime: timedelta | None = None
    ) -> Iterator[ReapedJob]:
        """Reap batch after batch, with these arguments of ``queue.reap()``; yield the jobs."""
        reap, more = partial(self.queue.reap, lease=lease, max_runtime=max_runtime), True
        while more:
            reaped = self.run(reap)
            yield from reaped.jobs
            more = bool(reaped) and reaped.more

    def run(self, work: Callable[[Session], R]) -> R:
        """Run `work` in a transaction, within the time limit; return its result."""

        def limited(session: Session) -> R:
            if self.time_limit is None:
                return work(session)
            connection = session.connection()
            with database_of(connection).time_limit(connection, self.time_limit):
                return work(session)

        return run_with_retries(self.engine, limited, within=self.time_limit)


def unless_changed(mapping: QueueMapping, role: str, seen: Mapping[str, str], verb: Verb) -> Verb:
    """Return a verb that leaves jobs alone whose status, or owner, is another by now.

    Args:
        seen: what it was, by the texts of keys.
    """
    value = attrgetter(mapping.attributes[role])

    def work(session: Session, jobs: list[Any]) -> Iterable[Any]:
        pairs = zip(jobs, _keys(jobs), strict=True)
        same = [job for job, key in pairs if seen.get(key_text(key)) == mapping.told(value(job))]
        return verb(session, same)

    return work


def verb_of(queue: JobQueue[Any], name: str) -> Verb:
    """Return what ``retry``, ``cancel``, ``stop``, ``release`` or ``prune`` does to jobs."""
    made: dict[str, Callable[[], Verb]] = {
        "retry": lambda: queue.retry,
        "cancel": lambda: cancel_jobs(queue),
        "stop": lambda: stop_jobs,
        "release": lambda: release_jobs(queue),
        "prune": lambda: delete_jobs(queue),
    }
    return made[name]()


def statuses_left_by(queue: JobQueue[Any], name: str) -> list[str]:
    """Name the statuses of the jobs that a verb of :func:`verb_of` changes."""
    like = {"stop": ["release"], "prune": ["retry"], "cancel": ["cancel", "release"]}
    return [word for each in like.get(name, [name]) for word in queue.statuses_left_by(each)]


def stop_jobs(session: Session, jobs: list[Any]) -> list[Any]:
    """Ask the workers that have these jobs to stop them; return those that are claimed."""
    return [job for job in jobs if request_stop(session, job)]


def release_jobs(queue: JobQueue[Any]) -> Verb:
    """Return a verb that releases those of the jobs that are claimed, whoever has them."""

    def work(session: Session, jobs: list[Any]) -> list[Any]:
        owners = {getattr(job, queue.mapping.attributes["owner"]) for job in jobs}
        keys = set(_keys(jobs))
        return [
            job for name in filter(None, owners) for job in _release(session, queue, name, keys)
        ]

    return work


def cancel_jobs(queue: JobQueue[Any]) -> Verb:
    """Return a verb that cancels jobs, claimed ones too.

    A claimed job is taken from its owner, so that nothing which its handler finishes is written.
    Where there are control tables, the worker is asked to stop it.
    """

    def work(session: Session, jobs: list[Any]) -> Iterable[Any]:
        mapping, claimed = queue.mapping, queue.plan.spec.in_progress
        status = attrgetter(mapping.attributes["status"])
        running = [job for job in jobs if mapping.told(status(job)) in claimed]
        if beside(mapping, CONTROL):
            stop_jobs(session, running)
        release_jobs(queue)(session, running)
        return queue.cancel(session, jobs)

    return work


def delete_jobs(queue: JobQueue[Any]) -> Verb:
    """Return a verb that deletes those of the jobs that have ended."""

    def work(session: Session, jobs: list[Any]) -> list[Any]:
        mapping, keys = queue.mapping, _keys(jobs)
        where = [tuple_(*mapping.keys).in_(keys), *queue.plan.spec.where]
        ended = queue.statuses_left_by("retry")
        prune_jobs(session, mapping, timedelta(0), ended, BATCH, where)
        left = {key_text(key) for key in states_of(session, queue, keys)}
        return [job for job, key in zip(jobs, keys, strict=True) if key_text(key) not in left]

    return work


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


# -- keys


def keys_from(mapping: QueueMapping, texts: Iterable[str]) -> list[Key]:
    """Read primary keys; each counts once.

    Raises:
        ArgumentError: a text that is no key of the table.
    """
    return list(dict.fromkeys(key_from(mapping, text) for text in texts))


def key_from(mapping: QueueMapping, text: str, *before: Column[Any]) -> Key:
    """Read a primary key.

    Args:
        before: columns whose values stand before those of the key.

    Raises:
        ArgumentError: it is no key of the table.
    """
    columns = (*before, *mapping.keys)
    try:
        parts = _parts(text) if len(columns) > 1 else [text]
        return tuple(_value(*pair) for pair in zip(columns, parts, strict=True))
    except (ValueError, ArithmeticError, LookupError, StopIteration) as error:
        names = ",".join(column.name for column in mapping.keys)
        raise ArgumentError(f"{text!r} is no key of {mapping}, which is {names}") from error


def _parts(text: str) -> list[str]:
    """Divide the text of a wide key at its commas; StopIteration: nothing follows a backslash."""
    parts, characters = [""], iter(text)
    for each in characters:
        if each == ",":
            parts.append("")
        else:
            parts[-1] += next(characters) if each == "\\" else each
    return parts


_READERS: Mapping[type[Any], Callable[[str], Any]] = {
    **FROM_TEXT,
    int: int,
    float: float,
    bool: {"True": True, "False": False}.__getitem__,
    bytes: bytes.fromhex,
}

#: What no number of a key reaches: some drivers refuse to ask for what no database stores.
_ENDS: Mapping[type[Any], float] = {int: 2**63, Decimal: 10**65, float: math.inf}


def _value(column: Column[Any], text: str) -> Any:
    try:
        kind = column.type.python_type
    except NotImplementedError:  # a type of the user's own
        kind = str
    text.encode()  # half of a surrogate pair raises a ValueError
    if "\0" in text:
        raise ValueError(text)
    if issubclass(kind, Enum):
        return kind[text]
    value = _READERS.get(kind, str)(text)
    if kind in _ENDS and not abs(value) < _ENDS[kind]:  # also what is no number
        raise ValueError(text)
    return value


def jobs_of_keys(session: Session, queue: JobQueue[Any], keys: Sequence[Key]) -> list[Any]:
    """Return the jobs of a queue that have these keys."""
    return [job for (job,) in _rows(session, queue, keys, queue.mapping.entity)]


def _rows(session: Session, queue: JobQueue[Any], keys: Iterable[Key], *what: Any) -> Iterator[Any]:
    """Select something of the jobs of a queue that have these keys."""
    named = select(*what).where(
        key_is_in(queue.mapping, "sa_jobqueue_keys"), *queue.plan.spec.where
    )
    for batch in key_batches(list(keys)):
        yield from session.execute(named, {"sa_jobqueue_keys": key_values(batch)}).unique()


@dataclass(frozen=True)
class JobState:
    """What a job is.

    Attributes:
        status: in the table's word.
        owner: who has it claimed; None: nobody.
        text: which job it is, in words, as in a ListedJob.
    """

    status: str
    owner: str | None
    text: str | None = None


def states_of(session: Session, queue: JobQueue[Any], keys: Sequence[Key]) -> dict[Key, JobState]:
    """Return the state of each job of a queue that has one of these keys, by the key as given."""
    mapping, given = queue.mapping, {key_text(key): key for key in keys}
    shown = [getattr(mapping.entity, name) for name in mapping.shown_keys]
    columns = (mapping.status_word, mapping.attribute("owner"), *shown, *mapping.key_attributes)
    claimed, found = queue.plan.spec.in_progress, dict[Key, JobState]()
    for status, owner, *rest in _rows(session, queue, keys, *columns):
        text = mapping.shown_text(dict(zip(mapping.shown_keys, rest, strict=False)))
        key = tuple(rest[len(shown) :])
        state = JobState(status, owner if status in claimed else None, text)
        found[given.get(key_text(key), key)] = state
    return found


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
