"""Several claimers share the partitions."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim
from tests.contract.claimers import Finished, claim_some, run_processes
from tests.contract.partitions.support import ENTITIES, Parcel, Report, add, ids, statuses
from tests.support import SERVERS, make_engine

PARTITIONS = 8

pytestmark = [
    pytest.mark.xdist_group("partitions"),
    pytest.mark.timeout(240),
]

entities = pytest.mark.parametrize("entity", ENTITIES)
servers = pytest.mark.only_on(*SERVERS)


@servers
@entities
def test_a_claim_leaves_rows_of_other_partitions_to_other_claims(
    session: Session, other: Session, entity: Any
) -> None:
    """A locking read looks at the head of each partition, and InnoDB keeps these rows locked."""
    there = add(session, entity, PARTITIONS)

    first = claim(session, entity, owner="1", limit=1)
    second = claim(other, entity, owner="2", limit=PARTITIONS)

    assert (ids(first), ids(second)) == (there[:1], there[1:])


def drain(url: str, strategy: str, seed: int) -> None:
    """Claim and finish batches of both tables until nothing is left."""
    engine = make_engine(url)
    chance = random.Random(seed)
    for entity in ENTITIES:
        queue = JobQueue(entity, strategy=strategy)
        empty = 0
        while empty < 3:
            claimed = claim_some(engine, queue, chance.randint(1, 20))
            empty = 0 if claimed or claimed.lost else empty + 1
    engine.dispose()


ROWS = 400


@pytest.mark.load
@pytest.mark.strategies("auto")
@servers
def test_four_processes_finish_every_row_of_every_partition_once(
    engine: Engine, session: Session, strategy: str
) -> None:
    there = {*add(session, Parcel, ROWS), *add(session, Report, ROWS)}
    url = engine.url.render_as_string(hide_password=False)

    run_processes(drain, [(url, strategy, seed) for seed in range(4)])

    finished = Counter(session.scalars(select(Finished.job)))
    assert finished == dict.fromkeys(there, 1)
    for entity in ENTITIES:
        assert set(statuses(session, entity).values()) == {"done"}
