"""Processes that change their adapter, since starting a process takes half a second."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import make_url

from benchmarks.adapters.catalogue import CATALOGUE
from benchmarks.harness.host import load
from benchmarks.harness.processes import Host, hosts

HOST = f"{__name__}:Switching"


class Switching:
    """The adapter that was chosen last."""

    def __init__(self, url: str, batch: int) -> None:
        self.url = url
        self.batch = batch
        self.retries = 0
        self.ended_at: float | None = None
        self._chosen: Any = None

    def choose(self, number: int) -> None:
        """Become the adapter with this index in the catalogue."""
        entry = list(CATALOGUE.values())[number]
        path = entry.path_on(make_url(self.url).get_backend_name())
        self._chosen = load(path)(self.url, self.batch)
        self.retries = 0
        # What was imported stays: the host looks for garbage before each command.
        gc.freeze()

    def drain(self) -> Any:
        run = self._chosen.drain()
        self.retries = self._chosen.retries
        return run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen, name)


@contextmanager
def switching_hosts(count: int, url: str, batch: int) -> Iterator[Any]:
    """Give a stand-in for ``hosts()``, whose processes become the adapter that is wanted."""
    with hosts(count, sys.executable, HOST, url, batch) as running:

        @contextmanager
        def switched(_: int, python: str, path: str, *same: object) -> Iterator[list[Host]]:
            database = make_url(url).get_backend_name()
            paths = [entry.path_on(database) for entry in CATALOGUE.values()]
            for host in running:
                host.ask(f"choose {paths.index(path)}")
            yield running

        yield switched
