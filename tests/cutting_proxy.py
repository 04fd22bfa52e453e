"""A proxy that cuts locking clauses out of the wire protocol: the server never sees them.

So it behaves as a server that parses the clauses and does not obey them. Spaces take their places,
and the length of each packet stays.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress

from sqlalchemy import URL

from tests.proxy import Proxy, end

#: Rows are locked, and nobody passes over them.
SKIP_LOCKED = re.compile(rb" SKIP LOCKED")

#: Nothing is locked by reading.
FOR_UPDATE = re.compile(rb" FOR (NO KEY )?UPDATE( OF \S+)?( SKIP LOCKED| NOWAIT)?")

#: PostgreSQL's first messages have no type; this one, the last of them, names protocol 3.0.
_STARTUP = (196608).to_bytes(4, "big")


class CuttingProxy(Proxy):
    """Forward connections, and cut a clause out of what clients send.

    Clients connect without TLS. A packet is cut when it has arrived whole, so a clause may be
    divided between two reads of the socket.
    """

    def __init__(self, url: URL, clause: re.Pattern[bytes]) -> None:
        self._clause = clause
        self._packets = (
            postgresql_packets if url.get_backend_name() == "postgresql" else mysql_packets
        )
        self.cut = 0
        super().__init__(url)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        if not self._is_client(source):
            super()._forward(source, sink)
            return
        with suppress(OSError):
            for packet in self._packets(source):
                without = cut_out(self._clause, packet)
                self.cut += without != packet
                sink.sendall(without)
        end(sink)


def cut_out(clause: re.Pattern[bytes], packet: bytes) -> bytes:
    """Put spaces in the place of a clause."""
    return clause.sub(lambda found: b" " * len(found[0]), packet)


def mysql_packets(source: socket.socket) -> Iterator[bytes]:
    """Yield a client's packets: three bytes of length, a number, and the rest."""
    while head := _read(source, 4):
        yield head + _read(source, int.from_bytes(head[:3], "little"))


def postgresql_packets(source: socket.socket) -> Iterator[bytes]:
    """Yield a client's messages: a type, four bytes of length, which they count, and the rest."""
    started = False
    while kind := (_read(source, 1) if started else b"\0"):
        kind = kind if started else b""
        length = _read(source, 4)
        rest = _read(source, int.from_bytes(length, "big") - 4)
        started = started or rest.startswith(_STARTUP)
        yield kind + length + rest


def _read(source: socket.socket, size: int) -> bytes:
    """Read so many bytes; fewer at the end of the connection."""
    found = b""
    while len(found) < size and (part := source.recv(size - len(found))):
        found += part
    return found
