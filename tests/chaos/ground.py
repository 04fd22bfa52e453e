"""Where a run takes place: a server of its own, its network, its disk and its clock, as far as
this machine lets us have them; else a server that others use, too, and fewer faults.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy import URL

from tests.chaos.clock import StepClock, steppable_clock
from tests.chaos.disk import FullDisk, small_disk
from tests.chaos.fault import Fault, everywhere
from tests.chaos.link import Cut, laid_link
from tests.chaos.own_server import Crash, Own, OwnServer, own_folder
from tests.chaos.silence import FORGETS, Hang, Silence
from tests.chaos.snapshot import Snapshot
from tests.proxy import Proxy
from tests.servers import provide
from tests.servers.errors import NotHere

#: What --faults may name.
FAULTS = ("kill", "stop", "connections", "crash", "cut", "disk", "clock", "silent", "snapshot")

Part = TypeVar("Part")


@dataclass
class Ground:
    """What a run has.

    Attributes:
        faults: those that are wanted and can be done here.
        left_out: why others cannot be done here.
        far: the URL and the name of the network that can be cut off.
        through: the URL of the proxy that goes silent.
        clock: the file of SQLite's clock.
    """

    database: str
    wanted: Collection[str]
    stack: ExitStack
    faults: list[Fault] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    far: tuple[URL, str] | None = None
    through: URL | None = None
    clock: str | None = None
    version: str = ""

    def prepare(self) -> URL:
        """Make all that can be had, and return the URL of an empty database."""
        self.faults += [one for one in everywhere(self.database) if one.name in self.wanted]
        try:
            url = self._on_own_server()
        except NotHere as missing:
            self.left_out.append(f"no server of its own, so no other faults: {missing}")
            url = self._on_shared_server()
        if "silent" in self.wanted and self.database == "sqlite":
            self.faults.append(Hang())
        elif "silent" in self.wanted:
            proxy = self.stack.enter_context(Proxy(url, forgets=FORGETS))
            self.faults.append(Silence(proxy))
            self.through = proxy.url
        if "snapshot" in self.wanted and self.database != "sqlite":  # a reader stops its writers
            self.faults.append(Snapshot())
        return url

    def _on_own_server(self) -> URL:
        disk = self._part("disk", small_disk)
        clock = self._part("clock", partial(steppable_clock, self.database))
        folder = disk.folder if disk else None
        own: Own
        if self.database == "sqlite":
            link, own = None, own_folder(folder)
            self.clock = clock.file if clock else None
        else:
            link = self._part("cut", laid_link)
            variables = clock.variables(self.database) if clock else {}
            near = link.near if link else None
            own = OwnServer(self.database, folder, variables, near)
        self.stack.callback(own.stop)
        url, self.version = own.server.create_database("chaos"), own.server.version
        if disk is not None:
            self.faults.append(FullDisk(own, disk))
        if clock is not None:
            self.faults.append(StepClock(clock))
        if "crash" in self.wanted and isinstance(own, OwnServer):
            self.faults.append(Crash(own))
        if link is not None:
            self.faults.append(Cut(link))
            self.far = url.set(host=link.near), link.namespace
        return url

    def _on_shared_server(self) -> URL:
        server, name = provide(self.database), f"sa_jobqueue_{secrets.token_hex(4)}"
        self.stack.callback(server.stop)
        self.stack.callback(server.drop_database, name)
        self.version = server.version
        return server.create_database(name)

    def _part(self, name: str, made: Callable[[], AbstractContextManager[Part]]) -> Part | None:
        """Make what a fault needs, if it is wanted; it is removed when the run ends."""
        if name not in self.wanted:
            return None
        try:
            return self.stack.enter_context(made())
        except NotHere as missing:
            self.left_out.append(f"{name}: {missing}")
            return None


@contextmanager
def ground(database: str, wanted: Collection[str]) -> Iterator[tuple[Ground, URL]]:
    """Prepare all that a run needs, and remove it afterwards."""
    with ExitStack() as stack:
        made = Ground(database, wanted, stack)
        yield made, made.prepare()
