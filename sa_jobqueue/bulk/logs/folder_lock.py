"""Lock a folder for one process at a time, with flock()."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType

from ...errors import UnsupportedDatabase

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: Seconds between two tries.
_RETRY = 0.01


def lock_folder(folder: Path, seconds: float = 0) -> int | None:
    """Lock a folder and return the descriptor to close; None: others kept it locked so long.

    Raises:
        UnsupportedDatabase: this platform has no flock().
    """
    if fcntl is None:
        raise UnsupportedDatabase(
            "FileLog needs flock(), which this platform's Python does not have (the module "
            "fcntl): use DatabaseLog."
        )
    descriptor, until = os.open(folder, os.O_RDONLY), time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                return None
            time.sleep(_RETRY)
        else:
            return descriptor


def is_locked(folder: Path) -> bool:
    """Tell whether somebody has a folder locked."""
    descriptor = lock_folder(folder)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None
