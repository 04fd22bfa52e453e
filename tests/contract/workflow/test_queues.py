"""The queue of a step has the verbs of a JobQueue, and the workflow's listeners are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError
from tests.contract.workflow.support import logged
from tests.videos import S, add_videos, videos

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


def test_a_step_takes_new_jobs_which_no_other_step_claims(session: Session) -> None:
    first, second, _ = videos()

    second.queue.enqueue(session, [{"title": "a"}])

    assert not first.queue.claim(session, owner="w")
    assert second.queue.claim(session, owner="w")


def test_a_step_cancels_its_own_unclaimed_jobs_and_takes_ended_ones_again(session: Session) -> None:
    _, step, _ = videos()
    jobs = [add_videos(session, status, status=status)[0] for status in S]

    gone, again = step.queue.cancel(session, jobs), step.queue.retry(session, jobs)

    assert [job.title for job in gone] == ["checked"]
    assert {job.title for job in again} == {"checked", "published", "rejected"}
    assert {job.status for job in again} == {S.CHECKED}
    session.flush()
    assert ("rejected", "checked", "retry") in logged(session)


def test_a_step_prunes_jobs_that_have_ended_and_no_others(session: Session) -> None:
    _, step, _ = videos()
    add_videos(session, "a", status=S.PUBLISHED, owner_date=datetime(2020, 1, 1, tzinfo=UTC))

    with pytest.raises(ArgumentError, match=r"'at farm' is not final: the final statuses are"):
        step.queue.prune(session, older_than=timedelta(0), statuses=[S.AT_FARM])

    assert step.queue.prune(session, older_than=timedelta(days=1)) == 1
