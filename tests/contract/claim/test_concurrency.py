"""Many processes drain one queue: no row is handled twice, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine, insert, select
from sqlalchemy.orm import Session

from tests.contract.claimers import Finished, LogBase, drain, run_processes
from tests.models import Base, Email
from tests.processes import FORKSERVER
from tests.support import STRATEGIES, make_engine

PROCESSES = 8

#: Rows of --full, of the strategy that `auto` takes, and of the others.
FULL_ROWS = 20_000
ROWS = 5_000
FEWER_ROWS = 2_000

pytestmark = [
    pytest.mark.load,
    pytest.mark.xdist_group("concurrency"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def queue_engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine on a database of its own, with the tables."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    LogBase.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_eight_processes_finish_every_job_once(
    queue_engine: Engine, strategy: str, db_alias: str, full: bool
) -> None:
    rows = ROWS if strategy == STRATEGIES[db_alias][0] else FEWER_ROWS
    rows = FULL_ROWS if full else rows
    with Session(queue_engine) as session:
        session.execute(insert(Email), [{"recipient": str(number)} for number in range(rows)])
        session.commit()
        ids = set(session.scalars(select(Email.id)))
    url = queue_engine.url.render_as_string(hide_password=False)

    all_ready = FORKSERVER.Barrier(PROCESSES)

    run_processes(drain, [(url, strategy, 100, seed, all_ready) for seed in range(PROCESSES)])

    with Session(queue_engine) as session:
        finished = Counter(session.scalars(select(Finished.job)))
        assert set(session.scalars(select(Email.status))) == {"done"}
        # With one writer at a time, one process may be quicker than all others.
        assert db_alias == "sqlite" or len(set(session.scalars(select(Finished.process)))) > 1
    assert set(finished) == ids
    assert max(finished.values()) == 1
