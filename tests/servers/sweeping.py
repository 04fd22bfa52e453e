"""Drop a run's databases from servers that outlive it, however the run ends.

    python -m tests.servers.sweeping

reads one line of JSON, waits for the next line or for the end of its input, and drops.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tests.servers import server_as_written
from tests.servers.companion import Companion
from tests.servers.given import REPOSITORY
from tests.servers.server import Server


class Sweeper:
    """Hold the process that drops the databases whose names begin with a prefix."""

    def __init__(self, servers: Sequence[Server], *, prefix: str) -> None:
        command = (sys.executable, "-m", __name__)
        self._companion = Companion(*command, folder=REPOSITORY)
        # Through the pipe: a command line would show the passwords to everybody.
        task = {"servers": [server.written() for server in servers], "prefix": prefix}
        self._companion.tell(json.dumps(task))

    def sweep(self) -> None:
        """Drop the databases now."""
        self._companion.end()


def main() -> None:
    """Wait for the end of the run, then drop its databases."""
    task = json.loads(sys.stdin.readline())
    sys.stdin.readline()
    for written in task["servers"]:
        server = server_as_written(written)
        server.drop_databases(prefix=task["prefix"])
        server.stop()


if __name__ == "__main__":
    main()
