"""wait(): until a job has ended, as a request does that shows its result.

::

    with Session(engine) as session, session.begin():
        job = send_invoice.enqueue(session, 7)
    done = wait(engine, job, timeout=timedelta(seconds=10))
    print(send_invoice.result(done))

The row is looked up by its key, in a short transaction each time. The next look comes after a tenth
of the time so far, and a second at most. A finish tells nobody, so waiting costs nothing to jobs
that nobody waits for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import Engine, inspect, select
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.attributes import instance_dict

from .errors import ArgumentError, JobFailed
from .model.mapping import mapping_of
from .model.status import CANCELLED, FAILED
from .verbs.backoff import check_durations

T = TypeVar("T")

#: The first and the longest pause between two looks, in seconds, and how the pauses grow.
FIRST, LONGEST, GROWTH = 0.005, 1.0, 1.1


def wait(sessions: Engine | sessionmaker[Any], job: T, *, timeout: timedelta) -> T | None:
    """Wait until a job has ended: until it is done, failed, cancelled or deleted.

    Args:
        sessions: an Engine, or the application's sessionmaker.
        job: an entity of any class with JobMixin, after the commit of the transaction that has
            enqueued it.
        timeout: how long to wait at most.

    Returns:
        The job as it has ended, in no session; None if its row was deleted.

    Raises:
        JobFailed: it has failed for good, or was cancelled.
        TimeoutError: it has not ended in time. It goes on, and can be waited for again.
        ArgumentError: the job was not flushed, so it has no key yet, or not committed; or
            `sessions` opens no sessions.
    """
    waiting = Waiting(job, timeout)
    check_sessions(sessions, Engine, sessionmaker)
    for pause in waiting.pauses():
        time.sleep(pause)
        with Session(sessions) if isinstance(sessions, Engine) else sessions() as session:
            found: T | None = session.execute(waiting.look).scalars().unique().one_or_none()
            session.expunge_all()
        if waiting.has_ended(found):
            return found
    raise waiting.timed_out()


def check_sessions(sessions: Any, engine: type[Any], maker: type[Any]) -> None:
    """Refuse what opens no sessions, such as a session, or an engine of the other kind.

    Raises:
        ArgumentError: it is no engine, and nothing that can be called.
    """
    if not isinstance(sessions, engine) and not callable(sessions):
        raise ArgumentError(
            f"wait() takes an {engine.__name__} or the {maker.__name__} of the application, not "
            f"{sessions!r}: it looks in sessions of its own"
        )


class Waiting(Generic[T]):
    """One call of wait().

    Attributes:
        look: the SELECT of the job.

    Raises:
        ArgumentError: as :func:`wait`.
    """

    def __init__(self, job: T, timeout: timedelta) -> None:
        check_durations(zero=True, timeout=timeout)
        state: Any = inspect(job, raiseerr=False)
        self._mapping = mapping = mapping_of(type(job))
        if not state.identity:
            raise ArgumentError(f"{job!r} has no key yet: commit before you wait for it")
        self._state, self._timeout, self._seen = state, timeout, False
        self._name = f"{mapping} {', '.join(map(str, state.identity))}"
        keys = zip(mapping.mapper.primary_key, state.identity, strict=True)
        look: Any = select(type(job)).where(*(key == its for key, its in keys))
        self.look = look.execution_options(identity_token=state.identity_token)  # of its shard

    def pauses(self) -> Iterator[float]:
        """Yield how long to sleep before each look, until the time is over; one look is last."""
        end, pause = time.monotonic() + self._timeout.total_seconds(), 0.0
        while (left := end - time.monotonic()) > pause:
            yield pause
            pause = min(max(FIRST, pause * GROWTH), LONGEST)
        yield max(left, 0.0)

    def has_ended(self, found: T | None) -> bool:
        """Tell whether the job has ended, as it was found.

        Raises:
            JobFailed: it has failed, or was cancelled.
            ArgumentError: it was never there, and its session's transaction is open.
        """
        mapping, session = self._mapping, self._state.session
        if found is None:
            if not self._seen and session is not None and session.in_transaction():
                raise ArgumentError(
                    f"{self._name} is not in the database: it was deleted, or the transaction of "
                    "its session, which is open, has inserted it: commit before you wait for it"
                )
            return True
        self._seen = True
        values = instance_dict(found)
        word = mapping.told(values[mapping.attributes["status"]])
        if word in (mapping.word(FAILED), mapping.word(CANCELLED)):
            reason = values.get(mapping.attributes.get("last_error", ""))
            raise JobFailed(self._name, word, reason)
        return word not in (*mapping.ready, *mapping.during, *mapping.waiting)

    def timed_out(self) -> TimeoutError:
        """Make the error of a job that has not ended in time."""
        seconds = self._timeout.total_seconds()
        return TimeoutError(f"{self._name} has not ended in {seconds:g} s; it goes on")
