"""Workers, async workers and producers under faults: nothing is lost, and nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.chaos.storm import Storm
from tests.chaos.verdict import judge

#: How long the processes are at it: in CI size, and with --full.
SECONDS = {False: 5, True: 60}

SEED = 20261122


@pytest.mark.load
@pytest.mark.timeout(300)
def test_whatever_is_done_to_its_processes_the_queue_loses_nothing(
    fresh_database: URL, tmp_path: Path, full: bool
) -> None:
    storm = Storm(fresh_database, tmp_path, SECONDS[full], SEED)

    storm.run()

    verdict = judge(storm)
    assert storm.done
    assert not verdict.faults, "\n".join(verdict.lines())
