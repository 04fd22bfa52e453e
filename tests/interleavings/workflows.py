"""What a session does in four steps to the jobs of a workflow, beside another session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import String, select
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue import ClaimLost, JobMixin, RetryMixin
from sa_jobqueue.workflow import NotWaiting, Step, Workflow
from tests.interleavings.scripts import AT_ONCE, Actor, Base


class Clip(JobMixin, RetryMixin, Base):
    """A job of two steps, between which it may wait for a signal."""

    __tablename__ = "stepped_clip"
    __queue_args__ = {  # noqa: RUF012 - as users do
        "names": {"unclaimed": "new", "claimed": "sending", "done": "published"},
        "ready": ["back"],
        "during": ["publishing"],
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(10))


WORKFLOW = Workflow(Clip)


@WORKFLOW.step("new", during="sending", then="away", branches=["back"])
def send(clip: Clip) -> None:
    """Hand a clip off."""


@WORKFLOW.step("back", during="publishing", then="published")
def publish(clip: Clip) -> None:
    """End the work on a clip."""


WORKFLOW.waiting("away", signals=["back"])


class Sender(Actor):
    """A session with a name, and the fences of what it has claimed in either step."""

    entity = Clip

    def claim(self) -> None:
        """Claim one job of the first step."""
        self._claim(send)

    def claim_next(self) -> None:
        """Claim one job of the second step."""
        self._claim(publish)

    def _claim(self, step: Step[Clip]) -> None:
        self.fences += step.queue.claim(self.session, owner=self.name, limit=1).fences

    def complete(self) -> None:
        """Move what was claimed to where its step leads."""
        self._finish(lambda step, fences: step.queue.complete(self.session, fences))

    def branch(self) -> None:
        """Move what was claimed to the second step, or end it there."""
        self._finish(
            lambda step, fences: step.queue.complete(
                self.session, fences, then="back" if step is send else None
            )
        )

    def fail(self) -> None:
        """Fail what was claimed."""
        self._finish(lambda step, fences: step.queue.fail(self.session, fences, retry_in=AT_ONCE))

    def _finish(self, verb: Callable[[Step[Clip], list[Any]], None]) -> None:
        finished, self.fences = self.fences, []
        for step in (send, publish):
            ours = [fence for fence in finished if fence.token.status == step.during]
            if ours:
                with suppress(ClaimLost):
                    verb(step, ours)

    def signal(self) -> None:
        """Signal whatever waits for it."""
        keys = self.session.scalars(select(Clip.id).order_by(Clip.id))
        for key in list(keys):
            with suppress(NotWaiting):
                WORKFLOW.signal(self.session, key, "back")

    def reap(self) -> None:
        """Take back every claim of both steps."""
        WORKFLOW.reap(self.session, lease=AT_ONCE)

    def cancel(self) -> None:
        """Cancel all jobs that nobody has claimed, those that wait for a signal, too."""
        WORKFLOW.cancel(self.session, self._jobs())

    def retry(self) -> None:
        """Take all jobs that have ended to the second step."""
        WORKFLOW.retry(self.session, self._jobs(), "back")

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
