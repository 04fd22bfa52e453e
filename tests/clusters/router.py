"""One way in that leads to the primary, whichever node that is: as MySQL Router is one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.servers.keeping import LOCALHOST


class Router:
    """Forward each new connection to the node that is the primary then.

    Args:
        primary: returns its port; None: there is none, and the client is turned away.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, primary: Callable[[], int | None]) -> None:
        self._primary = primary
        self._listener = socket.create_server((LOCALHOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more; connections end with their nodes."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        port = self._primary()
        with client:
            if port is None:
                return
            with suppress(OSError), socket.create_connection((LOCALHOST, port)) as node:
                back = threading.Thread(target=_forward, args=(node, client), daemon=True)
                back.start()
                _forward(client, node)
                back.join()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    """Forward until either side ends, then end both."""
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
