"""Where each peer is installed: a virtual environment of its own, kept between runs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from benchmarks.adapters.catalogue import Entry
from benchmarks.adapters.interpreters import interpreter

FOLDER = Path(__file__).resolve().parents[2] / ".benchmarks"


def python_of(entry: Entry) -> str:
    """Return the Python that runs an adapter, its packages installed."""
    if not entry.requirements:
        return sys.executable
    digest = hashlib.sha256(" ".join(entry.requirements).encode()).hexdigest()[:8]
    folder = FOLDER / f"{entry.name.replace(' ', '-')}-{digest}"
    python = folder / "bin" / "python"
    finished = folder / "installed"
    if not finished.exists():
        base = interpreter(entry.python)
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *entry.requirements]
        subprocess.run(install, check=True)
        finished.touch()
    return str(python)
