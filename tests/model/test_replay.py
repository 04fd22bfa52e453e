"""The verbs do on each database what the model says."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.model.replay import Base, replaying
from tests.model.traces import Trace, stored
from tests.support import with_empty_tables

TRACES = {"servers": list(stored("servers")), "sqlite": list(stored("sqlite"))}


@pytest.mark.parametrize("number", range(len(TRACES["servers"])))
def test_the_verbs_take_every_step_of_a_trace(migrated: Engine, db_alias: str, number: int) -> None:
    trace: Trace = TRACES["sqlite" if db_alias == "sqlite" else "servers"][number]

    with replaying(with_empty_tables(migrated, Base.metadata)) as replay:
        replay.run(trace)
