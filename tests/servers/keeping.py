"""Start a server in a temporary folder, so that it never outlives this process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers import _keeper
from tests.servers.companion import Companion
from tests.servers.errors import NotHere

LOCALHOST = "127.0.0.1"
INITIALIZE_TIMEOUT = 300
LOG_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Binaries(ABC):
    """Say how a database's programs make a data folder and serve it.

    Attributes:
        environment: variables that the programs need besides ours.
        user: whom the programs run as, if not as us.
        stop_signal: ends the server at once; its data is thrown away anyway.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM

    @abstractmethod
    def initialize(self, folder: Path) -> tuple[str, ...]:
        """Return the command that creates the data folder."""

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
            *binaries.serve(folder, port=port),
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
    with (folder / "log").open("ab") as log:
        done = subprocess.run(
            binaries.initialize(folder),
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
        raise NotHere(f"its data folder could not be made: {last_lines(folder)}")


def last_lines(folder: Path) -> str:
    """Return the end of a server's log, in one line."""
    lines = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(lines[-LOG_LINES:])


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        port: int = probe.getsockname()[1]
        return port
