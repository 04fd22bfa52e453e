"""Start a server in a temporary folder, so that it never outlives this process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tests.servers import _keeper
from tests.servers.companion import Companion
from tests.servers.errors import NotHere

LOCALHOST = "127.0.0.1"
INITIALIZE_TIMEOUT = 300
START_TIMEOUT = 60.0
LOOK_EVERY = 0.1
PORT_ATTEMPTS = 3
LOG_LINES = 5

#: Below the ports that the system gives to clients, who would else take that of a killed server.
PORTS = range(20_000, 32_000)


@dataclass(frozen=True, kw_only=True)
class Binaries(ABC):
    """Say how a database's programs make a data folder and serve it.

    Attributes:
        environment: variables that the programs need besides ours.
        variables: those of the server alone.
        options: of the server, in the place of those that it has otherwise.
        user: whom the programs run as, if not as us.
        stop_signal: ends the server at once; its data is thrown away anyway.
        pid_file: in the server's folder, begins with the number of its process.
        durable: the options with which a COMMIT outlives a crash.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    pid_file: ClassVar[str] = "pid"
    durable: ClassVar[tuple[str, ...]] = ()

    def initialize(self, folder: Path) -> tuple[str, ...]:
        """Return the command that creates the data folder; by default there is none."""
        return ("true",)

    @abstractmethod
    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        """Return the command that serves the data folder on a port."""


class Keeper:
    """Run a server through a process that stops it when we are gone."""

    def __init__(self, binaries: Binaries, folder: Path, *, port: int) -> None:
        self.folder = folder
        self._companion = Companion(
            *(sys.executable, "-I", _keeper.__file__),
            *(str(folder), binaries.user or "", str(int(binaries.stop_signal))),
            *("env", *(f"{name}={value}" for name, value in binaries.variables.items())),
            *(*binaries.serve(folder, port=port), *binaries.options),
            folder=folder,
            environment=binaries.environment,
        )

    @property
    def running(self) -> bool:
        return self._companion.running

    def end(self) -> None:
        """Stop the server, if it still runs; the folder of one that failed stays."""
        self._companion.end()

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_folder(database: str, *, user: str | None = None, within: Path | None = None) -> Path:
    """Make a temporary folder that belongs to the user whom the server runs as."""
    folder = Path(tempfile.mkdtemp(prefix=f"sa_jobqueue_{database}_", dir=within))
    if user is not None:
        shutil.chown(folder, user=user)
    return folder


def initialize(binaries: Binaries, folder: Path) -> None:
    """Make the data folder."""
    run_logged(binaries, folder, *binaries.initialize(folder), why="its data folder was not made")


def run_logged(binaries: Binaries, folder: Path, *command: str, why: str) -> None:
    """Run a command as the server's user into its log; raise NotHere if it fails."""
    with (folder / "log").open("ab") as log:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **binaries.environment},
            timeout=INITIALIZE_TIMEOUT,
            check=False,
            **_keeper.as_user(binaries.user or ""),
        )
    if done.returncode != 0:
        raise NotHere(f"{why}: {last_lines(folder)}")


def serve(
    binaries: Binaries, folder: Path, answers: Callable[[int], bool], *, port: int | None = None
) -> tuple[Keeper, int]:
    """Serve a folder on a port, by default on a free one, until the server answers there."""
    for _ in range(PORT_ATTEMPTS):  # a free port may be taken by the time that it is listened on
        number = port or free_ports(1)[0]
        keeper = Keeper(binaries, folder, port=number)
        deadline = time.monotonic() + START_TIMEOUT
        while keeper.running:
            if answers(number):
                return keeper, number
            if time.monotonic() > deadline:
                said = last_lines(folder)
                keeper.end()
                raise NotHere(f"its server does not answer: {said}")
            time.sleep(LOOK_EVERY)
        keeper.end()
    raise NotHere(f"its server ended at once: {last_lines(folder)}")


def last_lines(folder: Path) -> str:
    """Return the end of a server's log, in one line."""
    lines = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(lines[-LOG_LINES:])


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            if probe.connect_ex((LOCALHOST, port)) != 0:
                found.append(port)
        if len(found) == count:
            return found
    raise NotHere(f"fewer than {count} ports are free")
