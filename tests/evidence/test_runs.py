"""Runs of several processes, one of them killed: the checker finds nothing in their histories."""

from __future__ import annotations

import time

import pytest

from sa_jobqueue.evidence import check_files
from tests.evidence.bench import Bench
from tests.evidence.churn import churn, drain
from tests.processes import FORKSERVER

#: How long the processes churn: in CI size, and with --full.
SECONDS = {False: 1, True: 60}


@pytest.mark.load
def test_whatever_processes_do_the_history_is_sound(
    bench: Bench, db_alias: str, full: bool
) -> None:
    url = bench.engine.url.render_as_string(hide_password=False)
    options = {} if db_alias == "sqlite" else {"isolation_level": "READ COMMITTED"}
    # A file of its own for one process; the others share a file.
    paths = [bench.path.with_name(f"{number}.jsonl") for number in range(2)]
    processes = [
        FORKSERVER.Process(
            target=churn,
            args=(url, str(paths[number % 2]), f"churn-{number}", SECONDS[full], options),
        )
        for number in range(3)
    ]

    for process in processes:
        process.start()
    time.sleep(SECONDS[full] / 2)
    processes[0].kill()
    for process in processes:
        process.join()
    drain(url, str(paths[0]), options)

    assert [process.exitcode for process in processes] == [-9, 0, 0]
    faults = check_files(*paths, drained=True)
    assert not faults, "\n".join(line for fault in faults[:3] for line in fault.story())
