"""The proxy of the tests cuts a clause out wherever the network divides it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from tests.cutting_proxy import FOR_UPDATE, SKIP_LOCKED, cut_out, mysql_packets, postgresql_packets

QUERY = b"SELECT 1 FROM t FOR UPDATE OF t SKIP LOCKED"

STARTUP = (22).to_bytes(4, "big") + (196608).to_bytes(4, "big") + b"user\0postgres\0"
OF_POSTGRESQL = [STARTUP, b"Q" + (len(QUERY) + 5).to_bytes(4, "big") + QUERY + b"\0"]
OF_MYSQL = [len(QUERY).to_bytes(3, "little") + b"\0" + QUERY]

Packets = Callable[[socket.socket], Iterator[bytes]]


@pytest.mark.parametrize(
    ("packets", "sent"), [(postgresql_packets, OF_POSTGRESQL), (mysql_packets, OF_MYSQL)]
)
def test_packets_that_come_byte_by_byte_are_cut_whole(packets: Packets, sent: list[bytes]) -> None:
    client, server = socket.socketpair()
    with client, server:
        for byte in b"".join(sent):
            client.send(bytes([byte]))
        client.shutdown(socket.SHUT_WR)

        found = list(packets(server))

    assert found == sent
    assert len(cut_out(SKIP_LOCKED, found[-1])) == len(sent[-1])
    assert b"FROM t FOR UPDATE OF t            " in cut_out(SKIP_LOCKED, found[-1])
    assert b"FOR UPDATE" not in cut_out(FOR_UPDATE, found[-1])
