"""Queues that are folders: a job is a file, and the worker that removes the file has the job.

Some break a queue's promises; the harness has to notice.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.adapters.adapter import Adapter
from benchmarks.adapters.catalogue import Entry


class Folder(Adapter):
    """A queue that keeps its promises."""

    def create(self) -> None:
        for job in self._jobs():
            job.unlink()

    def fill(self, jobs: int) -> None:
        for number in range(1, jobs + 1):
            (Path(self.url) / str(number)).touch()

    def left(self) -> int:
        return len(self._jobs())

    def open(self) -> None: ...

    def drain(self) -> list[int]:
        return [int(job.name) for job in self._jobs() if self.took(job)]

    def took(self, job: Path) -> bool:
        """Remove a job, unless somebody else removed it first."""
        try:
            job.unlink()
        except FileNotFoundError:
            return False
        return True

    def _jobs(self) -> list[Path]:
        return sorted(Path(self.url).iterdir(), key=lambda job: int(job.name))


class Losing(Folder):
    """Its first job is gone before a worker ran it."""

    def drain(self) -> list[int]:
        return [number for number in super().drain() if number != 1]


class Leaving(Folder):
    """It never hands out its first job."""

    def took(self, job: Path) -> bool:
        return job.name != "1" and super().took(job)


class Repeating(Folder):
    """It hands its first job to every worker."""

    def drain(self) -> list[int]:
        return [1, *super().drain()]


class Retrying(Folder):
    """Each of its workers met two deadlocks."""

    def drain(self) -> list[int]:
        self.retries += 2
        return super().drain()


class Breaking(Folder):
    """Its workers end before they answer."""

    def drain(self) -> list[int]:
        raise SystemExit(3)


def fake(adapter: type[Adapter], name: str = "sql") -> Entry:
    """Make an entry of an adapter of this module, as the baseline by default."""
    return Entry(name, f"{adapter.__module__}:{adapter.__name__}")
