"""A network that can be cut: a TCP proxy that goes silent and closes nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
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

    Args:
        at: the address that clients connect to.
        to: says for each connection to which port of the server's host it leads; None: the client
            is turned away.
        forgets: seconds after which the server sees the end of a client that was silent; None:
            never.
    """

    def __init__(
        self,
        url: URL,
        *,
        at: str = "127.0.0.1",
        port: int = 0,
        to: Callable[[], int | None] | None = None,
        forgets: float | None = None,
    ) -> None:
        self._host = url.host or "localhost"
        server = url.port or STANDARD_PORTS[url.get_backend_name()]
        self._to = to or (lambda: server)
        self._listener = socket.create_server((at, port))
        self._forgets = forgets
        self._sockets = [self._listener]
        self._clients: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._silent = threading.Event()  # for the connections that are there
        self._flows = threading.Event()
        self._flows.set()
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

    def end_all(self) -> None:
        """End the connections that are there."""
        for opened in self._sockets[1:]:
            end(opened)

    def hold(self) -> None:
        """Forward nothing until :meth:`release`; what comes meanwhile arrives then."""
        self._flows.clear()

    def release(self) -> None:
        """Forward what was held."""
        self._flows.set()

    def close(self) -> None:
        """Close everything."""
        self._over.set()
        self._flows.set()
        for opened in self._sockets:
            end(opened)
            opened.close()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            port = self._to()
            if port is None:
                return
            with socket.create_connection((self._host, port)) as server:
                self._sockets += [client, server]
                self._clients.add(client)
                if self._over.is_set():  # its sockets may not have been seen
                    return
                answers = self._start(self._forward, server, client)
                self._forward(client, server)
                answers.join()

    def _is_client(self, source: socket.socket) -> bool:
        """Tell whether a client is at the other end of a connection."""
        return source in self._clients

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        silent, from_client = self._silent, self._is_client(source)
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if not silent.is_set():
                    sink.sendall(data)
        self._flows.wait()
        if silent.is_set():
            if not from_client:
                return  # the client learns nothing
            self._over.wait(self._forgets)
        end(sink)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread


def end(opened: socket.socket) -> None:
    """End a connection in both directions, unless it has ended."""
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
