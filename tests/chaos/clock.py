"""A clock that can be stepped: libfaketime in front of the C library of a server.

SQLite has no server, and Python cannot sleep behind libfaketime. There SQLite's own function, which
reads the clock of its process, is replaced in each connection.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event

from tests.chaos.fault import Fault
from tests.servers import debian
from tests.servers.errors import NotHere

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Seconds of a step.
HOUR = 3600


class Clock:
    """The clock of the processes that have its variables."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.file = str(file)
        self.offset = self.highest = 0
        self.step(0)

    @classmethod
    def make(cls) -> Clock:
        """Make a clock that is right, where anybody may read it."""
        folder = Path(tempfile.mkdtemp(prefix="chaos-clock-"))
        folder.chmod(0o755)
        return cls(folder / "offset")

    def remove(self) -> None:
        """Remove its file, when no process needs it any more."""
        shutil.rmtree(self._file.parent)

    def variables(self, *, processes: bool) -> dict[str, str]:
        """Return the environment of a server of one process, or several.

        Raises:
            NotHere: there is no libfaketime.
        """
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": self.file,
            # A server of one process steps within a second; of several, each would by itself.
            "FAKETIME_NO_CACHE" if processes else "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else a timed wait of MySQL's ends at once, and its threads wait in a busy loop.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def step(self, offset: int) -> None:
        """Set the clock off by some seconds, for all processes at once."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+d}\n")
        os.replace(new, self._file)
        self.offset, self.highest = offset, max(self.highest, offset)


class StepClock(Fault):
    """Step the database's clock by an hour, forth or back, and the next time back to what it was.

    It ends at the latest time that it has had, so that leases end and delays are over.
    """

    name = "clock"
    cards = 2

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def happen(self, storm: Storm) -> str:
        storm.clock_steps = True
        before = self._clock.offset
        self._clock.step(0 if before else storm.dice.choice((HOUR, -HOUR)))
        return "the clock stepped forth" if self._clock.offset > before else "the clock set back"

    def settle(self) -> None:
        self._clock.step(self._clock.highest)


def under(engine: Engine, file: str | None) -> Engine:
    """Have SQLite's connections of an engine read a clock; without one they read the machine's."""
    if file is not None:
        event.listen(engine, "connect", partial(_replace_strftime, file))
    return engine


def _replace_strftime(file: str, connection: Any, record: object) -> None:
    plain = sqlite3.connect(":memory:", check_same_thread=False)

    def strftime(*arguments: str) -> str:
        step = (f"{Path(file).read_text().strip()} seconds",) if arguments[1] == "now" else ()
        marks = ", ".join("?" * len(arguments + step))
        found: str = plain.execute(f"SELECT strftime({marks})", arguments + step).fetchone()[0]
        return found

    # Deterministic: SQLite's own is called once for all rows of a statement, too.
    connection.create_function("strftime", -1, strftime, deterministic=True)


def can_be_stepped(database: str) -> None:
    """Raise NotHere where the clock of a database cannot be stepped."""
    if database != "sqlite":
        library()


def library() -> Path:
    """Find libfaketime, or install it as root on Debian; raise NotHere without it."""
    if (found := _found()) is not None:
        return found
    try:
        debian.install("libfaketime")
    except NotHere as missing:
        raise NotHere(f"a stepped clock needs libfaketime: {missing}") from missing
    if (found := _found()) is None:
        raise NotHere("Debian's libfaketime is not where it was looked for")
    return found


def _found() -> Path | None:
    folders = (Path("/usr/lib"), Path("/usr/local/lib"))
    libraries = (folder.glob("**/faketime/libfaketimeMT.so.1") for folder in folders)
    return next(chain.from_iterable(libraries), None)
