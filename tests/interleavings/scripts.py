"""What a session does in four steps, beside another session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ClaimLost,
    Fence,
    JobMixin,
    JobQueue,
    RetryMixin,
    RoundMixin,
    cancel,
    claim,
    complete,
    fail,
    reap,
    release,
    renew,
    retry,
    start_round,
)

AT_ONCE = timedelta(microseconds=1)


class Base(DeclarativeBase):
    pass


class Job(JobMixin, RetryMixin, RoundMixin, Base):
    """A job with a key, attempts and rounds."""

    __tablename__ = "stepped_job"
    __queue_args__ = {"per_key": ["key"]}  # noqa: RUF012 - as users do
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(10))


QUEUE = JobQueue(Job)
SERIAL = JobQueue(Job, serial_by=Job.key)


class Actor:
    """A session with a name, and the fences of what it has claimed."""

    entity: type[Any] = Job

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self.connection = engine.connect()
        self.session = Session(self.connection)
        self.fences: list[Fence] = []
        self._before: list[Fence] = []

    def begin(self) -> None:
        """Claim one job before the first step."""
        self.claim()
        self.commit()

    def close(self) -> None:
        """End the session."""
        self.session.close()
        self.connection.close()

    def commit(self) -> None:
        """Commit; what was claimed is kept."""
        self.session.commit()
        self._before = list(self.fences)

    def rollback(self) -> None:
        """Roll back; what was claimed before is kept."""
        self.session.rollback()
        self.fences = list(self._before)

    def claim(self) -> None:
        """Claim one job."""
        self.fences += claim(self.session, Job, owner=self.name, limit=1).fences

    def claim_a_key(self) -> None:
        """Claim one job of a key that nobody else has."""
        self.fences += SERIAL.claim(self.session, owner=self.name, limit=1).fences

    def turn(self) -> None:
        """Finish what was claimed, and claim one job, in one transaction."""
        finished, self.fences = self.fences, []
        with suppress(ClaimLost):
            self.fences = list(QUEUE.turn(self.session, finished, owner=self.name, limit=1).fences)

    def finish(self, verb: Callable[..., None]) -> None:
        """Finish what was claimed."""
        finished, self.fences = self.fences, []
        with suppress(ClaimLost):
            verb(self.session, finished)

    def complete(self) -> None:
        """Complete what was claimed."""
        self.finish(complete)

    def fail(self) -> None:
        """Fail what was claimed."""
        self.finish(partial(fail, retry_in=timedelta(0)))

    def release(self) -> None:
        """Release what was claimed."""
        self.finish(release)

    def renew(self) -> None:
        """Renew what was claimed."""
        with suppress(ClaimLost):
            renew(self.session, self.fences)

    def reap(self) -> None:
        """Take back every claim: nobody knows whether a plain name lives."""
        reap(self.session, Job, lease=AT_ONCE)

    def cancel(self) -> None:
        """Cancel all jobs that nobody has claimed."""
        cancel(self.session, self._jobs())

    def retry(self) -> None:
        """Make all jobs claimable that have ended."""
        retry(self.session, self._jobs())

    def start_round(self) -> None:
        """Make all jobs claimable once more."""
        start_round(self.session, Job)

    def _jobs(self) -> list[Any]:
        return list(self.session.scalars(select(self.entity).order_by(self.entity.id)))

    def drain(self) -> None:
        """Take back what is claimed, and complete what is left."""
        self.reap()
        self.commit()
        while self.fences or self._claims_more():
            self.complete()
            self.commit()

    def _claims_more(self) -> bool:
        self.claim()
        return bool(self.fences)


#: Four steps each.
SCRIPTS: dict[str, tuple[Callable[[Actor], None], ...]] = {
    "claim and complete": (Actor.claim, Actor.commit, Actor.complete, Actor.commit),
    "claim, rolled back": (Actor.claim, Actor.rollback, Actor.complete, Actor.commit),
    "complete, rolled back": (Actor.complete, Actor.rollback, Actor.complete, Actor.commit),
    "fail and claim": (Actor.fail, Actor.commit, Actor.claim, Actor.commit),
    "release and claim": (Actor.release, Actor.commit, Actor.claim, Actor.commit),
    "renew and complete": (Actor.renew, Actor.commit, Actor.complete, Actor.commit),
    "turns": (Actor.turn, Actor.commit, Actor.turn, Actor.commit),
    "reap and claim": (Actor.reap, Actor.commit, Actor.claim, Actor.commit),
    "cancel and retry": (Actor.cancel, Actor.commit, Actor.retry, Actor.commit),
    "round and claim": (Actor.start_round, Actor.commit, Actor.claim, Actor.commit),
}

#: The same with serial keys, which only claims by the same rule keep.
SERIAL_SCRIPTS: dict[str, tuple[Callable[[Actor], None], ...]] = {
    "claim and complete": (Actor.claim_a_key, Actor.commit, Actor.complete, Actor.commit),
    "claim, rolled back": (Actor.claim_a_key, Actor.rollback, Actor.claim_a_key, Actor.commit),
    "complete and claim": (Actor.complete, Actor.commit, Actor.claim_a_key, Actor.commit),
    "reap and claim": (Actor.reap, Actor.commit, Actor.claim_a_key, Actor.commit),
}
