"""A network that can be cut: a namespace of its own, and the one cable to it."""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.fault import BEYOND_LEASE, NOTHING, Fault
from tests.servers import debian
from tests.servers.errors import NotHere

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: How soon a process in the namespace finds out that nobody is there: seconds, seconds, times.
KEEPALIVE = {"time": 5, "intvl": 2, "probes": 3}

CLONE_NEWNET = 0x40000000


@dataclass
class Link:
    """A namespace and its cable.

    Attributes:
        near: the address at this end of the cable.
    """

    namespace: str
    near: str
    device: str
    is_cut: bool = False

    def cut(self) -> None:
        """Drop every packet, without a word to either side."""
        self.is_cut = True
        ip("link", "set", self.device, "down")

    def mend(self) -> None:
        """Let packets pass again."""
        ip("link", "set", self.device, "up")
        self.is_cut = False


@contextmanager
def laid_link() -> Iterator[Link]:
    """Make a namespace with a cable, and remove both; needs root, and iproute2."""
    require_ip()
    token = secrets.token_bytes(2)
    network = f"10.{token[0]}.{token[1]}"
    link = Link(f"chaos-{token.hex()}", f"{network}.1", f"chaos{token.hex()}")
    inside = ("-n", link.namespace)
    peer = ("type", "veth", "peer", "name", "far", "netns", link.namespace)
    ip("netns", "add", link.namespace)
    try:
        ip("link", "add", link.device, *peer)
        ip("addr", "add", f"{link.near}/30", "dev", link.device)
        ip("link", "set", link.device, "up")
        ip(*inside, "addr", "add", f"{network}.2/30", "dev", "far")
        ip(*inside, "link", "set", "far", "up")
        ip(*inside, "link", "set", "lo", "up")
        yield link
    finally:  # the cable goes with it
        ip("netns", "del", link.namespace)


class Cut(Fault):
    """Cut the players of the namespace off until their leases are over, then mend the link.

    Their connections are half open meanwhile: what the server ends, or loses in a crash, they learn
    nothing of.
    """

    name = "cut"

    def __init__(self, link: Link) -> None:
        self._link = link

    def happen(self, storm: Storm) -> str:
        if self._link.is_cut:
            return NOTHING
        far = [running for running in storm.running if running.player.namespace is not None]
        storm.harmed |= {running.player.name for running in far}
        self._link.cut()
        storm.later(BEYOND_LEASE, self._link.mend)
        return "a network cut"


def enter(namespace: str) -> None:
    """Move this process into a namespace, before it has any thread or connection."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(handle, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.close(handle)
    for name, value in KEEPALIVE.items():
        with suppress(OSError):  # a container may not let us
            Path(f"/proc/sys/net/ipv4/tcp_keepalive_{name}").write_text(str(value))


def require_ip() -> None:
    """Raise NotHere unless we may make namespaces; iproute2 is installed on Debian."""
    if os.geteuid() != 0:
        raise NotHere("a network namespace needs root")
    debian.find("ip", "iproute2")


def ip(*command: str) -> None:
    """Run iproute2's program; raise NotHere with its own words."""
    debian.run(debian.find("ip", "iproute2"), *command)
