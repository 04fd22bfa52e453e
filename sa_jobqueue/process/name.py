"""The names of the running process and of its functions, for people to read."""

from __future__ import annotations

import os
import socket
from typing import Any


def process_name(host_length: int) -> str:
    """Return the first characters of the host's name, and the process id."""
    # A "~" marks the owners whose death can be noticed.
    return f"{socket.gethostname().replace('~', '-')[:host_length]}-{os.getpid()}"


def function_name(function: Any) -> str:
    """Return the name of a function or another callable, without its address in memory."""
    name = getattr(function, "__qualname__", None)
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else repr(function)
