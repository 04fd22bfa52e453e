"""A server that the tests start is stopped with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import until

KEEPER = Path(__file__).parents[1] / "servers" / "_keeper.py"


def test_a_keeper_stops_its_command_when_its_starter_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    log = folder / "log"
    command = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")

    with subprocess.Popen(
        (sys.executable, str(KEEPER), str(folder), "", "15", *command), stdin=subprocess.PIPE
    ) as process:
        until(lambda: log.exists() and log.read_bytes())
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(timeout=10) == 0
    assert not folder.exists()
