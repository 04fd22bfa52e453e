"""Where each peer is installed: a virtual environment of its own, kept between runs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".benchmarks"

#: The newest minor version of Python 3 that is looked for on the PATH.
NEWEST = 15


class NoInterpreter(LookupError):
    """This machine has no Python that is new enough."""


def environment(name: str, requirements: tuple[str, ...], oldest: tuple[int, int] | None) -> str:
    """Return the Python that runs an adapter, with the adapter's packages installed.

    Args:
        requirements: what the environment holds; without any, it is the caller's own.
        oldest: the oldest Python that the packages run on.
    """
    if not requirements:
        return sys.executable
    digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:8]
    folder = FOLDER / f"{name.replace(' ', '-')}-{digest}"
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists():
        subprocess.run([interpreter(oldest), "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(install, check=True)
        installed.touch()
    return str(python)


@cache
def interpreter(oldest: tuple[int, int] | None) -> str:
    """Find a Python that is new enough: the caller's own, otherwise the first on the PATH.

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
    """Ask a Python for its path. What a version manager puts on the PATH may not run."""
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
