"""Pythons of this machine, for peers that do not run on the caller's."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

#: The newest that is looked for.
NEWEST = 15


class NoInterpreter(LookupError):
    """This machine has no Python that is new enough."""


@cache
def interpreter(oldest: tuple[int, int] | None) -> str:
    """Find a Python that is new enough: the caller's own, else one on the PATH.

    Raises:
        NoInterpreter: there is none; the message says the way out.
    """
    if oldest is None or sys.version_info >= oldest:
        return sys.executable
    major, minor = oldest
    for name in (f"python{major}.{number}" for number in range(minor, NEWEST + 1)):
        if path := _path(name):
            return path
    raise NoInterpreter(f"it needs Python {major}.{minor} or newer: put one on the PATH")


def _path(name: str) -> str | None:
    """Have a Python say where it is. What a version manager puts on the PATH may not run."""
    try:
        asked = subprocess.run(
            [name, "-c", "import sys, venv; print(sys.executable)"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()
