"""The verbs reach the rows of every partition."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    JobQueue,
    advisory_session,
    cancel,
    cancel_claimed,
    claim,
    complete,
    fail,
    prune,
    reap,
    release,
    renew,
    reprioritize,
    retry,
)
from tests.contract.partitions.support import ENTITIES, Report, add, ids, statuses
from tests.support import SERVERS

pytestmark = [pytest.mark.xdist_group("partitions"), pytest.mark.timeout(240)]

entities = pytest.mark.parametrize("entity", ENTITIES)
servers = pytest.mark.only_on(*SERVERS)


@servers
@entities
def test_a_claim_takes_the_first_of_all_partitions_in_order(
    session: Session, entity: Any, strategy: str
) -> None:
    there = add(session, entity, 40)

    first = claim(session, entity, owner="w", limit=20, strategy=strategy)
    complete(session, first)
    session.commit()

    assert ids(first) == there[:20]
    assert statuses(session, entity) == {
        **dict.fromkeys(there[:20], "done"),
        **dict.fromkeys(there[20:], "unclaimed"),
    }


def reaped(session: Session, jobs: Any) -> None:
    assert len(reap(session, type(jobs[0]), max_runtime=dt.timedelta(0))) == len(jobs)
    with pytest.raises(ClaimLost) as lost:
        complete(session, jobs)
    assert len(lost.value.lost) == len(jobs)


def pruned(session: Session, jobs: Any) -> None:
    complete(session, jobs)
    assert prune(session, type(jobs[0]), older_than=dt.timedelta(0)) == len(jobs)


def retried(session: Session, jobs: Any) -> None:
    cancel_claimed(session, jobs)
    assert len(retry(session, jobs)) == len(jobs)


def cancelled(session: Session, jobs: Any) -> None:
    release(session, jobs)
    assert len(cancel(session, jobs)) == len(jobs)


#: What is done with claimed jobs, and their status afterwards.
VERBS: list[tuple[Callable[[Session, Any], object], str | None]] = [
    (complete, "done"),
    (lambda session, jobs: complete(session, jobs, delete=True), None),
    (lambda session, jobs: fail(session, jobs, error="no"), "failed"),
    (cancel_claimed, "cancelled"),
    (release, "unclaimed"),
    (renew, "claimed"),
    (reaped, "unclaimed"),
    (pruned, None),
    (retried, "unclaimed"),
    (cancelled, "cancelled"),
]


@servers
@pytest.mark.parametrize(("verb", "word"), VERBS)
def test_a_verb_reaches_its_jobs_in_every_partition_and_no_others(
    session: Session, verb: Callable[[Session, Any], object], word: str | None
) -> None:
    most = 2 if verb is reaped else 1
    there = add(session, Report, 16, max_attempts=most)
    jobs = claim(session, Report, owner="w", limit=12)
    session.commit()

    verb(session, jobs)
    session.commit()

    found = statuses(session, Report)
    assert [found.get(key) for key in there] == [word] * 12 + ["unclaimed"] * 4


@servers
def test_new_priorities_and_strict_order_count_over_all_partitions(session: Session) -> None:
    there = add(session, Report, 16)
    later = session.scalars(select(Report).where(Report.id.in_(there[8:]))).all()
    reprioritize(session, later, -1)
    session.commit()
    queue = JobQueue(Report, strict_order=True)

    batches = [queue.claim(session, owner="w", limit=7) for _ in range(3)]

    assert [key for batch in batches for key in ids(batch)] == there[8:] + there[:8]


@pytest.mark.only_on("postgresql")
@entities
def test_advisory_claims_of_two_sessions_share_the_partitions(engine: Engine, entity: Any) -> None:
    with Session(engine) as session:
        there = add(session, entity, 20)

    with advisory_session(engine) as session, advisory_session(engine) as other:
        first = claim(session, entity, strategy="advisory", limit=8)
        second = claim(other, entity, strategy="advisory", limit=20)
        complete(session, first)
        session.commit()
        release(other, second)

        assert (ids(first), ids(second)) == (there[:8], there[8:])
        assert ids(claim(session, entity, strategy="advisory", limit=20)) == there[8:]
