"""A pooler for MySQL and MariaDB, whose greeting has its own connection number.

ProxySQL and MaxScale greet a client before they know which connection of theirs to
the server will work for it. So the number that the driver is told is none of the
server's. This one passes all on but for that number.
"""

from __future__ import annotations

import socket

from tests.proxy import Proxy

#: A connection number that no server reaches.
OWN_NUMBER = 4_000_000_007


class Pooler(Proxy):
    """Forward connections to a server, and greet clients with a number of our own."""

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        if self._is_client(sink):
            sink.sendall(renumbered(greeting(source)))
        super()._forward(source, sink)


def greeting(server: socket.socket) -> bytes:
    """Read the packet by which a server begins: its length, a number, and what it says."""
    head = exactly(server, 4)
    return head + exactly(server, int.from_bytes(head[:3], "little"))


def exactly(source: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        part = source.recv(size - len(read))
        assert part, "the server has hung up"
        read += part
    return read


def renumbered(packet: bytes) -> bytes:
    """Put our number behind the protocol's and the server's version, which ends with a zero."""
    place = packet.index(b"\0", 5) + 1
    return packet[:place] + OWN_NUMBER.to_bytes(4, "little") + packet[place + 4 :]
