"""The name of the running process: its host and its process id."""

from __future__ import annotations

import os
import socket


def process_name(host_length: int) -> str:
    """Return the first characters of the host's name, and the process id."""
    # A "~" marks the owners whose death can be noticed.
    return f"{socket.gethostname().replace('~', '-')[:host_length]}-{os.getpid()}"
