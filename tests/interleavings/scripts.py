"""What a session does in four steps, beside another session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    Fence,
    JobQueue,
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
from sa_jobqueue.workflow import NotWaiting, Step, Workflow
from tests.contract.round_models import Subscriber as Job
from tests.videos import S, Video

AT_ONCE = timedelta(microseconds=1)


QUEUE = JobQueue(Job)
SERIAL = JobQueue(Job, serial_by=Job.kind)


class Actor:
    """A session with a name, and the fences of what it has claimed."""

    entity: type[Any] = Job

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self.connection = engine.connect()
        self.session = Session(self.connection)
        self.fences: list[Fence] = []
        self._before: list[Fence] = []

    @staticmethod
    def new_job(key: int) -> Any:
        """Make a job with a key, attempts and rounds."""
        return Job(kind=key, max_attempts=9)

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


WORKFLOW = Workflow(Video)


@WORKFLOW.step(S.UPLOADED, during=S.CHECKING, then=S.AT_FARM, branches=[S.RENDERED])
def send(video: Video) -> None:
    """Hand a video off."""


@WORKFLOW.step(S.RENDERED, during=S.PUBLISHING, then=S.PUBLISHED)
def publish(video: Video) -> None:
    """End the work on a video."""


WORKFLOW.waiting(S.AT_FARM, signals=[S.RENDERED])


class Sender(Actor):
    """A session with a name, and the fences of what it has claimed in either step."""

    entity = Video

    @staticmethod
    def new_job(key: int) -> Video:
        return Video(title=str(key), max_attempts=9)

    def claim(self) -> None:
        """Claim one job of the first step."""
        self._claim(send)

    def claim_next(self) -> None:
        """Claim one job of the second step."""
        self._claim(publish)

    def _claim(self, step: Step[Video]) -> None:
        self.fences += step.queue.claim(self.session, owner=self.name, limit=1).fences

    def complete(self) -> None:
        """Move what was claimed to where its step leads."""
        self._finish(lambda step, fences: step.queue.complete(self.session, fences))

    def branch(self) -> None:
        """Move what was claimed to the second step, or end it there."""
        self._finish(
            lambda step, fences: step.queue.complete(
                self.session, fences, then=S.RENDERED if step is send else None
            )
        )

    def fail(self) -> None:
        """Fail what was claimed."""
        self._finish(lambda step, fences: step.queue.fail(self.session, fences, retry_in=AT_ONCE))

    def _finish(self, verb: Callable[[Step[Video], list[Any]], None]) -> None:
        finished, self.fences = self.fences, []
        for step in (send, publish):
            ours = [fence for fence in finished if fence.token.status == step.during]
            if ours:
                with suppress(ClaimLost):
                    verb(step, ours)

    def signal(self) -> None:
        """Signal whatever waits for it."""
        keys = self.session.scalars(select(Video.id).order_by(Video.id))
        for key in list(keys):
            with suppress(NotWaiting):
                WORKFLOW.signal(self.session, key, S.RENDERED)

    def reap(self) -> None:
        """Take back every claim of both steps."""
        WORKFLOW.reap(self.session, lease=AT_ONCE)

    def cancel(self) -> None:
        """Cancel all jobs that nobody has claimed, those that wait for a signal, too."""
        WORKFLOW.cancel(self.session, self._jobs())

    def retry(self) -> None:
        """Take all jobs that have ended to the second step."""
        WORKFLOW.retry(self.session, self._jobs(), S.RENDERED)

    def _claims_more(self) -> bool:
        self.signal()
        self.claim()
        self.claim_next()
        return bool(self.fences)


#: Four steps each.
WORKFLOW_SCRIPTS: dict[str, tuple[Callable[[Sender], None], ...]] = {
    "hand off and signal": (Sender.complete, Sender.commit, Sender.signal, Sender.commit),
    "two steps at once": (Sender.branch, Sender.claim_next, Sender.branch, Sender.commit),
    "step, rolled back": (Sender.branch, Sender.rollback, Sender.branch, Sender.commit),
    "fail and claim": (Sender.fail, Sender.commit, Sender.claim, Sender.commit),
    "signal and claim": (Sender.signal, Sender.commit, Sender.claim_next, Sender.commit),
    "reap and claim": (Sender.reap, Sender.commit, Sender.claim_next, Sender.commit),
    "cancel and retry": (Sender.cancel, Sender.commit, Sender.retry, Sender.commit),
}
