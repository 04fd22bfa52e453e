"""A server in a folder, on a port of its own, that is killed and started again on the same data."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tests.servers.errors import NotHere
from tests.servers.keeping import Binaries, Keeper, last_lines
from tests.servers.server import ask, connected, says
from tests.support import until

#: Seconds in which a server answers, joins others, or copies their data.
WITHIN = 120


@dataclass(eq=False)
class Node:
    """A server.

    Attributes:
        name: in reports.
        folder: its data, and its log.
        url: where it answers, with a database that is always there.
        binaries: how it is served.
    """

    name: str
    folder: Path
    url: URL
    binaries: Binaries
    keeper: Keeper | None = None

    @property
    def port(self) -> int:
        assert self.url.port is not None
        return self.url.port

    @property
    def running(self) -> bool:
        return self.keeper is not None and self.keeper.running

    def start(self, ready: Callable[[], bool] | None = None) -> None:
        """Start the server, and wait until it answers, or for what is asked of it.

        Raises:
            NotHere: it ends meanwhile; the message has the end of its log.
        """
        self.keeper = Keeper(self.binaries, self.folder, port=self.port)

        def so_far() -> bool:
            if not self.running:
                raise NotHere(f"{self.name} has ended: {last_lines(self.folder)}")
            return (ready or self.answers)()

        until(so_far, WITHIN)

    def kill(self) -> None:
        """Kill all processes of the server, and wait until they are gone; its data stays."""
        kill_all(self.folder / self.binaries.pid_file)
        if self.keeper is not None:
            until(lambda: not self.running)
            self.keeper.end()
        self.keeper = None

    def stop(self) -> None:
        """Stop the server, if it runs, and remove its folder."""
        if self.keeper is not None:
            self.keeper.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, query: str) -> str:
        """Return the only value of an answer; NotHere if the server gives none."""
        return ask(self.url, query)

    def says(self, query: str, answer: str) -> bool:
        """Tell whether the server answers, and with this."""
        return says(self.url, query, answer)

    def answers(self) -> bool:
        """Tell whether the server answers."""
        return self.says("SELECT 1", "1")

    def tell(self, *statements: str) -> None:
        """Execute statements in one connection, outside of transactions."""
        with connected(self.url) as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)


def kill_all(pid_file: Path) -> None:
    """Kill the process that a file names, and all that it has started; wait until they are gone."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended by itself
        first = int(pid_file.read_text().split()[0])
        numbers = (first, *children_of(first))
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        until(lambda: not any(map(is_alive, numbers)))


def children_of(process: int) -> list[int]:
    """List the processes that a process has started, and theirs."""
    found = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        for child in listed.read_text().split():
            found += [int(child), *children_of(int(child))]
    return found


def is_alive(number: int) -> bool:
    """Tell whether a process runs; one that has ended may wait for its parent."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
