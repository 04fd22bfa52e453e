"""A network that goes silent: workers connect through a proxy, which then closes no connection.

SQLite has no network. There a statement never ends, and may keep the file locked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import BEYOND_LEASE, Fault, Outage
from tests.chaos.jobs import DEADLINE
from tests.proxy import Proxy

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Seconds after which a server has found out by itself that a silent client has gone.
FORGETS = BEYOND_LEASE

#: The file that tells players of a Hang.
HANG = "hang"


class Silence(Outage):
    """Forget the connections that are there, or hold all that is sent for a while."""

    name = "silent"
    down = (0, 2 * DEADLINE.total_seconds())
    in_trouble = False

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(self)
        self._proxy = proxy

    def begin(self, storm: Storm) -> str:
        if storm.dice.randrange(2):
            self._proxy.go_silent()
            self._proxy.speak()  # for new connections
            return "established connections gone silent"
        self._proxy.hold()
        return "the network silent for a while"

    def end(self, storm: Storm) -> None:
        self._proxy.release()


class Hang(Fault):
    """Have the next statement of a worker never end."""

    name = "silent"

    def happen(self, storm: Storm) -> str:
        (storm.folder / HANG).touch()
        return "a statement that never ends"
