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
    rest = [] if strategy == "held" else claim(session, entity, owner="w", limit=40)

    assert ids(first) == there[:20]
    assert ids(rest) == ([] if strategy == "held" else there[20:])


VERBS: dict[str, tuple[Callable[[Session, Any], object], str | None]] = {
    "complete": (complete, "done"),
    "delete": (lambda session, jobs: complete(session, jobs, delete=True), None),
    "fail": (lambda session, jobs: fail(session, jobs, error="no"), "failed"),
    "cancel_claimed": (cancel_claimed, "cancelled"),
    "release": (release, "unclaimed"),
    "renew": (renew, "claimed"),
}


@servers
@entities
@pytest.mark.parametrize("verb", VERBS)
def test_a_finish_writes_to_the_claimed_rows_of_every_partition(
    session: Session, entity: Any, strategy: str, verb: str
) -> None:
    there = add(session, entity, 16, **({"max_attempts": 1} if entity is Report else {}))
    write, word = VERBS[verb]
    jobs = claim(session, entity, owner="w", limit=12, strategy=strategy)
    if strategy != "held":
        session.commit()

    write(session, jobs)
    session.commit()

    if strategy == "held" and verb == "renew":
        word = "unclaimed"  # nothing was marked
    found = statuses(session, entity)
    assert [found.get(key) for key in there] == [word] * 12 + ["unclaimed"] * 4


@servers
@entities
@pytest.mark.strategies("skip_locked", "candidates", "update_then_select")
def test_a_claim_that_was_reaped_is_lost_and_nothing_is_written(
    session: Session, other: Session, entity: Any, strategy: str
) -> None:
    there = add(session, entity, 10)
    jobs = claim(session, entity, owner="w", limit=10, strategy=strategy)
    session.commit()
    reaped = reap(other, entity, max_runtime=dt.timedelta(0))
    other.commit()

    with pytest.raises(ClaimLost) as lost:
        complete(session, jobs)

    assert (len(reaped), len(lost.value.lost)) == (10, 10)
    assert statuses(session, entity) == dict.fromkeys(there, "unclaimed")


@servers
def test_a_failed_job_is_claimed_again_after_its_delay(session: Session) -> None:
    there = add(session, Report, 10)
    jobs = claim(session, Report, owner="w", limit=10)

    fail(session, jobs[:5], retry_in=dt.timedelta(hours=1))
    fail(session, jobs[5:], retry_in=dt.timedelta(0))
    session.commit()

    assert ids(claim(session, Report, owner="w", limit=10)) == there[5:]


CHANGES: dict[str, tuple[Callable[[Session, Any], list[Any]], str]] = {
    "cancel": (cancel, "cancelled"),
    "retry": (lambda session, jobs: retry(session, cancel(session, jobs)), "unclaimed"),
}


@servers
@entities
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_without_a_claim_reaches_every_partition(
    session: Session, entity: Any, change: str
) -> None:
    there = add(session, entity, 12)
    write, word = CHANGES[change]
    jobs = session.scalars(select(entity).where(entity.id.in_(there[:10]))).all()

    changed = write(session, jobs)
    session.commit()

    found = statuses(session, entity)
    assert len(changed) == 10
    assert [found[key] for key in there] == [word] * 10 + ["unclaimed"] * 2


@servers
def test_a_new_priority_puts_jobs_of_every_partition_first(session: Session) -> None:
    there = add(session, Report, 16)
    session.commit()
    later = session.scalars(select(Report).where(Report.id.in_(there[8:]))).all()

    reprioritize(session, later, -1)
    session.commit()

    assert ids(claim(session, Report, owner="w", limit=16)) == there[8:] + there[:8]


@servers
@entities
def test_done_rows_are_pruned_from_every_partition(session: Session, entity: Any) -> None:
    there = add(session, entity, 20)
    complete(session, claim(session, entity, owner="w", limit=15))
    session.commit()

    pruned = prune(session, entity, older_than=dt.timedelta(0))
    session.commit()

    assert pruned == 15
    assert ids(claim(session, entity, owner="w", limit=20)) == there[15:]


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


@servers
def test_strict_order_waits_for_no_partition_but_keeps_the_order(session: Session) -> None:
    there = add(session, Report, 20)
    queue = JobQueue(Report, strict_order=True)

    batches = [queue.claim(session, owner="w", limit=7) for _ in range(3)]

    assert [key for batch in batches for key in ids(batch)] == there
