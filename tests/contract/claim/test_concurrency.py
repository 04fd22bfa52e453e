"""Many processes drain one queue: no row is handled twice, and none is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.orm import Session

from tests.contract.claimers import Finished, LogBase, drain, run_processes
from tests.models import Email
from tests.processes import FORKSERVER
from tests.support import STRATEGIES

PROCESSES = 8

#: Rows of --full, of the strategy that `auto` takes, and of the others.
FULL_ROWS = 20_000
ROWS = 5_000
FEWER_ROWS = 2_000

pytestmark = [
    pytest.mark.load,
    pytest.mark.by_turns("mysql", "mariadb"),
    pytest.mark.xdist_group("concurrency"),
    pytest.mark.timeout(300),
]


def test_eight_processes_finish_every_job_once(
    own_engine: Engine, strategy: str, db_alias: str, full: bool
) -> None:
    LogBase.metadata.create_all(own_engine)
    rows = ROWS if strategy == STRATEGIES[db_alias][0] else FEWER_ROWS
    rows = FULL_ROWS if full else rows
    with Session(own_engine) as session:
        session.execute(insert(Email), [{"recipient": str(number)} for number in range(rows)])
        session.commit()
        ids = set(session.scalars(select(Email.id)))
    url = own_engine.url.render_as_string(hide_password=False)

    all_ready = FORKSERVER.Barrier(PROCESSES)

    run_processes(
        drain, [(url, Email, strategy, 100, seed, all_ready) for seed in range(PROCESSES)]
    )

    with Session(own_engine) as session:
        finished = Counter(session.scalars(select(Finished.job)))
        assert set(session.scalars(select(Email.status))) == {"done"}
        # With one writer at a time, one process may be quicker than all others.
        assert db_alias == "sqlite" or len(set(session.scalars(select(Finished.process)))) > 1
    assert set(finished) == ids
    assert max(finished.values()) == 1
