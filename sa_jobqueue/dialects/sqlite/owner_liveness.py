"""SQLite: which file on which host this is; there is no list of connections."""

from __future__ import annotations

import os
import socket

from sqlalchemy import Connection

from ..owner_liveness import Server
from .named_locks import file_of, memory_path


def server_of(connection: Connection, title: str) -> Server | None:
    """Identify the database by its file; None: the file was removed while it is open."""
    file = file_of(connection)
    if file is None:
        return Server.identified_by(title, memory_path(connection.engine.pool))
    # The folder too: a container may share the file alone, and not the lock files beside it.
    try:
        found = [os.stat(path) for path in (file, os.path.dirname(file))]
    except FileNotFoundError:
        return None
    numbers = [number for status in found for number in (status.st_dev, status.st_ino)]
    return Server.identified_by(title, socket.gethostname(), file, *numbers)
