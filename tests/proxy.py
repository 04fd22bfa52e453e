"""A network that can be cut: a TCP proxy that goes silent and closes nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from sqlalchemy import URL

STANDARD_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}


class Proxy:
    """Forward connections to a server until told to be silent.

    ::

        with Proxy(url) as proxy:
            engine = create_engine(proxy.url)
            ...
            proxy.go_silent()       # as if the power had gone: nobody says farewell
    """

    def __init__(self, url: URL, *, port: int = 0) -> None:
        self._target = (url.host or "localhost", url.port or _standard_port(url))
        self._listener = socket.create_server(("127.0.0.1", port))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._silent = threading.Event()  # for the connections that are there
        self._over = threading.Event()
        host, port = self._listener.getsockname()
        self.url = url.set(host=host, port=port)
        self._start(self._accept)

    def go_silent(self) -> None:
        """Forward nothing from now on, in neither direction, and close nothing."""
        self._silent.set()

    def speak(self) -> None:
        """Forward new connections again; those that are there stay silent."""
        self._silent = threading.Event()

    def close(self) -> None:
        """Close everything."""
        self._over.set()
        for opened in self._sockets:
            with suppress(OSError):  # the other thread closed it first
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            self._start(self._forward, client, server)
            self._start(self._forward, server, client)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        silent = self._silent
        with suppress(OSError):
            while data := source.recv(65536):
                if silent.is_set():
                    break
                sink.sendall(data)
        if silent.is_set():
            self._over.wait()
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


def _standard_port(url: URL) -> int:
    return STANDARD_PORTS[url.get_backend_name()]
