"""The verbs do on each database what the model says."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.contract.round_models import emptied
from tests.model.replay import replaying
from tests.model.traces import Trace, stored

TRACES = {"servers": list(stored("servers")), "sqlite": list(stored("sqlite"))}


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("number", range(len(TRACES["servers"])))
def test_the_verbs_take_every_step_of_a_trace(migrated: Engine, db_alias: str, number: int) -> None:
    trace: Trace = TRACES["sqlite" if db_alias == "sqlite" else "servers"][number]

    with replaying(emptied(migrated)) as replay:
        replay.run(trace)
