"""A network that can be cut: a namespace of its own, and the one cable to it."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
from contextlib import suppress
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


class Link:
    """A namespace and its cable; needs root, and iproute2."""

    def __init__(self) -> None:
        token = secrets.token_bytes(2)
        self.namespace = f"chaos-{token.hex()}"
        self._device = f"chaos{token.hex()}"
        network = f"10.{token[0]}.{token[1]}"
        self.near, self.far = f"{network}.1", f"{network}.2"
        self.is_cut = False

    def make(self) -> None:
        """Make the namespace; raise NotHere where that is not allowed."""
        require_ip()
        ip("netns", "add", self.namespace)
        try:
            self._lay_cable()
        except NotHere:
            self.remove()
            raise

    def _lay_cable(self) -> None:
        inside = ("-n", self.namespace)
        peer = ("type", "veth", "peer", "name", "far", "netns", self.namespace)
        ip("link", "add", self._device, *peer)
        ip("addr", "add", f"{self.near}/30", "dev", self._device)
        ip("link", "set", self._device, "up")
        ip(*inside, "addr", "add", f"{self.far}/30", "dev", "far")
        ip(*inside, "link", "set", "far", "up")
        ip(*inside, "link", "set", "lo", "up")

    def cut(self) -> None:
        """Drop every packet, without a word to either side."""
        self.is_cut = True
        ip("link", "set", self._device, "down")

    def mend(self) -> None:
        """Let packets pass again."""
        ip("link", "set", self._device, "up")
        self.is_cut = False

    def remove(self) -> None:
        """Remove the namespace, and the cable with it."""
        ip("netns", "del", self.namespace)


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
    if debian.which("ip") is None:
        debian.install("iproute2")


def ip(*command: str) -> None:
    """Run iproute2's program; raise NotHere with its own words."""
    program = debian.which("ip") or "ip"
    done = subprocess.run((program, *command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotHere(f"ip {' '.join(command)}: {done.stderr.strip()}")
