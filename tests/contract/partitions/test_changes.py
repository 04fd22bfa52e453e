"""Rows change under a claim, and keys that a claim would change are refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    claim,
    claim_statements,
    complete,
)
from sa_jobqueue.migration import (
    timestamp_type,
)
from tests.contract.partitions.support import (
    ENTITIES,
    Base,
    Report,
    add,
    ids,
    statuses,
)
from tests.support import SERVERS, Sessions, statements_seen

pytestmark = [pytest.mark.xdist_group("partitions"), pytest.mark.timeout(240)]

entities = pytest.mark.parametrize("entity", ENTITIES)
servers = pytest.mark.only_on(*SERVERS)


#: Waits until the lock is released, after the statement has seen what it will claim.
GATE = literal_column("(SELECT 1 FROM pg_advisory_xact_lock_shared(4242))", Integer) == 1


@pytest.mark.only_on("postgresql")
@entities
def test_a_row_that_was_claimed_meanwhile_is_skipped(
    session: Session, other: Session, new_session: Sessions, entity: Any
) -> None:
    """A claim sees the first row, which somebody else claims before it is locked."""
    there = add(session, entity, 20)
    late, gate = new_session(), new_session()
    gate.execute(select(func.pg_advisory_lock(4242)))
    found: list[int] = []

    def claim_late() -> None:
        found.extend(ids(claim(late, entity, GATE, owner="late", limit=1)))
        late.rollback()

    thread = threading.Thread(target=claim_late)
    thread.start()
    waiting = text(  # at this gate: other tests wait for other locks
        "SELECT 1 FROM pg_locks JOIN pg_database ON database = pg_database.oid "
        "WHERE locktype = 'advisory' AND NOT granted AND objid = 4242 "
        "AND datname = current_database()"
    )
    while not gate.execute(waiting).first():
        assert thread.is_alive()
    claim(other, entity, owner="early", limit=1)
    other.commit()
    gate.execute(select(func.pg_advisory_unlock(4242)))
    thread.join(30)

    assert found == there[1:2]


class Restless(JobMixin, Base):
    """A key with the status, which MySQL requires where the status partitions the table."""

    __table__ = Table(
        "restless",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("status", String(16), primary_key=True, server_default="unclaimed"),
        Column("owner", String(64)),
        Column("owner_date", timestamp_type()),
    )


def test_a_key_that_a_claim_would_change_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"'status', which a claim writes.*never changes"):
        claim_statements(Restless, dialect="mysql")


# -- keys of several columns -----------------------------------------------------


@servers
def test_statements_for_many_keys_of_several_columns_are_planned_fast(
    engine: Engine, session: Session
) -> None:
    """PostgreSQL's time to plan (a, b) IN (..) grows with the square of the number of keys."""
    there = add(session, Report, 450)
    jobs = claim(session, Report, owner="w", limit=450)
    session.commit()

    with statements_seen(engine) as seen:
        complete(session, jobs)
        session.commit()

    assert len([one for one in seen if one.startswith("UPDATE report")]) == 3
    assert statuses(session, Report) == dict.fromkeys(there, "done")
