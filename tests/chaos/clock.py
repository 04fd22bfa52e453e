"""A clock that can be stepped: libfaketime in front of the C library of a server.

SQLite has no server: there the clock is that of the players' processes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault
from tests.servers.errors import NotHere

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Seconds of a step.
HOUR = 3600

#: The variable that names the file of a clock; a process that has it is under it already.
FILE = "FAKETIME_TIMESTAMP_FILE"


class Clock:
    """The clock of the processes that have its variables."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset = self.highest = 0
        self.step(0)

    @classmethod
    def make(cls) -> Clock:
        """Make a clock that is right, where anybody may read it; raise NotHere if it cannot be."""
        library()
        folder = Path(tempfile.mkdtemp(prefix="chaos-clock-"))
        folder.chmod(0o755)
        return cls(folder / "offset")

    @classmethod
    def of_this_process(cls) -> Clock:
        """Return the clock that this process was started under; raise NotHere if there is none."""
        if FILE not in os.environ:
            library()
            raise NotHere(f"this process was started without {FILE}")
        return cls(Path(os.environ[FILE]))

    def remove(self) -> None:
        """Remove its file, when no process needs it any more."""
        shutil.rmtree(self._file.parent)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the processes."""
        return {
            "LD_PRELOAD": str(library()),
            FILE: str(self._file),
            "FAKETIME_NO_CACHE": "1",  # else each process steps when it likes
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
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


def library() -> Path:
    """Find libfaketime; raise NotHere without it."""
    for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
        for found in sorted(folder.glob("**/faketime/libfaketimeMT.so.1")):
            return found
    raise NotHere("a stepped clock needs libfaketime (Debian: libfaketime)")
