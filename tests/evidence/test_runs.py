"""Runs of several processes, one of them killed: the checker finds nothing in their histories."""

from __future__ import annotations

import pytest

from tests.evidence.bench import Bench
from tests.evidence.checker import check_files
from tests.evidence.churn import run_churn

#: How long the processes churn: in CI size, and with --full.
SECONDS = {False: 1, True: 60}


@pytest.mark.load
def test_whatever_processes_do_the_history_is_sound(bench: Bench, full: bool) -> None:
    paths = run_churn(bench, seconds=SECONDS[full])

    faults = check_files(*paths, drained=True)
    assert not faults, "\n".join(line for fault in faults[:3] for line in fault.story())
