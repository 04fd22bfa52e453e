"""What a fault is, and those that are done to processes and connections."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.exc import DBAPIError

from tests.chaos.jobs import LEASE
from tests.support import OTHERS, cut_connections

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: The fault that could not be done, since there was nobody to do it to.
NOTHING = "nothing"

#: Seconds beyond a lease.
BEYOND_LEASE = LEASE.total_seconds() * 1.5


class Fault(ABC):
    """One kind of fault, done again and again.

    Attributes:
        name: as --faults has it.
        cards: how many times it lies in the deck from which the next fault is drawn.
    """

    name: ClassVar[str]
    cards: ClassVar[int] = 1

    @abstractmethod
    def happen(self, storm: Storm) -> str:
        """Do it, and return what was done; what lasts is ended by ``storm.later()``."""

    def settle(self) -> None:  # noqa: B027 - most faults leave nothing behind
        """Before the end: undo what would keep jobs from being finished."""


class Outage(Fault):
    """What a place suffers for a while; then it is left alone for as long.

    Args:
        place: suffers one outage at a time, and notes it as `in_trouble`.

    Attributes:
        down: between how many seconds it lasts.
        rest: for how many seconds the place is left alone at least.
    """

    down: tuple[float, float] = (0, BEYOND_LEASE)
    rest: ClassVar[float] = BEYOND_LEASE

    def __init__(self, place: Any) -> None:
        self.place = place

    @abstractmethod
    def begin(self, storm: Storm) -> str:
        """Do it, and return what was done."""

    @abstractmethod
    def end(self, storm: Storm) -> None:
        """Undo it."""

    def happen(self, storm: Storm) -> str:
        if self.place.in_trouble:
            return NOTHING
        self.place.in_trouble = True
        what = self.begin(storm)
        seconds = storm.dice.uniform(*self.down)
        storm.later(seconds, partial(self._end, storm, seconds))
        return what

    def _end(self, storm: Storm, seconds: float) -> None:
        self.end(storm)
        storm.later(max(seconds, self.rest), partial(setattr, self.place, "in_trouble", False))


class Kill(Fault):
    """Kill a player, stopped or not, and start another in its place."""

    name = "kill"
    cards = 2

    def happen(self, storm: Storm) -> str:
        victim = storm.dice.choice(storm.running)
        storm.harmed.add(victim.player.name)
        victim.process.kill()
        victim.process.join()
        storm.replace(victim)
        return f"SIGKILL, {victim.player.kind}"


class Stop(Fault):
    """Let a player stand still until its lease is over, unless most of them do."""

    name = "stop"
    cards = 2

    def happen(self, storm: Storm) -> str:
        moving = [running for running in storm.running if not running.stopped]
        if len(moving) < 3:
            return NOTHING
        victim = storm.dice.choice(moving)
        storm.harmed.add(victim.player.name)
        victim.signal(signal.SIGSTOP)
        storm.later(BEYOND_LEASE, partial(victim.signal, signal.SIGCONT))
        return f"SIGSTOP, {victim.player.kind}"


class EndConnection(Fault):
    """Have the server end one connection."""

    name = "connections"
    cards = 2

    def happen(self, storm: Storm) -> str:
        with suppress(DBAPIError, IndexError):  # it has ended, there is none, the server is down
            alias = storm.url.get_backend_name()
            cut_connections(storm.url, alias, lambda numbers: [storm.dice.choice(numbers)])
            return "a connection ended by the server"
        return NOTHING


class EndConnections(Fault):
    """Have the server end all connections."""

    name = "connections"

    def happen(self, storm: Storm) -> str:
        with suppress(DBAPIError):  # one has ended meanwhile, or the server is down
            cut_connections(storm.url, storm.url.get_backend_name())
        return "all connections ended by the server"


def everywhere(alias: str) -> list[Fault]:
    """Return the faults that can be done on any server, also on one that others use."""
    ending: list[Fault] = [EndConnection(), EndConnections()] if alias in OTHERS else []
    return [Kill(), Stop(), *ending]
